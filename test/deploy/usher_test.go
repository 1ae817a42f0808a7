package deploy

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

var built string // path of the program after the first build

var _ = AfterSuite(func() {
	if built != "" {
		Expect(os.RemoveAll(filepath.Dir(built))).To(Succeed())
	}
})

// usherProgram builds usher and returns the program's path.
func usherProgram() string {
	GinkgoHelper()
	if built == "" {
		dir, err := os.MkdirTemp("", "usher-deploy-")
		Expect(err).NotTo(HaveOccurred())
		built = filepath.Join(dir, "usher")
		out, err := exec.Command("go", "build", "-C", root, "-o", built, "./cmd/usher").CombinedOutput()
		Expect(err).NotTo(HaveOccurred(), "%s", out)
	}
	return built
}

// usherHelp returns the output of 'usher run --help-all'.
func usherHelp() string {
	GinkgoHelper()
	out, err := exec.Command(usherProgram(), "run", "--help-all").CombinedOutput()
	Expect(err).NotTo(HaveOccurred(), "%s", out)
	return string(out)
}

// expectFlag fails unless usher has the flag in arg.
func expectFlag(arg string) {
	GinkgoHelper()
	flag, _, _ := strings.Cut(arg, "=")
	known := regexp.MustCompile(`(?m)^ +` + regexp.QuoteMeta(flag) + `\b`).MatchString(usherHelp())
	Expect(known).To(BeTrue(), "'usher run' has no flag %s", flag)
}

// drainTimeout returns the default of --drain-timeout.
func drainTimeout() time.Duration {
	GinkgoHelper()
	m := regexp.MustCompile(`(?s)\n  +--drain-timeout .*?\(default\s+(\S+)\)`).FindStringSubmatch(usherHelp())
	Expect(m).NotTo(BeNil())
	d, err := time.ParseDuration(m[1])
	Expect(err).NotTo(HaveOccurred())
	return d
}
