package forward

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// CheckKernel tests the system calls that Services of a family require, with dedicated sockets: docs/requirements.md
// has the list. The error names the call that failed, because of an old kernel, gVisor, or a filter of system calls
// (seccomp(2)). A missing family is not an error, nor is a temporary lack of resources.
func CheckKernel(any netip.Addr) error {
	err := tryKernel(any)
	for _, errno := range [...]unix.Errno{unix.ENOSYS, unix.EPERM, unix.EACCES, unix.EINVAL, unix.ENOPROTOOPT, unix.EOPNOTSUPP, unix.EPROTONOSUPPORT, unix.ESOCKTNOSUPPORT} {
		if errors.Is(err, errno) {
			return err
		}
	}
	return nil
}

func tryKernel(any netip.Addr) error {
	p, err := NewPoller()
	if err != nil {
		return err
	}
	defer p.Close()
	tcp, err := Sockets(nil).ListenTCP(netip.AddrPortFrom(any, 0), Keepalive{Idle: time.Minute, Interval: time.Minute, Probes: 1})
	if err != nil {
		return fmt.Errorf("a TCP listener: %w", err)
	}
	defer unix.Close(tcp)
	if err := tryAccept(tcp); err != nil {
		return err
	}
	udp, err := Sockets(nil).ListenUDP(netip.AddrPortFrom(any, 0))
	if err != nil {
		return fmt.Errorf("a UDP socket: %w", err)
	}
	defer unix.Close(udp)
	// It sends no datagram. There is none to receive, or a stranger's, which is lost.
	var none mmsghdr
	if _, _, errno := unix.RawSyscall6(unix.SYS_SENDMMSG, uintptr(udp), uintptr(unsafe.Pointer(&none)), 0, 0, 0, 0); errno != 0 {
		return fmt.Errorf("sending datagrams: %w", os.NewSyscallError("sendmmsg", errno))
	}
	if _, err := NewBatch(2).Receive(udp, 0, 2); err != nil && err != unix.EAGAIN {
		return fmt.Errorf("receiving datagrams: %w", os.NewSyscallError("recvmmsg", err))
	}
	return nil
}

// tryAccept accepts a connection: there is none, or a stranger's, which it ends.
func tryAccept(listener int) error {
	switch client, _, err := AcceptTCP(listener); err {
	case nil:
		return client.Close()
	case unix.EAGAIN:
		return nil
	default:
		return fmt.Errorf("accepting: %w", os.NewSyscallError("accept4", err))
	}
}
