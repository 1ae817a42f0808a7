package test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gbytes"
	"github.com/onsi/gomega/gexec"

	"github.com/usherproxy/usher/test/lab"
)

// typed is a command of a page and its expected output.
type typed struct {
	command string
	seen    []string // lines; … in a line matches any text, and alone any number of lines
	line    int      // of the page
}

// typedIn returns the commands that a page runs in its second terminal: those in blocks
// that begin with fence.
func typedIn(text, fence string) (all []typed) {
	inside := false
	for i, line := range strings.Split(text, "\n") {
		command, is := strings.CutPrefix(line, "$ ")
		switch {
		case inside && line == "```":
			inside = false
		case line == fence:
			inside = true
		case inside && is:
			all = append(all, typed{command: command, line: i + 1})
		case inside:
			last := &all[len(all)-1]
			last.seen = append(last.seen, line)
		}
	}
	return all
}

// pattern matches the expected output, with any column widths.
func (t typed) pattern() *regexp.Regexp {
	var b strings.Builder
	b.WriteString(`(?m)\A`)
	for _, line := range t.seen {
		if line == "…" {
			b.WriteString(`(?:.*\n)*?`)
			continue
		}
		parts := strings.Split(strings.Join(strings.Fields(line), " "), "…")
		for i, part := range parts {
			parts[i] = regexp.QuoteMeta(part)
		}
		any := strings.ReplaceAll(strings.Join(parts, ".*"), " .* ", " (?:.* )?")
		b.WriteString(slowly.ReplaceAllString(any, "${1}m?s") + `\n`)
	}
	return regexp.MustCompile(b.String() + `\z`)
}

// slowly matches "… ms" in a pattern: on a busy machine, it can be "1.2 s".
var slowly = regexp.MustCompile(`(\.\* |\(\?:\.\* \)\?)ms\b`)

// waits matches the line of a command that waits for usher's response.
var waits = regexp.MustCompile(`(?m)^[a-z-]+: waiting up to .*\n`)

// fails matches the output of commands whose exit code is not 0.
var fails = regexp.MustCompile(`(?m)^(usher: |no answer after |curl: \(|WARNING )`)

// inColumns replaces each run of spaces in a program's output by one space.
func inColumns(out []byte) string {
	var b strings.Builder
	for line := range strings.Lines(string(out)) {
		b.WriteString(strings.Join(strings.Fields(line), " ") + "\n")
	}
	return b.String()
}

var _ = Describe("the quick start and the course", func() {
	lessons, _ := filepath.Glob(filepath.Join(root(), "docs/course/[1-9]-*.md"))
	quickStart := filepath.Join(root(), "docs/quickstart.md")

	It("have six lessons, each with a scenario", func() {
		Expect(lessons).To(HaveLen(6))
		for _, lesson := range lessons {
			Expect(strings.TrimSuffix(lesson, ".md") + ".yaml").To(BeARegularFile())
		}
	})

	for _, lesson := range append(lessons, quickStart) {
		text, err := os.ReadFile(lesson)
		name := strings.TrimSuffix(filepath.Base(lesson), ".md")
		play := func(as func(string, ...string) *exec.Cmd, fence string) {
			Expect(err).NotTo(HaveOccurred())
			program := usherForNobody()
			home := filepath.Dir(program)
			for _, folder := range []string{"docs/course", "examples"} {
				Expect(os.CopyFS(filepath.Join(home, folder), os.DirFS(filepath.Join(root(), folder)))).To(Succeed())
			}
			if strings.Contains(string(text), "$ kubectl-usher exec") {
				Expect(os.Symlink(kubectlUsherForNobody(), filepath.Join(home, "kubectl-usher"))).To(Succeed())
				missing("getent")
				lab.UserNamespaces()
			}
			node := lab.New().Node.WithTun(0o666)
			d := launch(node, as(program, "demo"), "")
			Eventually(d.Out).WithTimeout(time.Minute).Should(gbytes.Say(`Open http://127\.0\.0\.1:10249/`))
			all := typedIn(string(text), fence)
			Expect(all).NotTo(BeEmpty())
			for _, t := range all {
				By(fmt.Sprintf("line %d: %s", t.line, t.command))
				Expect(t.seen).NotTo(Equal([]string{"…"}), "%s:%d shows no output", lesson, t.line)
				var s *usher
				var seen string
				// In a play, requests under way are lost with a server. On a busy machine more are under way than the play allows.
				for range 3 {
					cmd := as("bash", "-c", t.command)
					cmd.Dir = home
					cmd.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0", "PATH="+home+":"+os.Getenv("PATH"), "HOME="+home)
					s = launch(node, cmd, "")
					Eventually(s).WithTimeout(time.Minute).Should(gexec.Exit())
					// A terminal shows both outputs, with the error message last. On a busy machine a response takes a second.
					seen = inColumns(append(s.Out.Contents(), waits.ReplaceAll(s.Err.Contents(), nil)...))
					if !strings.HasPrefix(t.command, "usher demo play") || t.pattern().MatchString(seen) {
						break
					}
				}
				Expect(seen).To(MatchRegexp(t.pattern().String()), "%s:%d: %s\nprinted\n%s", lesson, t.line, t.command, seen)
				if !fails.MatchString(seen) {
					Expect(s.ExitCode()).To(BeZero(), "%s:%d: %s\nprinted\n%s", lesson, t.line, t.command, seen)
				}
			}
			d.stop()
		}
		if lesson != quickStart {
			It("show the real output of the commands in "+name+", without root", func() { play(asNobody, "```console") })
		}
		if strings.Contains(string(text), "```console root") {
			It("show the real output of the root commands in "+name, func() { play(exec.Command, "```console root") })
		}
	}
})
