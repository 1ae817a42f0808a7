package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/onsi/ginkgo/v2/types"
)

// module is the path of the module at the top of the repository. The paths of the
// other modules are derived from their folders.
const module = "github.com/usherproxy/usher"

// reportsVariable marks this process as the -exec of go test, and has the folder for
// reports.
const reportsVariable = "USHER_TEST_REPORTS"

// packagesAtOnce is go test's number of packages that run at the same time. Most specs of packages wait for timeouts.
const packagesAtOnce = "-p=4"

// suite is a row of the table: packages for go test, or commands that must
// succeed.
type suite struct {
	name     string
	dir      string // of the module
	patterns []string
	except   []string // suffixes of package paths
	race     bool
	timeout  string
	beside   int    // number of concurrent specs, if it is one package of specs
	label    string // then also Ginkgo's filter of specs by label
	slots    int    // see the constant; 0 means 1

	commands []string // instead of the fields above: words separated by blanks
	nice     bool     // they need no slot: they wait nearly all the time, or have a low priority
}

// result is the result of a suite.
type result struct {
	suite
	out      *sharedWriter
	passed   int
	failures []string       // names, each followed by its output
	reasons  map[string]int // number of skipped tests by reason
	took     time.Duration
	cpu      time.Duration // of its processes: user and system
	times    []timed       // of specs, and of Go tests that passed

	frames map[string]bool     // Go tests that contain specs
	said   map[string][]string // output of other Go tests so far
	broken []string            // packages that failed
	words  map[string][]string // unexpected output outside of tests: see lastWords
	culled []string            // packages with a test among the failures
}

// timed is a spec and its duration.
type timed struct {
	spec string
	took time.Duration
}

func (r *result) skipped() (n int) {
	for _, count := range r.reasons {
		n += count
	}
	return n
}

// add adds counts to sum, and returns sum.
func add(sum, counts map[string]int) map[string]int {
	if sum == nil {
		sum = map[string]int{}
	}
	for reason, n := range counts {
		sum[reason] += n
	}
	return sum
}

func (r *result) run() {
	began := time.Now()
	r.out.print(r.name, "begins")
	var err error
	if len(r.commands) > 0 {
		r.exec()
	} else {
		err = r.test()
	}
	if r.passed+len(r.failures)+r.skipped() == 0 && err == nil {
		err = fmt.Errorf("nothing ran")
	}
	if err != nil {
		r.failures = append(r.failures, err.Error())
	}
	r.took = time.Since(began)
	r.out.print(r.name, fmt.Sprintf("ends: %d passed, %d failed, %d skipped in %.0f s, %.0f s of CPU time", r.passed, len(r.failures), r.skipped(), r.took.Seconds(), r.cpu.Seconds()))
}

// exec runs the commands.
func (r *result) exec() {
	for _, command := range r.commands {
		words := strings.Fields(command)
		cmd := exec.Command(words[0], words[1:]...)
		out, err := cmd.CombinedOutput()
		r.cpu += cpuTime(cmd)
		if err != nil {
			r.out.print(r.name, string(out))
			lines := strings.Split(strings.TrimSpace(string(out)), "\n")
			r.failures = append(r.failures, command+excerpt(lines[max(0, len(lines)-mostLines):]))
			continue
		}
		r.passed++
	}
}

// cpuTime returns the CPU time of a command that has ended and of all descendants that were reaped.
func cpuTime(cmd *exec.Cmd) time.Duration {
	if cmd.ProcessState == nil {
		return 0 // it did not start
	}
	return cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
}

