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

// CheckKernel tries the system calls that Services of a family require, on temporary sockets. docs/requirements.md has
// the list. any is the unspecified address of the family. The error names the call that failed due to an old kernel,
// gVisor, or a system call filter (seccomp(2)). An unsupported family and a temporary lack of resources are no errors.
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
	// These calls send no datagram. They may receive and lose a stray datagram.
	var none mmsghdr
	if _, _, errno := unix.RawSyscall6(unix.SYS_SENDMMSG, uintptr(udp), uintptr(unsafe.Pointer(&none)), 0, 0, 0, 0); errno != 0 {
		return fmt.Errorf("sending datagrams: %w", os.NewSyscallError("sendmmsg", errno))
	}
	if _, err := NewBatch(2).Receive(udp, 0, 2); err != nil && err != unix.EAGAIN {
		return fmt.Errorf("receiving datagrams: %w", os.NewSyscallError("recvmmsg", err))
	}
	return nil
}

// tryAccept tries to accept a connection. There should be none; it closes a stray one.
func tryAccept(listener int) error {
	switch client, _, err := Accept(listener); err {
	case nil:
		return client.Close()
	case unix.EAGAIN:
		return nil
	default:
		return fmt.Errorf("accepting: %w", os.NewSyscallError("accept4", err))
	}
}
