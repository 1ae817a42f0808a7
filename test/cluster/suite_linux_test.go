package cluster

import (
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/vishvananda/netns"

	"github.com/usherproxy/usher/test/cluster/control"
	"github.com/usherproxy/usher/test/lab"
)

func TestCluster(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to make network namespaces")
	}
	if missing := control.Missing(); missing != "" {
		t.Fatal(missing)
	}
	lab.Ask()
	RegisterFailHandler(Fail)
	RunSpecs(t, "usher in a cluster")
}

// controlAddress is the API server's address.
var controlAddress = netip.MustParseAddr("198.51.100.1")

var (
	plane    *control.Plane
	binaries control.Binaries

	// controlSpace is the control plane's namespace: the "outside" of a lab that has no other use.
	controlSpace  *lab.Namespace
	controlHandle netns.NsHandle

	// usherRace is the program under test with the race detector; usherReleased is the release build, for measurements.
	usherRace, usherReleased string
)

// builtFolders contain the built programs.
var builtFolders []string

var _ = AfterSuite(func() {
	for _, dir := range builtFolders {
		Expect(os.RemoveAll(dir)).To(Succeed())
	}
})

var _ = BeforeSuite(func() {
	var err error
	binaries, err = control.Build(GinkgoWriter)
	Expect(err).NotTo(HaveOccurred())
	usherRace, usherReleased = buildUsher("usher", "-race"), buildUsher("usher", "-trimpath")

	controlSpace = lab.New().Outside
	controlSpace.Output("ip", "address", "add", controlAddress.String()+"/32", "dev", "lo")
	controlSpace.Do(func() (err error) {
		controlHandle, err = netns.Get()
		return err
	})
	DeferCleanup(func() { controlHandle.Close() })
	plane = control.Start(controlSpace, controlAddress, binaries)
	prepareCluster()
})

// kubectlUsherRace builds kubectl-usher with the race detector when a spec first needs it.
var kubectlUsherRace = sync.OnceValue(func() string { return buildUsher("kubectl-usher", "-race") })

// buildUsher builds one of usher's programs in its own module, as `make build` does, and returns its path. If the
// environment variable USHER_PROGRAM is set, the tests use that usher instead.
func buildUsher(name string, flags ...string) string {
	GinkgoHelper()
	if program := os.Getenv("USHER_PROGRAM"); program != "" && name == "usher" {
		return program
	}
	dir, err := os.MkdirTemp("", "usher-built-")
	Expect(err).NotTo(HaveOccurred())
	builtFolders = append(builtFolders, dir)
	path := filepath.Join(dir, name)
	cmd := exec.Command("go", append(append([]string{"build"}, flags...), "-o", path, "./cmd/"+name)...)
	cmd.Dir = control.Root()
	if slices.Contains(flags, "-race") {
		cmd.Env = append(os.Environ(), "CGO_ENABLED=1")
	}
	out, err := cmd.CombinedOutput()
	Expect(err).NotTo(HaveOccurred(), "%s", out)
	return path
}