func (r *result) test() error {
	list := exec.Command("go", append([]string{"list"}, r.patterns...)...)
	list.Dir, list.Stderr = r.dir, os.Stderr
	text, err := list.Output()
	if err != nil {
		return fmt.Errorf("go list: %w", err)
	}
	packages := slices.DeleteFunc(strings.Fields(string(text)), func(path string) bool {
		return slices.ContainsFunc(r.except, func(end string) bool { return strings.HasSuffix(path, end) })
	})

	dir, err := os.MkdirTemp("", "usher-reports-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	self, err := os.Executable()
	if err != nil {
		return err
	}
	args := []string{"test", "-json", "-count=1", "-timeout=" + r.timeout, packagesAtOnce, "-vet=off", "-exec=" + self} // lint has vetted everything
	env := []string{raceExit, reportsVariable + "=" + dir}
	if r.race {
		args = append(args, "-race")
	}
	if r.beside > 0 {
		binary, err := r.compile()
		defer os.Remove(filepath.Join(r.dir, binary))
		if err != nil {
			return err
		}
		args = append([]string{"tool", "ginkgo", "run", fmt.Sprintf("-procs=%d", r.beside), "-timeout=" + r.timeout, "-output-dir=" + dir, "-label-filter=" + r.label}, specFlags("report.json")...)
		env = []string{raceExit, patience}
		packages = []string{binary}
	}
	cmd := r.goCommand(append(args, packages...)...)
	cmd.Env = append(cmd.Env, env...)
	out, write := io.Pipe()
	cmd.Stdout, cmd.Stderr = write, write
	done := make(chan error)
	go func() {
		err := cmd.Run()
		write.Close()
		done <- err
	}()
	r.read(out)
	err = <-done
	r.cpu += cpuTime(cmd)
	if err := r.readReports(dir); err != nil {
		return err
	}
	for _, path := range r.broken {
		if !slices.ContainsFunc(r.culled, func(p string) bool { return strings.HasSuffix(p, strings.TrimPrefix(path, module)) }) {
			r.failures = append(r.failures, path+": it did not compile, or ended before its tests did, or had a data race"+excerpt(r.words[path]))
		}
	}
	if err != nil && len(r.failures) == 0 {
		return fmt.Errorf("go test: %w", err)
	}
	return nil
}

// goCommand returns a go command in the suite's module. The race detector needs cgo, also in programs that specs build.
func (r *result) goCommand(args ...string) *exec.Cmd {
	cmd := exec.Command("go", args...)
	cmd.Dir, cmd.Env = r.dir, os.Environ()
	if r.race {
		cmd.Env = append(cmd.Env, "CGO_ENABLED=1")
	}
	return cmd
}

// compile compiles a package of specs to a binary in its folder, where ginkgo runs it, and returns the path. Two suites may
// have the same package.
func (r *result) compile() (binary string, err error) {
	binary = filepath.Join(r.patterns[0], filepath.Base(r.name)+".test")
	args := []string{"test", "-c", "-vet=off", "-o", binary}
	if r.race {
		args = append(args, "-race")
	}
	cmd := r.goCommand(append(args, r.patterns[0])...)
	out, err := cmd.CombinedOutput()
	r.cpu += cpuTime(cmd)
	if err != nil {
		return binary, fmt.Errorf("%w%s", err, excerpt(strings.Split(string(out), "\n")))
	}
	return binary, nil
}

// patience is the timeout for events that normally take milliseconds, but not where two suites and
// a race detector share two CPUs.
const patience = "GOMEGA_DEFAULT_EVENTUALLY_TIMEOUT=30s"

// raceExit shortens the one-second sleep of each program with the race detector before it exits:
// reports of its other threads take milliseconds.
const raceExit = "GORACE=atexit_sleep_ms=50"

// specFlags enables all specs of a suite, including long ones, and a report.
func specFlags(report string) []string {
	return []string{"-focus=.", "-no-color", "-silence-skips", "-json-report=" + report}
}

// event is an event of `go doc cmd/test2json`.
type event struct {
	Action, Package, Test, Output string
	Elapsed                       float64 // seconds
}

// read reads the output of go test -json.
func (r *result) read(out io.Reader) {
	r.frames, r.said, r.reasons, r.words = map[string]bool{}, map[string][]string{}, map[string]int{}, map[string][]string{}
	lines := bufio.NewReader(out)
	for {
		line, err := lines.ReadString('\n')
		var e event
		if json.Unmarshal([]byte(line), &e) == nil {
			r.take(e)
		} else if line != "" {
			r.out.print(r.name, line)
		}
		if err != nil {
			return
		}
	}
}

func (r *result) take(e event) {
	test, _, _ := strings.Cut(e.Test, "/")
	id := e.Package + "." + test
	switch {
	case e.Action == "output" || e.Action == "build-output":
		r.lastWords(e)
		if strings.HasPrefix(e.Output, "Running Suite: ") {
			r.frames[id] = true
		}
		switch {
		case strings.HasPrefix(e.Output, "=== ") || strings.Trim(e.Output, "•S \n") == "":
		case test == "" || r.frames[id]:
			r.out.print(r.name, e.Output)
		default: // needed if the test fails
			r.said[id] = append(r.said[id], e.Output)
		}
	case e.Action == "fail" && test == "":
		r.broken = append(r.broken, e.Package)
		for id, said := range r.said { // the output of tests that have not ended
			if strings.HasPrefix(id, e.Package+".") {
				r.out.print(r.name, strings.Join(said, ""))
			}
		}
	case test == "" || e.Test != test || r.frames[id]:
	case e.Action == "pass":
		r.passed++
		r.times = append(r.times, timed{r.name + ": " + id, time.Duration(e.Elapsed * float64(time.Second))})
		delete(r.said, id)
	case e.Action == "skip":
		reason := strings.Join(r.said[id][:min(1, len(r.said[id]))], "") // "    file.go:1: reason"
		_, text, _ := strings.Cut(reason, ": ")
		r.reasons[strings.TrimSpace(text)]++
		delete(r.said, id)
	case e.Action == "fail":
		r.failures = append(r.failures, id+excerpt(append(r.said[id], r.words[e.Package]...)))
		r.culled = append(r.culled, e.Package)
		r.out.print(r.name, strings.Join(r.said[id], ""))
		delete(r.said, id)
	}
}

// unexpected matches the first line of output when a test binary fails outside of its tests.
var unexpected = regexp.MustCompile(`^(WARNING: DATA RACE|panic: |fatal error: |signal: |\*\*\* |Test killed|testing: race detected|exec: WaitDelay)`)

// lastWords keeps such output of a package, and the lines after it.
func (r *result) lastWords(e event) {
	words := r.words[e.Package]
	if unexpected.MatchString(e.Output) || len(words) > 0 && len(words) < mostLines {
		r.words[e.Package] = append(words, e.Output)
	}
}

// mostLines is the maximum number of lines below a failure.
const mostLines = 12

// excerpt returns the lines of a long text to print below a failure in the table, for readers
// that see only the end of the log.
func excerpt(lines []string) string {
	const longest = 1000
	if len(lines) > mostLines {
		// A command's error is at the end of its output.
		lines = slices.Concat(lines[:mostLines/2], []string{"..."}, lines[len(lines)-mostLines/2:])
	}
	var b strings.Builder
	for _, line := range lines {
		if line = strings.TrimRight(line, " \n"); line != "" {
			fmt.Fprintf(&b, "\n    %.*s", longest, line)
		}
	}
	return b.String()
}

// readReports counts specs.
func (r *result) readReports(dir string) error {
	wanted, err := types.ParseLabelFilter(r.label)
	if err != nil {
		return err
	}
	for _, file := range reports(dir) {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		var suites []types.Report
		if err := json.Unmarshal(text, &suites); err != nil {
			return fmt.Errorf("the report of a suite: %w", err)
		}
		for _, s := range suites {
			for _, spec := range s.SpecReports {
				if spec.LeafNodeType == types.NodeTypeIt && !wanted(spec.Labels()) {
					continue // it is in another suite
				}
				r.times = append(r.times, timed{r.name + ": " + cmp.Or(spec.FullText(), spec.LeafNodeType.String()), spec.RunTime})
				switch {
				case spec.Failed():
					r.failures = append(r.failures, fmt.Sprintf("%s (%s)%s", cmp.Or(spec.FullText(), spec.LeafNodeType.String()), spec.LeafNodeLocation,
						excerpt(strings.Split(spec.Failure.Message, "\n"))))
					r.culled = append(r.culled, filepath.ToSlash(s.SuitePath))
				case spec.LeafNodeType != types.NodeTypeIt:
				case spec.State == types.SpecStatePassed:
					r.passed++
				case spec.State == types.SpecStatePending:
					r.reasons["pending"]++
				default:
					r.reasons[cmp.Or(spec.Failure.Message, "its suite could not begin")]++
				}
			}
		}
	}
	return nil
}
