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
type Listener struct {
	*socket
	addr netip.AddrPort
}

// Listen listens on addr, which must not be the unspecified address. Otherwise the kernel would announce all addresses
// of this machine to every client, and clients would use them. addr may be an address that this machine does not have
// yet. sockets creates the socket, perhaps in another network namespace; nil means socket(2).
func Listen(addr netip.AddrPort, sockets func(domain, kind, protocol int) (fd int, err error)) (*Listener, error) {
	s, err := openSocket(addr, sockets)
	if err != nil {
		return nil, err
	}
	if err := s.control(listen); err != nil {
		s.Close()
		return nil, err
	}
	return listener(s)
}

// ListenAgain continues to use the socket of a Listener that another process has or had, and takes over the descriptor.
func ListenAgain(fd int) (*Listener, error) {
	s, err := newSocket(fd)
	if err != nil {
		return nil, err
	}
	// The other process may have set this option to 0 s, since its Close aborts the associations that wait.
	err = s.control(func(fd int) error {
		return unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{})
	})
	if err != nil {
		s.Close()
		return nil, err
	}
	return listener(s)
}

func listener(s *socket) (*Listener, error) {
	bound, err := s.localAddr()
	if err != nil {
		s.Close()
		return nil, err
	}
	return &Listener{socket: s, addr: bound}, nil
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

// LocalAddr returns the listen address.
func (l *Listener) LocalAddr() netip.AddrPort { return l.addr }

// Leave stops accepting: another process has the socket, with the waiting associations.
func (l *Listener) Leave() error { return l.socket.Close() }

// Close stops accepting. Associations that wait to be accepted are aborted.
func (l *Listener) Close() error {
	_ = l.SetLinger(0) // fails only on a closed socket
	return l.socket.Close()
}
