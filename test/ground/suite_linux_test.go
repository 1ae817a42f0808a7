package ground

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/usherproxy/usher/test/vm"
)

var update = flag.Bool("update", false, "write what came of the grounds that ran into docs/requirements.md")

// patience is the time that an operation may take.
const patience = 20 * time.Second

// page is the path of the page with the table, relative to folder test.
const page = "../docs/requirements.md"

// runsc is gVisor's program, which is built once.
var runsc string

func TestGrounds(t *testing.T) {
	RegisterFailHandler(Fail)
	if err := os.Chdir(".."); err != nil { // package vm finds its kernels relative to that folder
		t.Fatal(err)
	}
	RunSpecs(t, "grounds")
}

// result is the output of one check: see folder checks.
type result struct {
	Check, Reason, Portal string
	OK                    bool
	Seconds               float64
}

var (
	programs string                  // folder with usher and the checks
	ran      = map[string][]string{} // lines of the page, by ground
)

// The first process builds for all.
var _ = SynchronizedBeforeSuite(func() []byte {
	if os.Geteuid() != 0 {
		return nil // each spec reports that
	}
	dir, err := os.MkdirTemp("", "ground-")
	Expect(err).NotTo(HaveOccurred())
	for _, b := range []struct{ module, program, path string }{
		{"..", "./cmd/usher", filepath.Join(dir, "usher")},
		{"..", "./cmd/kubectl-usher", filepath.Join(dir, "kubectl-usher")},
		{"ground", "./checks", filepath.Join(dir, "checks")},
		{"ground", "gvisor.dev/gvisor/runsc", "../../.cache/runsc"},
	} {
		build := exec.Command("go", "build", "-C", b.module, "-trimpath", "-ldflags=-s -w", "-o", b.path, b.program)
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		out, err := build.CombinedOutput()
		Expect(err).NotTo(HaveOccurred(), string(out))
	}
	return []byte(dir)
}, func(dir []byte) {
	programs = string(dir)
	var err error
	runsc, err = filepath.Abs("../.cache/runsc")
	Expect(err).NotTo(HaveOccurred())
})

var _ = SynchronizedAfterSuite(func() {
	if *update {
		Expect(writePage()).To(Succeed())
	}
}, func() {
	if programs != "" {
		Expect(os.RemoveAll(programs)).To(Succeed())
	}
})

var _ = Describe("usher in", func() {
	for _, g := range grounds {
		It(g.name, func() {
			if lack := g.lack(); lack != "" {
				Skip(lack)
			}
			g.expect(g.run())
		})
	}
})

// It takes longest, so it is first.
var _ = Describe("usher in", SpecPriority(1), func() {
	It(oldKernel.name, func() {
		if lack := oldKernel.lack(); lack != "" {
			Skip(lack)
		}
		if lack := vm.OldPC.Missing(); lack != "" {
			Skip(lack)
		}
		image, err := vm.OldPC.NewImage(programs, filepath.Join(programs, "checks"), filepath.Join(programs, "usher"), filepath.Join(programs, "kubectl-usher"))
		Expect(err).NotTo(HaveOccurred())
		_, console := image.Boot(oldKernel.name)
		oldKernel.expect(results(console), console)
	})
})

// oldKernel is Debian 11's.
var oldKernel = ground{name: "Linux 5.10"}

