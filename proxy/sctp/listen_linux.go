//go:build !386

package sctp

import (
	"errors"
	"net"
	"net/netip"
	"os"

	"github.com/ishidawataru/sctp"
	"golang.org/x/sys/unix"

	"github.com/usherproxy/usher/proxy/forward"
)

// maxStreams is the number of streams in each direction that a client can get. An endpoint, which is selected later,
// cannot be asked for more. The kernel's default is 10, and each stream takes about 30 bytes of kernel memory per
// association, whether it is used or not.
const maxStreams = 256

// Listener accepts associations on one address.
type Listener struct{ *socket }

// Listen returns a socket that listens on addr, which must not be the unspecified address. Otherwise the kernel would
// announce all addresses of this machine to every client, and clients would use them. addr may be an address that this
// machine does not have yet.
func Listen(sockets forward.Sockets, addr netip.AddrPort) (fd int, err error) {
	if fd, err = sockets.BindSCTP(addr); err != nil {
		return -1, err
	}
	if err = listen(fd); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// NewListener takes over a socket that Listen has returned, in this or another process.
func NewListener(fd int) (*Listener, error) {
	s, err := newSocket(fd)
	if err != nil {
		return nil, err
	}
	// Another process may have set this option to 0 s, since its Close aborts the associations that wait.
	err = s.control(func(fd int) error {
		return unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{})
	})
	if err != nil {
		s.Close()
		return nil, err
	}
	return &Listener{s}, nil
}

func listen(fd int) error {
	if err := sctp.NewSCTPConn(fd, nil).SetInitMsg(maxStreams, maxStreams, 0, 0); err != nil {
		return os.NewSyscallError("setsockopt SCTP_INITMSG", err)
	}
	// Associations inherit it: nothing is probed before they are accepted.
	if err := setHeartbeat(fd, netip.AddrPort{}, false); err != nil {
		return err
	}
	return os.NewSyscallError("listen", unix.Listen(fd, unix.SOMAXCONN))
}

// Accept waits for the next association. After Close the error is [net.ErrClosed].
func (l *Listener) Accept() (*Conn, error) {
	var fd forward.Socket
	var from netip.AddrPort
	var failed error
	err := l.raw.Read(func(listener uintptr) bool {
		fd, from, failed = forward.Accept(int(listener))
		return failed != unix.EAGAIN
	})
	switch {
	case err == nil && failed == nil:
		return accepted(int(fd), from)
	case l.closed.Load():
		return nil, net.ErrClosed
	case err != nil:
		return nil, err
	}
	return nil, os.NewSyscallError("accept", failed)
}

// accepted makes a Conn of an accepted descriptor. For an association that has ended meanwhile it returns ECONNABORTED,
// as accept(2) does.
func accepted(fd int, from netip.AddrPort) (*Conn, error) {
	s, err := newSocket(fd)
	if err != nil {
		return nil, err
	}
	err = s.control(func(fd int) error {
		if err := setOptions(fd); err != nil {
			return err
		}
		return setHeartbeat(fd, from, true)
	})
	if err != nil {
		s.Close()
	} else {
		var c *Conn
		if c, err = newConn(s, from); err == nil {
			return c, nil
		}
	}
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOTCONN) {
		return nil, unix.ECONNABORTED
	}
	return nil, err
}

// Close stops accepting. Associations that wait to be accepted are aborted, unless leave is set, since another process
// has the socket.
func (l *Listener) Close(leave bool) error {
	if !leave {
		_ = l.SetLinger(0) // fails only on a closed socket
	}
	return l.socket.Close()
}
