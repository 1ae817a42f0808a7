package lab

import (
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"

	"github.com/onsi/ginkgo/v2"
)

// UserNamespaces skips a spec if user namespaces are not available: in a chroot for instance, or where
// a sysctl or a security module forbids it (user_namespaces(7)).
func UserNamespaces() {
	ginkgo.GinkgoHelper()
	if err := userNamespace(); err != nil {
		ginkgo.Skip(fmt.Sprintf("needs user namespaces, which are not to be had here: %v", err))
	}
}

var userNamespace = sync.OnceValue(func() error {
	cmd := exec.Command("true")
	cmd.SysProcAttr = InNamespaces(syscall.CLONE_NEWUSER)
	return cmd.Run()
})

// InNamespaces starts a command in new namespaces (the CLONE_NEW flags of
// clone(2)). For a non-root user it adds a new user namespace.
func InNamespaces(flags uintptr) *syscall.SysProcAttr {
	a := &syscall.SysProcAttr{Cloneflags: flags}
	if flags&syscall.CLONE_NEWUSER != 0 || os.Geteuid() != 0 {
		a.Cloneflags |= syscall.CLONE_NEWUSER
		a.UidMappings = []syscall.SysProcIDMap{{HostID: os.Geteuid(), Size: 1}}
		a.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getegid(), Size: 1}}
	}
	return a
}
