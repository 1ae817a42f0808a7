package kernel

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"github.com/usherproxy/usher/portal"
)

// errNoNetAdmin is why most portals do not work for a non-root user.
var errNoNetAdmin = errors.New("CAP_NET_ADMIN is missing: run as root, give the process this capability, or choose --portal=none")

// NeedNetAdmin returns an error if this process may not change rules and routes. If its capabilities are unknown, it
// returns nil and the kernel decides.
func NeedNetAdmin() error {
	if has, err := Capabilities(); err == nil && has&(1<<unix.CAP_NET_ADMIN) == 0 {
		return errNoNetAdmin
	}
	return nil
}

// Capabilities returns the calling thread's effective capabilities below 32, as bits (capabilities(7)).
func Capabilities() (uint32, error) {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData // version 3 writes two
	err := unix.Capget(&header, &data[0])
	return data[0].Effective, err
}

// NotAllowed explains EPERM for a process that has CAP_NET_ADMIN.
const NotAllowed = "the kernel denies rule changes although this process has CAP_NET_ADMIN; the capability is required in the user namespace that owns the network namespace"

// ProbeTransparent returns an error if no socket of the family can be transparent here.
func ProbeTransparent(family portal.Family) error {
	domain, level, option := unix.AF_INET, unix.IPPROTO_IP, unix.IP_TRANSPARENT
	if family.Is6() {
		domain, level, option = unix.AF_INET6, unix.IPPROTO_IPV6, unix.IPV6_TRANSPARENT
	}
	fd, err := unix.Socket(domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	return os.NewSyscallError("setsockopt IP_TRANSPARENT", unix.SetsockoptInt(fd, level, option, 1))
}

// WithMark returns o, without Mark if sockets cannot have one.
func WithMark(o portal.Options) portal.Options {
	if o.Mark == 0 {
		return o
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, int(o.Mark))
		unix.Close(fd)
	}
	if err != nil {
		o.Log.WithError(err).Info("Cannot mark sockets; usher's own packets are not distinguished from clients' packets")
		o.Mark = 0
	}
	return o
}
