package kernel

import (
	"net"
	"net/netip"
)

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
