package modes

import (
	"path/filepath"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

func TestModes(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "portal/modes")
}

// All network namespaces share the lock of iptables-legacy. The other suites that use it run at the same time.
var _ = BeforeSuite(func() { GinkgoT().Setenv("XTABLES_LOCKFILE", filepath.Join(GinkgoT().TempDir(), "lock")) })
