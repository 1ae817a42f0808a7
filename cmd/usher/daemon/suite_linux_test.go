package daemon

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	"github.com/vishvananda/netlink"
)

// inside is set in the environment of a process in a dedicated network namespace.
const inside = "DAEMON_TEST_INSIDE"

// noNamespace is the reason why this process does not run in a dedicated network namespace.
var noNamespace error

// TestMain runs the tests in a dedicated network namespace: daemons change the kernel, and the lock of the portals
// belongs to the namespace.
func TestMain(m *testing.M) {
	if os.Getenv(inside) != "" {
		lo, err := netlink.LinkByName("lo")
		if err == nil {
			err = netlink.LinkSetUp(lo)
		}
		noNamespace = err
		os.Exit(m.Run())
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), inside+"=yes")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	if os.Geteuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Geteuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getegid(), Size: 1}}
	}
	if noNamespace = cmd.Start(); noNamespace != nil {
		os.Exit(m.Run())
	}
	if cmd.Wait() != nil {
		os.Exit(1)
	}
}

// ownNamespace skips a spec that would change the machine's own network.
func ownNamespace() {
	if noNamespace != nil {
		Skip(fmt.Sprint("requires the capability to create a network namespace: ", noNamespace))
	}
}
