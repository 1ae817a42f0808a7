package forward

import (
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// receiveBuffer is what a socket that many clients send to may have waiting.
// The kernel gives as much of it as net.core.rmem_max allows.
const receiveBuffer = 4 << 20

// ListenUDP opens a socket on addr. No other process can bind its port, or share it: the
// socket has neither SO_REUSEADDR nor SO_REUSEPORT. Each datagram is received with its
// local address, if addr is unspecified, with its hop limit, and with the count of those
// that were lost.
func (s Sockets) ListenUDP(addr netip.AddrPort) (fd int, err error) {
	fd, err = s.open(domain(addr.Addr()), unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, fmt.Errorf("socket: %w", err)
	}
	if err = setListenOptions(fd, addr.Addr()); err == nil {
		err = unix.Bind(fd, sockaddr(addr))
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// Unshare makes the port of a socket that another version of usher opened its own: no
// further socket can be bound to it.
func Unshare(fd int) { _ = setInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 0) } // an error would say that there is no such option

func setListenOptions(fd int, addr netip.Addr) error {
	level, freebind, packetInfo, hops := unix.IPPROTO_IP, unix.IP_FREEBIND, unix.IP_PKTINFO, unix.IP_RECVTTL
	if addr.Is6() {
		level, freebind, packetInfo, hops = unix.IPPROTO_IPV6, unix.IPV6_FREEBIND, unix.IPV6_RECVPKTINFO, unix.IPV6_RECVHOPLIMIT
		if err := unix.SetsockoptInt(fd, level, unix.IPV6_V6ONLY, 1); err != nil {
			return fmt.Errorf("setting IPV6_V6ONLY: %w", err)
		}
	}
	if addr.IsUnspecified() {
		if err := unix.SetsockoptInt(fd, level, packetInfo, 1); err != nil {
			return fmt.Errorf("asking for the local addresses of datagrams: %w", err)
		}
	}
	// A VIP may be bound before it is an address of this node. And an IPv6 answer
	// may come from an address that is local by a route and not an interface's,
	// as those are that portals make (ip6_datagram_send_ctl in the kernel).
	if err := unix.SetsockoptInt(fd, level, freebind, 1); err != nil {
		return fmt.Errorf("setting IP_FREEBIND: %w", err)
	}
	// What follows is good to have; everything works without it.
	_ = unix.SetsockoptInt(fd, level, hops, 1)
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RXQ_OVFL, 1)
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, receiveBuffer)
	return nil
}

// ConnectUDP opens a socket that is connected to addr: it receives only what
// comes from there, and the ICMP errors that what it sends there meets. from is
// the address that it is from (see BindTransparent), or the zero AddrPort for one that the kernel picks; mark is put on
// what is sent (SO_MARK, socket(7)) if it is not 0.
func ConnectUDP(mark uint32, from netip.AddrPort, addr netip.AddrPort) (int, error) {
	fd, err := unix.Socket(domain(addr.Addr()), unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, err
	}
	if mark != 0 {
		err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, int(mark))
	}
	if err == nil && from.IsValid() {
		if err = BindTransparent(fd, from); err != nil && from.Port() != 0 {
			err = BindTransparent(fd, netip.AddrPortFrom(from.Addr(), 0))
		}
	}
	if err == nil {
		err = unix.Connect(fd, sockaddr(addr))
	}
	if err == nil && toItself(fd, addr) {
		err = unix.ECONNREFUSED // which what it would send would meet
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// SetHops sets the hop limit (IPv4: TTL) of what a socket sends to addr.
func SetHops(fd int, addr netip.Addr, hops int) error {
	if addr.Is4() {
		return unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_TTL, hops)
	}
	return unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, hops)
}

// LocalAddr returns the address that a socket is bound to.
func LocalAddr(fd int) (netip.AddrPort, error) {
	name, err := unix.Getsockname(fd)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("getsockname: %w", err)
	}
	switch a := name.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port)), nil
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(a.Addr), uint16(a.Port)), nil
	}
	return netip.AddrPort{}, fmt.Errorf("getsockname: %T is no Internet address", name)
}

func domain(a netip.Addr) int {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Addr: a.Addr().As4(), Port: int(a.Port())}
	}
	return &unix.SockaddrInet6{Addr: a.Addr().As16(), Port: int(a.Port())}
}
