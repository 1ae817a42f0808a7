package netns

import (
	"encoding/gob"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/usherproxy/usher/portal/fdpass"
	"github.com/usherproxy/usher/portal/kernel"
)

// Namespace is a network namespace, seen from outside. Its methods are safe for concurrent use.
type Namespace struct {
	helper *exec.Cmd
	ended  *os.File // the read end of the pipe for the command's exit status

	lineMu      sync.Mutex // guards the fields below
	line        *net.UnixConn
	socketPools map[socketKind]*socketPool

	callsMu sync.Mutex // guards the fields below: one call at a time
	calls   *net.UnixConn
	encoder *gob.Encoder
	decoder *gob.Decoder
}

// Start makes a namespace, and returns when it is set up except for Services. The caller closes it.
func Start(o Options) (*Namespace, error) {
	line, lineInside, err := pair(unix.SOCK_SEQPACKET)
	if err != nil {
		return nil, err
	}
	defer lineInside.Close()
	calls, callsInside, err := pair(unix.SOCK_STREAM)
	if err != nil {
		line.Close()
		return nil, err
	}
	defer callsInside.Close()
	ended, endedInside, err := os.Pipe()
	if err != nil {
		line.Close()
		calls.Close()
		return nil, fmt.Errorf("pipe: %w", err)
	}
	defer endedInside.Close()
	n := &Namespace{line: line, socketPools: map[socketKind]*socketPool{}, calls: calls, ended: ended, encoder: gob.NewEncoder(calls), decoder: gob.NewDecoder(calls)}
	n.helper = exec.Command("/proc/self/exe", o.Self...)
	n.helper.Stdin, n.helper.Stdout, n.helper.Stderr = os.Stdin, os.Stdout, os.Stderr
	n.helper.ExtraFiles = []*os.File{lineInside, callsInside, endedInside} // in the order of Inside
	n.helper.SysProcAttr = newNamespaces()
	if err := n.helper.Start(); err != nil {
		n.helper = nil
		n.Close()
		return nil, forbidden(err)
	}
	if _, err := n.call(request{SetUp: &setUp{o.ResolvConf}}); err != nil {
		n.Close()
		return nil, forbidden(err)
	}
	return n, nil
}

// Close ends every process inside, and with them the namespace. It waits for that.
func (n *Namespace) Close() {
	n.line.Close()
	n.calls.Close()
	if n.helper != nil {
		_ = n.helper.Wait() // its exit status does not matter
	}
	n.ended.Close()
}

// newNamespaces returns the helper's namespaces. Root needs no user namespace. Other users keep their user and group
// IDs, so that file owners stay the same, and have capabilities over the namespace.
//
// The helper is in a separate process group: keys typed to end or stop the command do not signal it.
func newNamespaces() *syscall.SysProcAttr {
	a := &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS, Setpgid: true}
	if mayAdminister() {
		return a
	}
	a.Cloneflags |= unix.CLONE_NEWUSER
	a.UidMappings = []syscall.SysProcIDMap{{ContainerID: os.Geteuid(), HostID: os.Geteuid(), Size: 1}}
	a.GidMappings = []syscall.SysProcIDMap{{ContainerID: os.Getegid(), HostID: os.Getegid(), Size: 1}}
	a.AmbientCaps = []uintptr{unix.CAP_NET_ADMIN, unix.CAP_SYS_ADMIN}
	return a
}

// mayAdminister reports whether this process can make and change namespaces without a user namespace.
func mayAdminister() bool {
	has, err := kernel.Capabilities()
	const needed = 1<<unix.CAP_NET_ADMIN | 1<<unix.CAP_SYS_ADMIN | 1<<unix.CAP_NET_BIND_SERVICE
	return err == nil && has&needed == needed
}

// forbidden explains why a namespace cannot be made, as far as the system shows.
func forbidden(err error) error {
	err = fmt.Errorf("creating a network namespace: %w", err)
	if !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.EACCES) && !errors.Is(err, unix.ENOSPC) && !errors.Is(err, unix.EINVAL) {
		return err
	}
	for _, s := range []struct{ sysctl, forbids string }{
		{"kernel.unprivileged_userns_clone", "0"}, // Debian's
		{"kernel.apparmor_restrict_unprivileged_userns", "1"},
		{"user.max_user_namespaces", "0"},
		{"user.max_net_namespaces", "0"},
		{"user.max_mnt_namespaces", "0"},
	} {
		value, readErr := os.ReadFile("/proc/sys/" + strings.ReplaceAll(s.sysctl, ".", "/"))
		if readErr == nil && strings.TrimSpace(string(value)) == s.forbids {
			return fmt.Errorf("%w: %s is %s, so only root can create one; "+insteadOf, err, s.sysctl, s.forbids)
		}
	}
	return fmt.Errorf("%w: non-root users cannot create one here, possibly because this is a container; "+insteadOf, err)
}

const insteadOf = "'kubectl usher connect' works without one"

// pair returns two connected sockets: one for this process, and one for the helper.
func pair(kind int) (*net.UnixConn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("socketpair: %w", err)
	}
	theirs := os.NewFile(uintptr(fds[1]), "inside")
	ours, err := fdpass.Conn(os.NewFile(uintptr(fds[0]), "outside"))
	if err != nil {
		theirs.Close()
		return nil, nil, err
	}
	return ours, theirs, nil
}
