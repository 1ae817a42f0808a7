package forward

import (
	"encoding/binary"
	"net/netip"

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
	for len(b) >= unix.SizeofCmsghdr {
		h, data, rest, err := unix.ParseOneSocketControlMessage(b)
		if err != nil {
			return c
		}
		switch {
		case h.Level == unix.IPPROTO_IP && h.Type == unix.IP_PKTINFO && len(data) >= unix.SizeofInet4Pktinfo:
			c.Interface = int(int32(binary.NativeEndian.Uint32(data)))
			c.Local = netip.AddrFrom4([4]byte(data[8:12]))
		case h.Level == unix.IPPROTO_IPV6 && h.Type == unix.IPV6_PKTINFO && len(data) >= unix.SizeofInet6Pktinfo:
			c.Local = netip.AddrFrom16([16]byte(data))
			c.Interface = int(int32(binary.NativeEndian.Uint32(data[16:])))
		case h.Level == unix.IPPROTO_IP && h.Type == unix.IP_TTL && len(data) >= 4,
			h.Level == unix.IPPROTO_IPV6 && h.Type == unix.IPV6_HOPLIMIT && len(data) >= 4:
			c.Hops = int(int32(binary.NativeEndian.Uint32(data)))
		case h.Level == unix.SOL_SOCKET && h.Type == unix.SO_RXQ_OVFL && len(data) >= 4:
			c.Lost = binary.NativeEndian.Uint32(data)
		}
		b = rest
	}
	return c
}

// SourceControl returns the control message that sets the source address of a sent datagram to local. link is the index
// of the interface, which only IPv6 link-local addresses need.
func SourceControl(local netip.Addr, link int) []byte {
	if local.Is4() {
		return unix.PktInfo4(&unix.Inet4Pktinfo{Spec_dst: local.As4()})
	}
	info := unix.Inet6Pktinfo{Addr: local.As16()}
	if local.IsLinkLocalUnicast() {
		info.Ifindex = uint32(link)
	}
	return unix.PktInfo6(&info)
}
