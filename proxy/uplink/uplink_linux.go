package uplink

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"sync"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/link/fdbased"
	"gvisor.dev/gvisor/pkg/tcpip/link/nested"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
)

// Uplink carries the traffic of one TUN device.
type Uplink struct {
	device *os.File
	stack  *stack.Stack

	ctx    context.Context // ends with the uplink
	cancel context.CancelFunc
	flows  sync.WaitGroup // connections and UDP flows
	tcp    chan struct{}  // one element for each TCP connection, also while it is being established
	udp    chan struct{}  // one element for each UDP flow
}

// nic is the stack's only network interface.
const nic tcpip.NICID = 1

// maxDials is the maximum number of connections being established. A SYN beyond that is dropped, and the client's
// kernel resends it.
const maxDials = 1024

// bufferSize is the size in bytes of the stack's buffers of a connection, one for each direction. gVisor's default is 1
// MiB.
const bufferSize = 256 << 10

// Start begins to carry the traffic of device, a TUN device whose packets have at most mtu bytes and no further header.
// The uplink owns the device; if Start fails, it closes the device.
func Start(device *os.File, mtu uint32) (*Uplink, error) {
	link, err := fdbased.New(&fdbased.Options{FDs: []int{int(device.Fd())}, MTU: mtu})
	if err != nil {
		device.Close()
		return nil, fmt.Errorf("starting the TCP/IP stack for other networks: %w", err)
	}
	u := &Uplink{
		device: device,
		stack: stack.New(stack.Options{
			NetworkProtocols:   []stack.NetworkProtocolFactory{ipv4.NewProtocol, ipv6.NewProtocol},
			TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol, udp.NewProtocol},
		}),
		tcp: make(chan struct{}, maxConnections),
		udp: make(chan struct{}, maxUDPFlows),
	}
	u.ctx, u.cancel = context.WithCancel(context.Background())
	u.stack.SetTransportProtocolHandler(tcp.ProtocolNumber, tcp.NewForwarder(u.stack, bufferSize, maxDials, u.connect).HandlePacket)
	u.stack.SetTransportProtocolHandler(udp.ProtocolNumber, udp.NewForwarder(u.stack, u.associate).HandlePacket)
	if err := u.open(withoutICMP(link)); err != nil {
		u.Close()
		return nil, fmt.Errorf("starting the TCP/IP stack for other networks: %w", err)
	}
	return u, nil
}

// open makes the stack accept all packets, and answer for any destination address.
func (u *Uplink) open(link stack.LinkEndpoint) error {
	sack := tcpip.TCPSACKEnabled(true)
	send := tcpip.TCPSendBufferSizeRangeOption{Min: tcp.MinBufferSize, Default: bufferSize, Max: bufferSize}
	receive := tcpip.TCPReceiveBufferSizeRangeOption{Min: tcp.MinBufferSize, Default: bufferSize, Max: bufferSize}
	for _, err := range []tcpip.Error{
		u.stack.SetTransportProtocolOption(tcp.ProtocolNumber, &sack),
		u.stack.SetTransportProtocolOption(tcp.ProtocolNumber, &send),
		u.stack.SetTransportProtocolOption(tcp.ProtocolNumber, &receive),
		u.stack.CreateNIC(nic, link),
		u.stack.SetPromiscuousMode(nic, true),
		u.stack.SetSpoofing(nic, true),
	} {
		if err != nil {
			return fmt.Errorf("%s", err)
		}
	}
	u.stack.SetRouteTable([]tcpip.Route{
		{Destination: header.IPv4EmptySubnet, NIC: nic},
		{Destination: header.IPv6EmptySubnet, NIC: nic},
	})
	return nil
}

// Close ends all connections and flows.
func (u *Uplink) Close() {
	u.cancel()
	u.stack.Destroy()
	u.flows.Wait()
	u.device.Close()
}

// addrPort returns an address of the stack as a netip.AddrPort.
func addrPort(addr tcpip.Address, port uint16) netip.AddrPort {
	a, _ := netip.AddrFromSlice(addr.AsSlice())
	return netip.AddrPortFrom(a, port)
}

// icmpFilter keeps ICMP from the stack, which would answer every ping itself, whatever its destination.
type icmpFilter struct{ nested.Endpoint }

func withoutICMP(link stack.LinkEndpoint) stack.LinkEndpoint {
	f := &icmpFilter{}
	f.Init(link, f)
	return f
}

func (f *icmpFilter) DeliverNetworkPacket(protocol tcpip.NetworkProtocolNumber, pkt *stack.PacketBuffer) {
	if !isICMP(protocol, pkt) {
		f.Endpoint.DeliverNetworkPacket(protocol, pkt)
	}
}

func isICMP(protocol tcpip.NetworkProtocolNumber, pkt *stack.PacketBuffer) bool {
	switch protocol {
	case header.IPv4ProtocolNumber:
		h, ok := pkt.Data().PullUp(header.IPv4MinimumSize)
		return ok && header.IPv4(h).Protocol() == uint8(header.ICMPv4ProtocolNumber)
	case header.IPv6ProtocolNumber:
		h, ok := pkt.Data().PullUp(header.IPv6MinimumSize)
		return ok && header.IPv6(h).NextHeader() == uint8(header.ICMPv6ProtocolNumber)
	}
	return false
}
