//go:build !386

package sctp

import (
	"encoding/binary"
	"net/netip"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/ishidawataru/sctp"
	"golang.org/x/sys/unix"

	"github.com/usherproxy/usher/proxy/forward"
)

// socket is a descriptor that the runtime polls.
type socket struct {
	file   *os.File
	raw    syscall.RawConn
	closed atomic.Bool
}

// newSocket takes over a non-blocking descriptor.
func newSocket(fd int) (*socket, error) {
	file := os.NewFile(uintptr(fd), "sctp")
	raw, err := file.SyscallConn()
	if err != nil {
		file.Close()
		return nil, err
	}
	return &socket{file: file, raw: raw}, nil
}

// control calls f with the descriptor.
func (s *socket) control(f func(fd int) error) error {
	var failed error
	if err := s.raw.Control(func(fd uintptr) { failed = f(int(fd)) }); err != nil {
		return err
	}
	return failed
}

// SyscallConn gives access to the descriptor.
func (s *socket) SyscallConn() (syscall.RawConn, error) { return s.raw, nil }

// SetLinger with 0 makes Close abort the association.
func (s *socket) SetLinger(seconds int) error {
	return s.control(func(fd int) error {
		return unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1, Linger: int32(seconds)})
	})
}

// SetReadDeadline is as in package net.
func (s *socket) SetReadDeadline(t time.Time) error { return s.file.SetReadDeadline(t) }

// SetWriteDeadline is as in package net.
func (s *socket) SetWriteDeadline(t time.Time) error { return s.file.SetWriteDeadline(t) }

// Close closes the socket. Calls in progress return an error.
func (s *socket) Close() error {
	s.closed.Store(true)
	return s.file.Close()
}

// localAddr returns the address that the socket is bound to.
func (s *socket) localAddr() (addr netip.AddrPort, err error) {
	err = s.control(func(fd int) (err error) {
		addr, err = forward.LocalAddr(fd)
		return err
	})
	return addr, err
}

// setOptions sets the options of every association. Messages leave at once (SCTP_NODELAY), and arrive with their stream
// and identifier. The end of the association is reported in order with the messages.
func setOptions(fd int) error {
	if err := unix.SetsockoptInt(fd, sctp.SOL_SCTP, sctp.SCTP_NODELAY, 1); err != nil {
		return os.NewSyscallError("setsockopt SCTP_NODELAY", err)
	}
	const events = sctp.SCTP_EVENT_DATA_IO | sctp.SCTP_EVENT_ASSOCIATION | sctp.SCTP_EVENT_PARTIAL_DELIVERY
	return os.NewSyscallError("setsockopt SCTP_EVENTS", sctp.NewSCTPConn(fd, nil).SubscribeEvents(events))
}

// setHeartbeat sets whether the peer's address is probed while the association is idle. On a listener, with the zero
// address, it applies to future associations.
func setHeartbeat(fd int, peer netip.AddrPort, on bool) error {
	// struct sctp_paddrparams of linux/sctp.h, which is packed.
	const (
		address = 4
		flags   = 146
		size    = 156
		enable  = 1 // SPP_HB_ENABLE
		disable = 2 // SPP_HB_DISABLE
	)
	var params [size]byte
	if peer.IsValid() {
		raw, _ := forward.RawSockaddr(peer)
		copy(params[address:], raw[:])
	}
	how := uint32(disable)
	if on {
		how = enable
	}
	binary.NativeEndian.PutUint32(params[flags:], how)
	return os.NewSyscallError("setsockopt SCTP_PEER_ADDR_PARAMS",
		unix.SetsockoptString(fd, sctp.SOL_SCTP, sctp.SCTP_PEER_ADDR_PARAMS, string(params[:])))
}
