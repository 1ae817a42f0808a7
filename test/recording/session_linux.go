package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/charmbracelet/x/ansi"
	"github.com/creack/pty"
)

// columns and rows are the terminal's: so wide is what `usher get services` prints, and some.
const columns, rows = 92, 24

// command is one that is typed, what its output holds when it is there as a whole, and how many keys
// long a reader is given then.
type command struct {
	typed  string
	holds  string
	lacks  string // or it is another session
	pause  int
	remark string // typed before it, as a comment
}

// errOtherTurn is for a session in which chance, which decides whose turn is first, would have it
// that the first endpoint refuses.
var errOtherTurn = errors.New("the endpoint that refuses was asked first")

// session is what is played. The first endpoint that is asked answers, and the second one refuses.
var session = []command{
	{typed: "usher demo &", holds: "Ctrl-C ends the demo", pause: 45},
	{typed: "clear", pause: 3},
	{remark: "one of this Service's two endpoints refuses connections", typed: "curl http://10.96.0.11/", holds: "to the client", lacks: "attempt 2", pause: 25},
	{typed: "curl http://10.96.0.11/", holds: "in quarantine.*attempt 2.*to the client", pause: 70},
	{typed: "clear", pause: 3},
	{typed: "usher get services", holds: "refusing +degraded", pause: 55},
	{typed: "usher get connection 2", holds: "connection refused after.*connected in", pause: 85},
}

// prompt begins with a character that nothing else prints. The shell waits a moment before it
// prompts, for what the demo has to say of the command.
const prompt = "\u276f "

// patience is how long a command may take.
const patience = time.Minute

// recorder is a terminal whose output is written down.
type recorder struct {
	terminal *os.File
	began    time.Time

	mu     sync.Mutex
	events []event
	since  int // the first event of this command
	seen   *sync.Cond
	ended  bool // or it has taken too long
}

// record plays the session with this program, at a pace of so long a key, as often as it takes.
func record(usher string, pace time.Duration) (c *cast, err error) {
	for range maxSessions {
		if c, err = recordOnce(usher, pace); !errors.Is(err, errOtherTurn) {
			break
		}
	}
	return c, err
}

// maxSessions is enough for what happens in every second one.
const maxSessions = 20

func recordOnce(usher string, pace time.Duration) (*cast, error) {
	home, err := os.MkdirTemp("", "usher-recording-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(home)
	if err := os.Symlink(usher, filepath.Join(home, "usher")); err != nil {
		return nil, err
	}
	// The network namespace has only loopback. To create it takes root.
	shell := exec.Command("unshare", "--net", "sh", "-c", "ip link set lo up && exec bash --norc --noprofile --noediting")
	shell.Dir = home
	shell.Env = []string{"PATH=" + home + ":" + os.Getenv("PATH"), "HOME=" + home, "TERM=xterm-256color", "LANG=C.UTF-8", "PS1=" + prompt, "PROMPT_COMMAND=sleep 0.3", "TMPDIR=" + os.TempDir()}
	r := &recorder{}
	r.seen = sync.NewCond(&r.mu)
	if r.terminal, err = pty.StartWithSize(shell, &pty.Winsize{Cols: columns, Rows: rows}); err != nil {
		return nil, err
	}
	r.began = time.Now()
	read := make(chan struct{})
	go func() {
		defer close(read)
		r.read()
	}()
	err = r.play(pace)
	last := len(r.snapshot())
	_, _ = r.terminal.WriteString("\nkill -INT %1; wait; exit\n") // where that fails, the next ends it
	time.AfterFunc(patience, func() { _ = shell.Process.Kill() })
	err = errors.Join(err, ignoreExit(shell.Wait()))
	r.terminal.Close()
	<-read
	if err != nil {
		return nil, err
	}
	return &cast{header{2, columns, rows, "usher demo", map[string]string{"TERM": "xterm-256color", "SHELL": "bash"}}, r.snapshot()[:last]}, nil
}

// ignoreExit leaves out that the shell's last command failed.
func ignoreExit(err error) error {
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && exit.Exited() {
		return nil
	}
	return err
}

// read writes down what the terminal shows, until the shell has ended.
func (r *recorder) read() {
	buf := make([]byte, 1<<16)
	for begun := 0; ; {
		n, err := r.terminal.Read(buf[begun:])
		n += begun
		whole := n
		for whole > 0 && n-whole < utf8.UTFMax && !utf8.Valid(buf[:whole]) {
			whole-- // a character of which the rest is to come
		}
		r.mu.Lock()
		if whole > 0 {
			r.events = append(r.events, event{r.now(), output, string(buf[:whole])})
		}
		r.ended = err != nil // EIO: the shell has ended
		r.seen.Broadcast()
		r.mu.Unlock()
		if err != nil {
			return
		}
		begun = copy(buf, buf[whole:n])
	}
}

func (r *recorder) now() time.Duration { return time.Since(r.began).Truncate(time.Millisecond) }

func (r *recorder) snapshot() []event {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.events)
}

// shown is what was shown since this command began.
func (r *recorder) shown() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.shownLocked()
}

func (r *recorder) shownLocked() string {
	var b strings.Builder
	for _, e := range r.events[r.since:] {
		if e.kind == output {
			b.WriteString(e.data)
		}
	}
	return ansi.Strip(b.String())
}

// await waits until what is shown matches an expression and a prompt, before or behind it.
func (r *recorder) await(expression string) error {
	expected := regexp.MustCompile("(?s)" + expression)
	expired := time.AfterFunc(patience, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.ended = true
		r.seen.Broadcast()
	})
	defer expired.Stop()
	r.mu.Lock()
	defer r.mu.Unlock()
	for {
		text := r.shownLocked()
		if expected.MatchString(text) && strings.Contains(text, prompt) {
			return nil
		}
		if r.ended {
			return fmt.Errorf("%q does not come; what came is:\n%s", expression, text)
		}
		r.seen.Wait()
	}
}

// play types the session.
func (r *recorder) play(pace time.Duration) error {
	if err := r.await(""); err != nil {
		return err
	}
	for _, c := range session {
		if err := r.freshPrompt(pace); err != nil {
			return err
		}
		if c.remark != "" {
			r.typeIn("# "+c.remark, pace)
			if err := r.await(""); err != nil {
				return err
			}
		}
		r.mu.Lock()
		r.events = append(r.events, event{r.now(), marker, c.typed})
		r.mu.Unlock()
		r.typeIn(c.typed, pace)
		if err := r.await(c.holds); err != nil {
			return fmt.Errorf("%s: %w", c.typed, err)
		}
		if c.lacks != "" && strings.Contains(r.shown(), c.lacks) {
			return errOtherTurn
		}
		if err := r.freshPrompt(pace); err != nil {
			return err
		}
		time.Sleep(time.Duration(c.pause) * pace)
	}
	return nil
}

// freshPrompt asks for a prompt if the demo has said something behind the last one.
func (r *recorder) freshPrompt(pace time.Duration) error {
	if strings.HasSuffix(r.shown(), prompt) {
		return nil
	}
	r.typeIn("", pace)
	return r.await("")
}

// typeIn types a line, a key at a time.
func (r *recorder) typeIn(line string, pace time.Duration) {
	for _, key := range line {
		_, _ = r.terminal.WriteString(string(key)) // where it fails, what is awaited does not come
		time.Sleep(pace)
	}
	r.mu.Lock()
	r.since = len(r.events)
	r.mu.Unlock()
	_, _ = r.terminal.WriteString("\n")
}
