package main

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"text/tabwriter"
	"time"
)

func main() {
	if dir := os.Getenv(reportsVariable); dir != "" {
		fmt.Fprintln(os.Stderr, become(dir, os.Args[1:]))
		os.Exit(1)
	}
	// These have few goroutines; test/vm runs its specs elsewhere. The programs that other suites test run their code
	// with the race detector.
	plain := suite{name: "plain", dir: ".", timeout: "20m", patterns: []string{"./config/strict", "./config/translate", "./portal/address", "./portal/iptables", "./portal/modes", "./portal/nftables", "./portal/none", "./portal/redirect", "./test/bench/report", "./test/cross", "./test/vm"}}
	packages := suite{name: "packages", dir: ".", race: true, timeout: "20m", patterns: []string{"./..."}, except: []string{"/test", "/test/house", "/test/monitoring", "/test/scale", "/test/walk"}}
	for _, path := range plain.patterns {
		packages.except = append(packages.except, strings.TrimPrefix(path, "."))
	}
	program := suite{name: "test", dir: ".", timeout: "80m", patterns: []string{"./test"}, beside: 3, label: "!serial", slots: 2}
	serial := suite{name: "serial", dir: ".", timeout: "40m", patterns: []string{"./test"}, beside: 1, label: "serial"}
	cluster := suite{name: "test/cluster", dir: "test/cluster", timeout: "80m", patterns: []string{"./..."}}
	dashboard := suite{name: "test/dashboard", dir: "test/dashboard", timeout: "20m", patterns: []string{"./..."}}
	deploy := suite{name: "test/deploy", dir: "test/deploy", timeout: "20m", patterns: []string{"./..."}}
	ground := suite{name: "test/ground", dir: "test/ground", timeout: "30m", patterns: []string{"."}, beside: 3, slots: 2}
	house := suite{name: "test/house", dir: ".", timeout: "10m", patterns: []string{"./test/house"}} // it has no goroutines, and a race detector would cost a minute
	monitoring := suite{name: "test/monitoring", dir: ".", timeout: "20m", patterns: []string{"./test/monitoring"}, nice: true}
	release := suite{name: "deploy/release", dir: "deploy/release", timeout: "30m", patterns: []string{"./..."}}
	scale := suite{name: "test/scale", dir: ".", timeout: "20m", patterns: []string{"./test/scale"}, slots: 2}
	walk := suite{name: "test/walk", dir: ".", timeout: "20m", patterns: []string{"./test/walk"}}
	prepare := suite{name: "prepare", commands: []string{"test/prepare.sh"}}
	// One after the other, when CPUs are idle.
	lint := suite{name: "lint", commands: []string{"nice -n 19 make lint", "nice -n 19 go run ./test/cross darwin/arm64 windows/amd64"}, nice: true}
	arm64 := suite{name: "arm64", commands: []string{"test/arm64.sh"}}
	stages := []stage{
		{prepare}, // it uses all CPUs; concurrent specs would wait for its results, or for a CPU
		{cluster, program, lint, packages, serial, release, arm64, dashboard, plain, deploy, house}, // the long ones first
		{monitoring, scale, walk, ground}, // scale and ground measure, or have time limits: not at the same time
	}
	if err := limit(stages, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	if !run(os.Stdout, stages...) {
		os.Exit(1)
	}
}

// become replaces this process, which go test has started as its -exec, with a test
// binary. It enables all specs, including long ones, and a report of them in dir.
func become(dir string, args []string) error {
	binary, err := os.ReadFile(args[0])
	if err != nil {
		return err
	}
	// A suite of specs contains this function; the others do not have these flags. The name is
	// joined here, or the test binary of this program would contain it, too.
	runSpecs := strings.Join([]string{"github.com/onsi/ginkgo/v2", "RunSpecs"}, ".")
	if bytes.Contains(binary, []byte(runSpecs)) {
		report := fmt.Sprintf("%s/%d-%d.json", dir, os.Getpid(), time.Now().UnixNano()) // PIDs are reused
		flags := specFlags(report)
		for _, arg := range args {
			if timeout, ok := strings.CutPrefix(arg, "-test.timeout="); ok {
				flags = append(flags, "-timeout="+timeout) // Ginkgo's own default is 1 hour
			}
		}
		for _, flag := range flags {
			args = append(args, "-ginkgo."+strings.TrimPrefix(flag, "-"))
		}
	}
	if err := os.Unsetenv(reportsVariable); err != nil {
		return err
	}
	// Without cgo, programs that tests build reuse libraries that `make build` has compiled. Tests may request cgo.
	if err := os.Setenv("CGO_ENABLED", "0"); err != nil {
		return err
	}
	return syscall.Exec(args[0], args, append(os.Environ(), patience))
}

// limit removes all suites but those with the names, if there are any names.
func limit(stages []stage, names []string) error {
	if len(names) == 0 {
		return nil
	}
	left := map[string]bool{}
	for i := range stages {
		stages[i] = slices.DeleteFunc(stages[i], func(s suite) bool { return !slices.Contains(names, s.name) })
		for _, s := range stages[i] {
			left[s.name] = true
		}
	}
	for _, name := range names {
		if !left[name] {
			return fmt.Errorf("no suite is called %q: see the table in main.go", name)
		}
	}
	return nil
}

// A stage is a list of suites. They begin in the order of the list, each once it has its slots.
type stage []suite

// slots is the number of slots for two CPUs. With more, specs fail because they wait for a CPU.
const slots = 3

// run runs all stages, prints the results, and reports whether all succeeded.
func run(out io.Writer, stages ...stage) bool {
	var results []*result
	shared := &sharedWriter{w: out}
	for _, suites := range stages {
		free := make(chan struct{}, slots)
		var running sync.WaitGroup
		for _, s := range suites {
			r := &result{suite: s, out: shared}
			results = append(results, r)
			need := max(1, s.slots)
			if s.nice {
				need = 0
			}
			for range need {
				free <- struct{}{}
			}
			running.Go(func() {
				r.run()
				for range need {
					<-free
				}
			})
		}
		running.Wait()
	}
	return printTable(out, results)
}

func printTable(out io.Writer, results []*result) bool {
	var sum result
	fmt.Fprintln(out)
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "\nsuite\tpassed\tfailed\tskipped\tseconds\tCPU seconds\twhy skipped")
	for _, r := range results {
		var reasons []string
		for reason, count := range r.reasons {
			reasons = append(reasons, fmt.Sprintf("%d: %s", count, reason))
		}
		slices.Sort(reasons)
		fmt.Fprintf(t, "%s\t%d\t%d\t%d\t%.0f\t%.0f\t%s\n", r.name, r.passed, len(r.failures), r.skipped(), r.took.Seconds(), r.cpu.Seconds(), cmp.Or(strings.Join(reasons, "; "), "-"))
		sum.passed += r.passed
		sum.cpu += r.cpu
		sum.failures = append(sum.failures, r.failures...)
		sum.reasons = add(sum.reasons, r.reasons)
		sum.times = append(sum.times, r.times...)
	}
	t.Flush()
	if len(sum.times) > 0 {
		fmt.Fprintln(out, "\nthe slowest specs:")
	}
	slices.SortFunc(sum.times, func(a, b timed) int { return cmp.Compare(b.took, a.took) })
	for _, t := range sum.times[:min(10, len(sum.times))] {
		fmt.Fprintf(out, "%5.0f s  %s\n", t.took.Seconds(), t.spec)
	}
	fmt.Fprintln(out)
	for _, r := range results {
		for _, failure := range r.failures {
			lines := strings.Split(failure, "\n")
			lines = lines[:min(len(lines), max(1, mostFailureLines/len(sum.failures)))] // all names must fit in
			fmt.Fprintf(out, "FAILED %s: %s\n", r.name, strings.Join(lines, "\n"))
		}
	}
	fmt.Fprintf(out, "%.0f s of CPU time\n%d passed, %d failed, %d skipped\n", sum.cpu.Seconds(), sum.passed, len(sum.failures), sum.skipped())
	return len(sum.failures) == 0
}

// mostFailureLines is the number of lines for all failures together at the end, for readers
// that see only the end of the log.
const mostFailureLines = 60

// sharedWriter makes concurrent suites print whole lines.
type sharedWriter struct {
	mu sync.Mutex
	w  io.Writer
}

func (s *sharedWriter) print(suite, line string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fmt.Fprintf(s.w, "%-14s | %s\n", suite, strings.TrimRight(line, "\n"))
}

// reports returns the report files of suites of specs.
func reports(dir string) []string {
	files, _ := filepath.Glob(filepath.Join(dir, "*.json")) // its only error is a bad pattern
	return files
}
