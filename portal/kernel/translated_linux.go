package kernel

import (
	"net/netip"

	"github.com/vishvananda/netlink"

	"github.com/usherproxy/usher/portal"
)

// ShownSources returns the source addresses that endpoints see in flows from clients, for those flows that conntrack
// has. They differ from the client's if a rule translates it. It reads the whole table, which may be large, and needs
// CAP_NET_ADMIN.
func ShownSources(of map[ClientFlow]bool) (map[ClientFlow]netip.Addr, error) {
	shown := map[ClientFlow]netip.Addr{}
	for _, family := range portal.Families {
		flows, err := netlink.ConntrackTableList(netlink.ConntrackTable, netlink.InetFamily(NetlinkFamily(family)))
		if err != nil {
			return nil, err
		}
		for _, f := range flows {
			client, _ := netip.AddrFromSlice(f.Forward.SrcIP)
			endpoint, _ := netip.AddrFromSlice(f.Forward.DstIP)
			source, _ := netip.AddrFromSlice(f.Reverse.DstIP)
			flow := ClientFlow{portal.Protocol(f.Forward.Protocol), client.Unmap(), netip.AddrPortFrom(endpoint.Unmap(), f.Forward.DstPort)}
			if of[flow] {
				shown[flow] = source.Unmap()
			}
		}
	}
	return shown, nil
}
