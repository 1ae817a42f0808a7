package keeper

import (
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"slices"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"
)

const (
	// shortLife is how long an usher serves at least that does not count as failing again
	// and again. From the second failure on the keeper pauses, for firstPause, and twice as
	// long each time, up to longestPause.
	shortLife    = time.Second
	firstPause   = 100 * time.Millisecond
	longestPause = 30 * time.Second
	// answeredPause is how long a pause is in which others are answered by the keeper.
	answeredPause = time.Second
)

// forwarded are the signals that go to usher.
var forwarded = []os.Signal{unix.SIGTERM, unix.SIGINT, unix.SIGQUIT, unix.SIGUSR1, unix.SIGUSR2}

// keeper is the process.
type keeper struct {
	state
	log     logrus.FieldLogger
	manager *manager      // nil for none
	pause   *pause        // nil while one runs
	told    bool          // to stop
	code    int           // to end with, when told and usher has ended
	again   bool          // to replace the program once more
	taken   chan struct{} // another usher has taken over while none ran here
	sent    chan *child   // it has sent something about connections
	// connections is how many are saved, with pipes. Each has two descriptors.
	connections int
	// count is how many descriptors are kept, and length how long their names are together.
	count, length int
	overfull      bool // the log was told that not all can be kept
}

// state is what a keeper is, and remains when its program is replaced.
type state struct {
	// Program and Arguments are how usher is started.
	Program   string
	Arguments []string
	// LogLevel and LogFormat are of the keeper's log.
	LogLevel, LogFormat string
	// Socket is the descriptor by which usher tells what to keep.
	Socket int
	// Kept are descriptors by name, oldest first in each.
	Kept map[string][]int
	// Current is the usher whose word counts, nil while there is none. Next takes over from
	// it, after which it becomes one of Draining, which only end.
	Current, Next *child
	Draining      []*child
	// Orphans are the areas of a process that crashed, until the next one starts.
	Orphans []*area
	// Served says that an usher has been ready.
	Served bool
	// Failures is how many in a row ended soon, and Restarts how many were started again,
	// since the one before ended as Last says.
	Failures, Restarts int
	Last               string
	// Score is what usher has for its oom_score_adj; "" if the keeper's was not changed.
	Score string
}

// Options say how a keeper is started.
type Options struct {
	// Arguments are those of usher, its name first.
	Arguments []string
	// LogLevel and LogFormat make the log of a new program; Log is this one's.
	LogLevel, LogFormat string
	Log                 logrus.FieldLogger
}

// Run starts usher, and again when it ends unexpectedly, and returns the exit code of
// the last one.
func Run(o Options) (code int, err error) {
	k := &keeper{log: o.Log, state: state{
		Arguments: o.Arguments, LogLevel: o.LogLevel, LogFormat: o.LogFormat, Kept: map[string][]int{},
	}}
	if k.Program, err = program(o.Arguments[0]); err != nil {
		return 0, err
	}
	if err := k.listen(); err != nil {
		return 0, fmt.Errorf("create the keeper's socket: %w", err)
	}
	k.adopt()
	k.protect()
	k.manager = newManager(k.log)
	return k.run(k.start), nil
}

// run is the loop; begin is done first, when signals are caught.
func (k *keeper) run(begin func()) (code int) {
	k.taken = make(chan struct{}, 1)
	signals, hangups, children := make(chan os.Signal, 8), make(chan os.Signal, 1), make(chan os.Signal, 1)
	signal.Notify(signals, forwarded...)
	signal.Notify(hangups, unix.SIGHUP)
	signal.Notify(children, unix.SIGCHLD)
	readable, read := make(chan struct{}), make(chan struct{})
	go poll(k.Socket, readable, read)
	k.sent = make(chan *child)
	for _, c := range k.children() { // of the program that this one has replaced
		k.adoptConnections(c)
	}
	defer func() { k.abandon(k.Orphans) }()
	beat := k.manager.beat()
	begin()
	debug.FreeOSMemory()
	select {
	case children <- unix.SIGCHLD: // one may have ended before they were caught
	default:
	}
	for {
		select {
		case <-readable:
			k.receive()
			read <- struct{}{}
		case c := <-k.sent:
			k.hearAll(c)
			c.heard <- struct{}{}
		case <-children:
			if code, over := k.reap(); over {
				return code
			}
		case sig := <-signals:
			if k.forward(sig) {
				return 0
			}
		case <-hangups:
			k.upgrade()
		case <-k.pause.over():
			k.start()
		case <-beat:
			k.beat()
		case <-k.taken:
			if k.leave() {
				return 0
			}
		}
		if k.again && k.Next == nil {
			k.again = false
			k.upgrade()
		}
	}
}

