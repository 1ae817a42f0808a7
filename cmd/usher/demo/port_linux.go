package demo

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// port is a TCP port on loopback. It stays taken while nobody listens on it,
// so that clients are refused and no other process gets them: the socket is bound
// all the time, and becomes a listener and stops being one.
type port struct {
	addr      netip.AddrPort
	fd        int
	listening bool
	full      []net.Conn // connections that fill the backlog, see swallow
}

func newPort() (*port, error) {
	// The port is named when it is bound: one that the kernel has chosen is given
	// back when listening ends.
	free, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	addr := free.Addr().(*net.TCPAddr).AddrPort()
	free.Close()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	// A port on which connections are in TIME_WAIT may be taken.
	err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrInet4{Port: int(addr.Port()), Addr: addr.Addr().As4()})
	}
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("reserve %s: %w", addr, err)
	}
	return &port{addr: addr, fd: fd}, nil
}

// silence ends listening. Connections that nobody has accepted are reset.
func (p *port) silence() error {
	for _, c := range p.full {
		c.Close()
	}
	p.full = nil
	if !p.listening {
		return nil // a socket that is only bound would hand the shutdown on to its connections
	}
	p.listening = false
	// On Linux this makes a listener a socket that is only bound (inet_shutdown).
	return os.NewSyscallError("shutdown", unix.Shutdown(p.fd, unix.SHUT_RD))
}

// open makes the socket a listener with this backlog.
func (p *port) open(backlog int) error {
	if err := unix.Listen(p.fd, backlog); err != nil {
		return os.NewSyscallError("listen", err)
	}
	p.listening = true
	return nil
}

// maxBacklog is a backlog that is enough for all.
const maxBacklog = unix.SOMAXCONN

// listen returns a listener. Closing it does not end listening; silence does.
func (p *port) listen(backlog int) (net.Listener, error) {
	if err := p.open(backlog); err != nil {
		return nil, err
	}
	own, err := unix.FcntlInt(uintptr(p.fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	file := os.NewFile(uintptr(own), p.addr.String())
	defer file.Close() // the listener has a descriptor of its own
	return net.FileListener(file)
}

// swallow makes the port one from which nothing comes back, as behind a firewall
// that drops: while a listener's backlog is full, the kernel drops each SYN. It
// needs neither netfilter nor root.
func (p *port) swallow() error {
	if err := p.open(0); err != nil { // Linux takes one connection then
		return err
	}
	const more = 8 // than any kernel takes for a backlog of 0
	for range more {
		c, err := net.DialTimeout("tcp4", p.addr.String(), 100*time.Millisecond)
		var timeout net.Error
		switch {
		case err == nil:
			p.full = append(p.full, c)
		case errors.As(err, &timeout) && timeout.Timeout():
			return nil // the SYN was dropped
		default:
			return err
		}
	}
	return fmt.Errorf("this kernel keeps accepting on %s although the backlog is full", p.addr)
}

func (p *port) close() {
	for _, c := range p.full {
		c.Close()
	}
	unix.Close(p.fd)
}
