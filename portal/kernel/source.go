package kernel

import (
	"net"
	"net/netip"

	"github.com/usherproxy/usher/portal"
)

// ClientFlow is a client's packets to an endpoint with the client's address as source, from any port.
type ClientFlow struct {
	Protocol portal.Protocol
	Client   netip.Addr
	Endpoint netip.AddrPort
}

// SourceTo returns the source address of a local process for to. Connecting a UDP socket makes the kernel look it up,
// and sends nothing.
func SourceTo(to netip.AddrPort) (netip.Addr, error) {
	conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to))
	if err != nil {
		return netip.Addr{}, err
	}
	defer conn.Close()
	return conn.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap(), nil
}
