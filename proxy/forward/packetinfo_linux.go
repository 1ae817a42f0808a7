package forward

import (
	"encoding/binary"
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"
)

// controlSpace is the maximum size of a received datagram's control messages: the larger (IPv6) packet info, the hop
// limit, and the count of lost datagrams.
var controlSpace = unix.CmsgSpace(unix.SizeofInet6Pktinfo) + unix.CmsgSpace(4) + unix.CmsgSpace(4)

// Control has the values of a received datagram's control messages (see cmsg(3)).
type Control struct {
	// Local is the destination address of the datagram (IP_PKTINFO, ip(7); IPV6_RECVPKTINFO, ipv6(7)); invalid if not
	// requested.
	Local netip.Addr
	// Interface is the index of the receiving interface; 0 if not requested.
	Interface int
	// Hops is the hop limit (IPv4: TTL) that the datagram arrived with; 0 if not requested.
	Hops int
	// Lost is the number of datagrams that the socket has lost so far because its buffer was full (SO_RXQ_OVFL,
	// socket(7)).
	Lost uint32
}

// ParseControl parses control messages. It skips unknown and truncated ones.
func ParseControl(b []byte) (c Control) {
	header := unix.CmsgLen(0)
	for len(b) >= header {
		length, level, kind := cmsgHeader(b)
		if length < header || length > len(b) {
			return c
		}
		data := b[header:length]
		switch {
		case level == unix.IPPROTO_IP && kind == unix.IP_PKTINFO && len(data) >= unix.SizeofInet4Pktinfo:
			c.Interface = int(int32(binary.NativeEndian.Uint32(data)))
			c.Local = netip.AddrFrom4([4]byte(data[8:12]))
		case level == unix.IPPROTO_IPV6 && kind == unix.IPV6_PKTINFO && len(data) >= unix.SizeofInet6Pktinfo:
			c.Local = netip.AddrFrom16([16]byte(data))
			c.Interface = int(int32(binary.NativeEndian.Uint32(data[16:])))
		case level == unix.IPPROTO_IP && kind == unix.IP_TTL && len(data) >= 4,
			level == unix.IPPROTO_IPV6 && kind == unix.IPV6_HOPLIMIT && len(data) >= 4:
			c.Hops = int(int32(binary.NativeEndian.Uint32(data)))
		case level == unix.SOL_SOCKET && kind == unix.SO_RXQ_OVFL && len(data) >= 4:
			c.Lost = binary.NativeEndian.Uint32(data)
		}
		b = b[min(unix.CmsgSpace(len(data)), len(b)):]
	}
	return c
}

// cmsgHeader parses a struct cmsghdr, whose first field is as long as a pointer.
func cmsgHeader(b []byte) (length, level, kind int) {
	const word = int(unsafe.Sizeof(uintptr(0)))
	if word == 8 {
		length = int(binary.NativeEndian.Uint64(b))
	} else {
		length = int(binary.NativeEndian.Uint32(b))
	}
	return length, int(int32(binary.NativeEndian.Uint32(b[word:]))), int(int32(binary.NativeEndian.Uint32(b[word+4:])))
}

// SourceControl returns the control message that sets the source address of a sent datagram to local. link is the index
// of the interface, which only IPv6 link-local addresses need.
func SourceControl(local netip.Addr, link int) []byte {
	size, level, kind := unix.SizeofInet4Pktinfo, unix.IPPROTO_IP, unix.IP_PKTINFO
	if local.Is6() {
		size, level, kind = unix.SizeofInet6Pktinfo, unix.IPPROTO_IPV6, unix.IPV6_PKTINFO
	}
	b := make([]byte, unix.CmsgSpace(size))
	h := (*unix.Cmsghdr)(unsafe.Pointer(&b[0]))
	h.SetLen(unix.CmsgLen(size))
	h.Level, h.Type = int32(level), int32(kind)
	data := b[unix.CmsgLen(0):]
	if local.Is4() {
		a := local.As4()
		copy(data[4:], a[:]) // ipi_spec_dst
		return b
	}
	a := local.As16()
	copy(data, a[:])
	if local.IsLinkLocalUnicast() {
		binary.NativeEndian.PutUint32(data[16:], uint32(link))
	}
	return b
}
