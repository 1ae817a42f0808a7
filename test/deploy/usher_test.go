package main

import (
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

var runHelp = sync.OnceValues(func() (string, error) {
	usher := filepath.Join(GinkgoT().TempDir(), "usher")
	if out, err := exec.Command("go", "build", "-C", root, "-o", usher, "./cmd/usher").CombinedOutput(); err != nil {
		return string(out), err
	}
	out, err := exec.Command(usher, "run", "--help").CombinedOutput()
	return string(out), err
})

// usherHelp returns what 'usher run --help' says.
func usherHelp() string {
	GinkgoHelper()
	help, err := runHelp()
	Expect(err).NotTo(HaveOccurred(), help)
	return help
}

// expectFlag fails unless usher has the flag of an argument.
func expectFlag(arg string) {
	GinkgoHelper()
	flag, _, _ := strings.Cut(arg, "=")
	known := regexp.MustCompile(`(?m)^ +` + regexp.QuoteMeta(flag) + `\b`).MatchString(usherHelp())
	Expect(known).To(BeTrue(), "'usher run' has no flag %s", flag)
}

// drainTimeout returns the default of --drain-timeout.
func drainTimeout() time.Duration {
	GinkgoHelper()
	m := regexp.MustCompile(`--drain-timeout .*\(default (\S+)\)`).FindStringSubmatch(usherHelp())
	Expect(m).NotTo(BeNil())
	d, err := time.ParseDuration(m[1])
	Expect(err).NotTo(HaveOccurred())
	return d
}
