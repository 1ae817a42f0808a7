// Package test tests usher as a whole. It starts the program as a user does, in network namespaces that represent a
// node, its Pods and clients. Tests of a single package are in that package's folder.
package test

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gexec"

	"github.com/usherproxy/usher/test/lab"
)

func TestUsher(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "usher")
}

// serial marks specs that measure, or need more than one core. No other spec of this folder runs at the same time. In
// test/all they are a suite, which runs beside others.
var serial = []any{Serial, Label("serial")}

// usherBinary is the program under test. It is built with the race detector if long specs are enabled.
var usherBinary string

var _ = SynchronizedBeforeSuite(func() []byte {
	// go test caches a result until a file that the test has looked at changes. The program is built from all of these.
	Expect(filepath.WalkDir(root(), func(_ string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() && (entry.Name()[0] == '.' || entry.Name() == "bin") {
			return fs.SkipDir
		}
		return err
	})).To(Succeed())
	path, err := build("usher")
	Expect(err).NotTo(HaveOccurred())
	return []byte(path)
}, func(path []byte) { usherBinary = string(path) })

var _ = SynchronizedAfterSuite(func() {
	if GinkgoParallelProcess() != 1 { // the others run the programs of the first
		gexec.CleanupBuildArtifacts()
	}
}, gexec.CleanupBuildArtifacts)

// build builds a program, with the race detector if long specs are enabled. The specs themselves, and their clients and
// endpoints, need none: it would only take CPU time from the programs.
func build(program string) (string, error) {
	path := "github.com/usherproxy/usher/cmd/" + program
	if lab.Asked() {
		return gexec.BuildWithEnvironment(path, []string{"CGO_ENABLED=1"}, "-race")
	}
	return gexec.Build(path)
}

var builtKubectlUsher = sync.OnceValues(func() (string, error) { return build("kubectl-usher") })

// kubectlUsher returns the path of kubectl-usher. It is built on first use, with the options of usherBinary.
func kubectlUsher() string {
	GinkgoHelper()
	path, err := builtKubectlUsher()
	Expect(err).NotTo(HaveOccurred())
	return path
}

// releasedUsher and releasedKubectlUsher build the programs once with release options: static, and without the race
// detector, which needs 10 times the CPU time.
var releasedUsher = sync.OnceValues(func() (string, error) {
	return gexec.BuildWithEnvironment("github.com/usherproxy/usher/cmd/usher", []string{"CGO_ENABLED=0"}, "-trimpath", "-ldflags=-s -w")
})

var releasedKubectlUsher = sync.OnceValues(func() (string, error) {
	return gexec.BuildWithEnvironment("github.com/usherproxy/usher/cmd/kubectl-usher", []string{"CGO_ENABLED=0"}, "-trimpath", "-ldflags=-s -w")
})

// here is the folder of this suite, in which go test starts it.
var here, _ = os.Getwd()

// root is the top folder of the repository.
func root() string { return filepath.Dir(here) }

// missing skips the test if a program is not installed.
func missing(program string) {
	GinkgoHelper()
	if _, err := exec.LookPath(program); err != nil {
		Skip(program + " is not installed")
	}
}