// poll tells when the socket is readable, and again after each answer.
func poll(fd int, readable chan<- struct{}, read <-chan struct{}) {
	for {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		if n, err := unix.Poll(fds, -1); err == nil && n > 0 {
			readable <- struct{}{}
			<-read
		}
	}
}

// forward gives a signal to usher, and reports whether there is none to wait for. Those that
// have handed over end anyway, and were told so; they are told again with the second signal,
// which breaks connections.
func (k *keeper) forward(sig os.Signal) (over bool) {
	s := sig.(syscall.Signal)
	if k.told {
		for _, c := range k.Draining {
			_ = unix.Kill(c.PID, s) // it is not reaped
		}
	}
	if s == unix.SIGTERM || s == unix.SIGINT {
		k.told = true
		k.pause.end() // before what it would hand over is gone
		k.drop()      // clients are refused from now on
	}
	for _, c := range []*child{k.Current, k.Next} {
		if c != nil {
			_ = unix.Kill(c.PID, s) // fails if it has ended already
		}
	}
	if k.told && k.Current == nil && len(k.Draining) == 0 {
		k.log.WithField("signal", sig.String()).Info("Keeper exiting; no usher is running and its rules are kept for the next start ('usher cleanup' removes them)")
		return true
	}
	return false
}

// leave leaves the portals to another usher that has taken over, and reports whether there
// is nothing to wait for: in a Pod the kubelet would start this one again, which would take
// over in its turn.
func (k *keeper) leave() (over bool) {
	k.log.Info("Another usher instance has taken over from the keeper")
	k.pause.end()
	k.pause = nil
	k.drop()
	k.abandon(k.Orphans)
	k.Orphans = nil
	return os.Getenv("KUBERNETES_SERVICE_HOST") == ""
}

// reap takes note of children that have ended, its own and those of others that it has
// got as process 1.
func (k *keeper) reap() (code int, over bool) {
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, unix.WNOHANG, nil)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil || pid <= 0:
			return 0, false
		}
		k.receive() // what it said last
		for _, c := range k.children() {
			if c.PID == pid {
				k.hangUp(c)
			}
		}
		switch former := slices.IndexFunc(k.Draining, func(c *child) bool { return c.PID == pid }); {
		case former >= 0:
			k.inherit(k.Draining[former], k.Current)
			k.Draining = slices.Delete(k.Draining, former, former+1)
			code, over = k.code, k.told && k.Current == nil && k.Next == nil && len(k.Draining) == 0
		case k.Next != nil && pid == k.Next.PID:
			code, over = k.nextEnded(status)
		case k.Current == nil || pid != k.Current.PID:
		case k.Next != nil:
			k.currentGone(status)
		default:
			code, over = k.ended(status)
		}
		if over {
			return code, true
		}
	}
}

// ended is called when the usher that counts has ended, and nobody comes after it.
func (k *keeper) ended(status unix.WaitStatus) (code int, over bool) {
	c, why := k.Current, describe(status)
	k.Current = nil
	k.Orphans = append(k.Orphans, c.Areas...)
	code = status.ExitStatus()
	if status.Signaled() {
		code = 128 + int(status.Signal())
	}
	log := k.log.WithField("reason", why)
	switch {
	case k.told, c.Stopping, code == 0:
		return k.end(code)
	case code == ExitLocked:
		log.Error("Another usher instance manages the portals; keeper exiting")
		return code, true
	case !k.Served: // it would be so the next time
		log.Error("usher exited before serving; keeper exiting")
		return code, true
	}
	if k.Failures++; c.Ready && time.Since(c.Since) >= shortLife {
		k.Failures = 0
	}
	if k.Failures > 1 { // a connection may be the cause
		k.abandon(k.Orphans)
		k.Orphans = nil
	}
	k.Restarts++
	k.Last = why
	wait := k.patience()
	log.WithFields(logrus.Fields{"restarts": k.Restarts, "pause": wait.String()}).Error("usher exited unexpectedly; restarting it")
	k.begin(wait)
	return 0, false
}

// end ends with that code, when all that have handed over have ended, too: where the keeper
// is process 1, their connections would break with it.
func (k *keeper) end(code int) (_ int, over bool) {
	if k.told, k.code = true, code; len(k.Draining) == 0 {
		return code, true
	}
	k.log.WithField("instances", len(k.Draining)).Info("Keeper waiting for previous usher instances to finish their connections")
	return 0, false
}

// patience returns how long to wait before usher is started again.
func (k *keeper) patience() time.Duration {
	if k.Failures < 2 {
		return 0
	}
	return min(firstPause<<min(k.Failures-2, 16), longestPause)
}

// describe says how a process ended.
func describe(status unix.WaitStatus) string {
	if status.Signaled() {
		return "signal: " + status.Signal().String()
	}
	return fmt.Sprintf("exit code %d", status.ExitStatus())
}
