package kernel

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/usherproxy/usher/portal"
)

// ip6tOriginalDst is IP6T_SO_ORIGINAL_DST of linux/netfilter_ipv6/ip6_tables.h.
const ip6tOriginalDst = 80

// OriginalDst returns the original destination of a TCP or SCTP connection that a portal redirected to a listener.
//
// It is read from conntrack. Without an entry, or without conntrack, the error is [portal.ErrNotRedirected]. For a
// connection that is tracked but was not redirected, it returns the local address: the caller compares that with its
// targets. The kernel tracks all connections while any nat rule exists.
func OriginalDst(conn syscall.Conn) (netip.AddrPort, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("looking up original destination: %w", err)
	}
	var dst netip.AddrPort
	var lookup error
	look := func(fd uintptr) {
		var local unix.Sockaddr
		if local, lookup = unix.Getsockname(int(fd)); lookup != nil {
			lookup = fmt.Errorf("looking up original destination: getsockname: %w", lookup)
			return
		}
		six, ok := local.(*unix.SockaddrInet6)
		dst, lookup = OriginalDstFD(int(fd), ok && !netip.AddrFrom16(six.Addr).Is4In6())
	}
	if err := raw.Control(look); err != nil {
		return netip.AddrPort{}, fmt.Errorf("looking up original destination: %w", err)
	}
	return dst, lookup
}

// OriginalDstFD is OriginalDst for a descriptor. six says that the socket's local address is IPv6, and not IPv4-mapped.
func OriginalDstFD(fd int, six bool) (netip.AddrPort, error) {
	ask := originalDst4
	if six {
		ask = originalDst6
	}
	dst, err := ask(fd)
	switch {
	case err == nil:
		return dst, nil
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOPROTOOPT), errors.Is(err, unix.EOPNOTSUPP):
		return netip.AddrPort{}, portal.ErrNotRedirected
	}
	return netip.AddrPort{}, fmt.Errorf("looking up original destination: %w", err)
}

// originalDst4 uses a getsockopt of x/sys whose result is large enough: a struct sockaddr_in has 16 bytes, a struct
// ipv6_mreq 20.
func originalDst4(fd int) (netip.AddrPort, error) {
	raw, err := unix.GetsockoptIPv6Mreq(fd, unix.SOL_IP, unix.SO_ORIGINAL_DST)
	if err != nil {
		return netip.AddrPort{}, err
	}
	b := raw.Multiaddr // family, port, address
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[4:8])), binary.BigEndian.Uint16(b[2:4])), nil
}

// originalDst6 does the same: a struct ip6_mtuinfo begins with a sockaddr_in6.
func originalDst6(fd int) (netip.AddrPort, error) {
	raw, err := unix.GetsockoptIPv6MTUInfo(fd, unix.SOL_IPV6, ip6tOriginalDst)
	if err != nil {
		return netip.AddrPort{}, err
	}
	var port [2]byte
	binary.NativeEndian.PutUint16(port[:], raw.Addr.Port) // in network byte order
	return netip.AddrPortFrom(netip.AddrFrom16(raw.Addr.Addr), binary.BigEndian.Uint16(port[:])), nil
}
