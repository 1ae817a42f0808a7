package demo

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// port is a TCP port on loopback. It stays in use while no server listens on it,
// so that clients are refused and no other process gets the port: the socket stays bound
// all the time, and only becomes a listener or stops being one.
type port struct {
	addr      netip.AddrPort
	fd        int
	listening bool
	full      []net.Conn // connections that fill the backlog, see swallow
}

func newPort() (*port, error) {
	// Bind to an explicit port: the kernel releases a port that it has chosen itself
	// when listening ends.
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
	// SO_REUSEADDR permits a port with connections in TIME_WAIT.
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

// silence ends listening. The kernel resets connections in the backlog.
func (p *port) silence() error {
	for _, c := range p.full {
		c.Close()
	}
	p.full = nil
	if !p.listening {
		return nil // a socket that is only bound would pass the shutdown on to its connections
	}
	p.listening = false
	// On Linux this turns a listener into a socket that is only bound (inet_shutdown).
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

// maxBacklog is a backlog that is always sufficient.
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
	defer file.Close() // the listener has its own descriptor
	return net.FileListener(file)
}

// swallow makes the port unresponsive, as behind a firewall that drops packets: while a
// listener's backlog is full, the kernel drops each SYN. This needs neither netfilter nor root.
func (p *port) swallow() error {
	if err := p.open(0); err != nil { // Linux accepts one connection then
		return err
	}
	const more = 8 // than any kernel accepts for a backlog of 0
	for range more {
		c, err := net.DialTimeout("tcp4", p.addr.String(), 100*time.Millisecond)
		switch {
		case err == nil:
			p.full = append(p.full, c)
		case os.IsTimeout(err):
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
