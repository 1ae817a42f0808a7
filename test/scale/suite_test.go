package scale

import (
	"fmt"
	"os"
	"runtime"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gexec"

	"github.com/usherproxy/usher/test/lab"
)

func TestScale(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "scale")
}

// usherBinary is the release build: the race detector makes everything several times slower and larger.
var usherBinary string

var _ = BeforeSuite(func() {
	lab.Long()
	var err error
	usherBinary, err = gexec.Build("github.com/usherproxy/usher/cmd/usher")
	Expect(err).NotTo(HaveOccurred())
})

var _ = AfterSuite(gexec.CleanupBuildArtifacts)

// slack returns the factor by which a duration may exceed its target. If tests of other packages or other jobs of a CI
// machine run concurrently, it is so large that a check only detects hangs.
func slack() time.Duration {
	if busy() {
		return 10
	}
	return 2
}

// figure prints a figure with its target.
func figure(format string, args ...any) {
	fmt.Printf("\nfigure: "+format+"\n", args...)
}

// busy reports whether, in the last minute, twice as many threads wanted to run as there are CPUs. This suite alone
// causes fewer.
func busy() bool {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return false
	}
	var load float64
	if _, err := fmt.Sscan(string(text), &load); err != nil {
		return false
	}
	return load > 2*float64(runtime.NumCPU())
}
