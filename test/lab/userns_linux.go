package lab

import (
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"

	"github.com/onsi/ginkgo/v2"
)

// UserNamespaces skips a spec where none can be made: in a chroot for instance, or where
// a sysctl or a security module forbids it (user_namespaces(7)).
func UserNamespaces() {
	ginkgo.GinkgoHelper()
	if err := userNamespace(); err != nil {
		ginkgo.Skip(fmt.Sprintf("needs user namespaces, which are not to be had here: %v", err))
	}
}

var userNamespace = sync.OnceValue(func() error {
	cmd := exec.Command("true")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{HostID: os.Getegid(), Size: 1}},
	}
	return cmd.Run()
})
