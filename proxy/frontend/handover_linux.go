package frontend

import (
	"fmt"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/portal/fdpass"
	"github.com/usherproxy/usher/portal/handover"
	"github.com/usherproxy/usher/proxy/forward"
)

// SocketNameOf returns the SocketName of a listener's socket.
func SocketNameOf(file *os.File) (name string, err error) {
	fd, err := fdpass.Descriptor(file)
	if err != nil {
		return "", err
	}
	addr, err := forward.LocalAddr(fd)
	if err != nil {
		return "", err
	}
	number, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PROTOCOL)
	if err != nil {
		return "", os.NewSyscallError("getsockopt SO_PROTOCOL", err)
	}
	protocol, known := map[int]config.Protocol{unix.IPPROTO_TCP: config.TCP, unix.IPPROTO_UDP: config.UDP, unix.IPPROTO_SCTP: config.SCTP}[number]
	if !known {
		return "", fmt.Errorf("a socket of protocol %d is not a listener", number)
	}
	return SocketName(protocol, addr), nil
}

// OpenSocket returns the socket of the listener that b describes, and the address that it is bound to. The socket is
// inherited, from Node.Inherited, or listen opens it: see Listen. The caller closes it.
func (f *FrontEnd) OpenSocket(b portal.Bind, listen func(forward.Sockets, netip.AddrPort) (int, error)) (fd int, at netip.AddrPort, inherited bool, err error) {
	fd, err = Listen(f.Node, b, func(addr netip.AddrPort) (int, error) {
		if addr == b.Addr { // inherited sockets at other addresses belong to other front ends
			fd, err := f.inherit(SocketName(f.Protocol, addr), addr)
			if inherited = fd >= 0; inherited || err != nil {
				return fd, err
			}
		}
		return listen(f.Socket, addr)
	})
	if err != nil {
		return -1, at, false, err
	}
	if b.Transparent {
		err = forward.SetTransparent(fd, b.Addr.Addr())
	}
	if err == nil {
		at, err = forward.LocalAddr(fd)
	}
	if err != nil {
		unix.Close(fd)
		return -1, at, false, fmt.Errorf("cannot listen on %s: %w", b.Addr, err)
	}
	return fd, at, inherited, nil
}

// inherit returns the socket with that name from n.Inherited, or -1 if there is none. It returns an error if the socket
// is not bound to addr.
func (n *Node) inherit(name string, addr netip.AddrPort) (fd int, err error) {
	file := n.Inherited[name]
	if file == nil {
		return -1, nil
	}
	delete(n.Inherited, name)
	defer file.Close()
	if fd, err = Own(file); err != nil {
		return -1, err
	}
	if at, err := forward.LocalAddr(fd); err != nil || at != addr {
		unix.Close(fd)
		return -1, fmt.Errorf("the socket handed over is not a listener on %s", addr)
	}
	return fd, nil
}

// Own duplicates the descriptor of a file from a handover. The caller owns the duplicate.
func Own(file *os.File) (fd int, err error) {
	if fd, err = fdpass.Descriptor(file); err != nil {
		return -1, err
	}
	return unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
}

// SocketFor returns a copy of descriptor fd with a name, for a successor, or false if fd cannot be copied.
func SocketFor(fd int, name string) (handover.Socket, bool) {
	copied, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return handover.Socket{}, false
	}
	return handover.Socket{Name: name, File: os.NewFile(uintptr(copied), name)}, true
}
