package dns

import (
	"net"

	"github.com/miekg/dns"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
)

// datagrams reads queries from a socket, and answers each from the address to which it was sent: a client
// does not accept an answer from another address. On macOS and Windows the kernel chooses the address.
type datagrams struct {
	conn net.PacketConn
	udp  *net.UDPConn // conn, if it is one: others have only one address
}

func newDatagrams(conn net.PacketConn) datagrams {
	udp, _ := conn.(*net.UDPConn)
	if udp != nil {
		// The call for the other address family fails. Where both fail, the kernel chooses the address.
		_ = ipv4.NewPacketConn(udp).SetControlMessage(ipv4.FlagDst|ipv4.FlagInterface, true)
		_ = ipv6.NewPacketConn(udp).SetControlMessage(ipv6.FlagDst|ipv6.FlagInterface, true)
	}
	return datagrams{conn, udp}
}

// read reads a query into buf, and returns a function that sends its answer. It ignores errors of clients
// that have closed their socket.
func (d datagrams) read(buf []byte) (n int, answer func([]byte), err error) {
	if d.udp == nil {
		n, from, err := d.conn.ReadFrom(buf)
		return n, func(reply []byte) { _, _ = d.conn.WriteTo(reply, from) }, err
	}
	n, session, err := dns.ReadFromSessionUDP(d.udp, buf)
	return n, func(reply []byte) { _, _ = dns.WriteToSessionUDP(d.udp, reply, session) }, err
}
