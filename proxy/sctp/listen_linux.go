//go:build !386

package sctp

import (
	"errors"
	"net"
	"net/netip"
	"os"

	"github.com/ishidawataru/sctp"
	"golang.org/x/sys/unix"
)

// streamsToClients is how many streams a client is offered for what is sent to
// it. An endpoint cannot be asked for more than that later, when it is known
// which one it is. The kernel's default is 10, and each costs the kernel some 30
// bytes an association.
const streamsToClients = 256

// Listener accepts associations on one address.
type Listener struct {
	*socket
	addr Addr
}

// Listen listens on addr, which must not be the unspecified address: the kernel
// would tell every client all addresses of this machine, and clients would use
// them. It may be an address that this machine does not have yet. sockets is a call like
// socket(2), which may make the socket in another network namespace; nil is that call.
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

// ListenAgain goes on with the socket of a Listener that another process has or had, and
// takes over the descriptor.
func ListenAgain(fd int) (*Listener, error) {
	s, err := newSocket(fd)
	if err != nil {
		return nil, err
	}
	// The other one may have closed its copy to abort who waits.
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
	return &Listener{socket: s, addr: Addr(bound)}, nil
}

func listen(fd int) error {
	if err := sctp.NewSCTPConn(fd, nil).SetInitMsg(streamsToClients, sctp.SCTP_MAX_STREAM, 0, 0); err != nil {
		return os.NewSyscallError("setsockopt SCTP_INITMSG", err)
	}
	// Associations inherit it: before they are accepted nothing is probed.
	if err := setHeartbeat(fd, netip.AddrPort{}, false); err != nil {
		return err
	}
	return os.NewSyscallError("listen", unix.Listen(fd, unix.SOMAXCONN))
}

// Accept waits for the next association. After Close the error is
// [net.ErrClosed].
func (l *Listener) Accept() (*Conn, error) {
	var fd int
	var from unix.Sockaddr
	var failed error
	err := l.raw.Read(func(listener uintptr) bool {
		for {
			fd, from, failed = unix.Accept4(int(listener), unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
			if failed != unix.EINTR {
				return failed != unix.EAGAIN
			}
		}
	})
	switch {
	case err == nil && failed == nil:
		return accepted(fd, Addr(addrPort(from)))
	case l.closed.Load():
		return nil, net.ErrClosed
	case err != nil:
		return nil, err
	}
	return nil, os.NewSyscallError("accept", failed)
}

// accepted makes a Conn of an accepted descriptor. An association that has
// ended meanwhile is ECONNABORTED, as it is to accept(2).
func accepted(fd int, from Addr) (*Conn, error) {
	s, err := newSocket(fd)
	if err != nil {
		return nil, err
	}
	err = s.control(func(fd int) error {
		if err := setOptions(fd); err != nil {
			return err
		}
		return setHeartbeat(fd, from.AddrPort(), true)
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

// LocalAddr returns where it listens.
func (l *Listener) LocalAddr() Addr { return l.addr }

// Leave stops accepting: another process has the socket, and those who wait with it.
func (l *Listener) Leave() error { return l.socket.Close() }

// Close stops accepting. Associations that wait to be accepted are aborted.
func (l *Listener) Close() error {
	_ = l.SetLinger(0) // fails only on a socket that is closed
	return l.socket.Close()
}
