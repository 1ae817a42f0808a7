package kernel

import (
	"net"
	"net/netip"

	"github.com/usherproxy/usher/portal"
)

// ClientFlow is what a client sends to an endpoint with its own address as source, from any port.
type ClientFlow struct {
	Protocol portal.Protocol
	Client   netip.Addr
	Endpoint netip.AddrPort
}

// SourceTo returns the address from which a process of this node reaches to. To connect a
// UDP socket makes the kernel look, and sends nothing.
func SourceTo(to netip.AddrPort) (netip.Addr, error) {
	conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to))
	if err != nil {
		return netip.Addr{}, err
	}
	defer conn.Close()
	return conn.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap(), nil
}