// run runs the checks in the ground, and returns their results and the complete output.
func (g ground) run() ([]result, string) {
	GinkgoHelper()
	dir, err := os.MkdirTemp("", "ground-")
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(os.RemoveAll, dir)
	Expect(os.Chmod(dir, 0o755)).To(Succeed())
	for _, name := range []string{"usher", "kubectl-usher", "checks"} {
		binary, err := os.ReadFile(filepath.Join(programs, name))
		Expect(err).NotTo(HaveOccurred())
		Expect(os.WriteFile(filepath.Join(dir, name), binary, 0o755)).To(Succeed())
	}
	Expect(os.Mkdir(filepath.Join(dir, "tmp"), 0o755)).To(Succeed())
	Expect(os.Chmod(filepath.Join(dir, "tmp"), 0o1777)).To(Succeed())
	args := g.command(dir)
	cmd := exec.Command(args[0], args[1:]...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	Expect(cmd.Start()).To(Succeed())
	timer := time.AfterFunc(10*time.Minute, func() { _ = cmd.Process.Kill() })
	defer timer.Stop()
	_ = cmd.Wait() // its results count, not its exit code
	return results(out.String()), out.String()
}

func results(out string) (all []result) {
	for line := range strings.Lines(out) {
		var r result
		if json.Unmarshal([]byte(line), &r) == nil && r.Check != "" {
			all = append(all, r)
		}
	}
	return all
}

// expect expects that the page contains the results of the checks.
func (g ground) expect(all []result, out string) {
	GinkgoHelper()
	for _, r := range all {
		GinkgoWriter.Printf("%6.1f s  %-30s %v %s\n", r.Seconds, r.Check, r.OK, r.Reason)
	}
	Expect(all).NotTo(BeEmpty(), out)
	Expect(all[len(all)-1].Check).To(Equal(last), "all checks ran:\n%s", out)
	lines := g.lines(all)
	fmt.Fprintln(GinkgoWriter, strings.Join(lines, "\n"))
	ran[g.name] = lines
	if *update {
		return
	}
	text, err := os.ReadFile(page)
	Expect(err).NotTo(HaveOccurred())
	// Messages may differ between machines; the set of failures may not.
	shown := linesOf(string(text), g.name)
	Expect(shown).NotTo(BeEmpty(), page)
	Expect(shown[0]).To(Equal(lines[0]), "%s; make grounds writes it", page)
	for _, r := range all {
		listed := slices.ContainsFunc(shown[1:], func(item string) bool { return strings.Contains(strings.SplitN(item, "*", 3)[1], r.Check) })
		Expect(listed).To(Equal(!r.OK), "%s: %s: %s; make grounds writes it", page, r.Check, r.Reason)
	}
}

// last is the last check.
const last = "demo"

// portals are the checks that have a column in the table.
var portals = []string{"portal iptables", "portal nftables", "portal address", "portal none"}

// lines returns the page's lines about a ground: its row of the table, and an item for each reason of failures.
func (g ground) lines(all []result) []string {
	row := "| " + g.name
	chosen, passed, others := "–", 0, 0
	var reasons []string
	checks := map[string][]string{}
	for _, r := range all {
		if slices.Contains(portals, r.Check) {
			row += map[bool]string{true: " | yes", false: " | no"}[r.OK]
		} else {
			others++
			if r.OK {
				passed++
			}
		}
		if r.Portal != "" && chosen == "–" {
			chosen = "`" + r.Portal + "`"
		}
		if r.OK {
			continue
		}
		reason := strings.NewReplacer("\n", "; ", "|", "/", "<", "&lt;").Replace(r.Reason)
		if !slices.Contains(reasons, reason) {
			reasons = append(reasons, reason)
		}
		checks[reason] = append(checks[reason], r.Check)
	}
	lines := []string{fmt.Sprintf("%s | %s | %d of %d |", row, chosen, passed, others)}
	for _, reason := range reasons {
		lines = append(lines, fmt.Sprintf("- %s: *%s*: %s", g.name, strings.Join(checks[reason], ", "), reason))
	}
	return lines
}

// linesOf returns the lines of the page about a ground.
func linesOf(text, name string) (lines []string) {
	for line := range strings.Lines(text) {
		if line = strings.TrimSuffix(line, "\n"); strings.HasPrefix(line, "| "+name+" |") || strings.HasPrefix(line, "- "+name+": ") {
			lines = append(lines, line)
		}
	}
	return lines
}

const (
	begin = "<!-- what test/ground has found, written by make grounds -->\n"
	end   = "<!-- end -->\n"
)

// writePage writes the results of ran into the page. It keeps the lines of other grounds.
func writePage() error {
	b, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	before, rest, _ := strings.Cut(string(b), begin)
	between, after, ok := strings.Cut(rest, end)
	if !ok {
		return fmt.Errorf("%s has no place for the table", page)
	}
	var rows, items string
	for _, g := range append(grounds[:len(grounds):len(grounds)], oldKernel) {
		lines := ran[g.name]
		if lines == nil {
			lines = linesOf(between, g.name)
		}
		for i, line := range lines {
			if i == 0 {
				rows += line + "\n"
			} else {
				items += line + "\n"
			}
		}
	}
	table := "| Environment | iptables | nftables | address | none | auto selects | other checks passed |\n|---|---|---|---|---|---|---|\n" + rows + "\nChecks that fail, and the message of usher or of the client:\n\n" + items
	return os.WriteFile(page, []byte(before+begin+table+end+after), 0o644)
}
