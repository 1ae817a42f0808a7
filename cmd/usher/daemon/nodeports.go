package daemon

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/usherproxy/usher/portal/kernel"
)

// NodePorts selects the node addresses that have node ports. The zero value means all of them, loopback included.
type NodePorts struct {
	// Networks are the networks that contain these addresses. As with kube-proxy, an IP family
	// without a network is not restricted, unless Primary is set.
	Networks []netip.Prefix
	// Primary adds the node's primary addresses, one per family: those in the Node object or, if there is no Node
	// object, the source addresses for other networks. They can change, and are empty until they are known.
	Primary bool
	// NodeIP, if valid, is the primary address of its family.
	NodeIP netip.Addr
}

// nowhere is a network that contains no address of a node. It keeps a list of networks from being empty: an empty
// list means all addresses.
var nowhere = netip.PrefixFrom(netip.IPv6Unspecified(), 128)

// networks returns the networks whose addresses have node ports, given the node's primary addresses; empty means all.
// With Primary, a family without an address or network has no node ports.
func (n NodePorts) networks(primary []netip.Addr) []netip.Prefix {
	if !n.Primary {
		return n.bothFamilies()
	}
	out := append([]netip.Prefix{nowhere}, n.Networks...)
	if n.NodeIP.IsValid() {
		out = append(out, netip.PrefixFrom(n.NodeIP, n.NodeIP.BitLen()))
	}
	for _, a := range primary {
		if a.Is4() != n.NodeIP.Is4() || !n.NodeIP.IsValid() {
			out = append(out, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	return out
}

// bothFamilies returns n.Networks and, for a family without a network, all its addresses.
// It returns nil if neither family has a network.
func (n NodePorts) bothFamilies() []netip.Prefix {
	if len(n.Networks) == 0 {
		return nil
	}
	out := slices.Clone(n.Networks)
	for _, all := range []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
		if !slices.ContainsFunc(n.Networks, func(p netip.Prefix) bool { return p.Addr().Is4() == all.Is4() }) {
			out = append(out, netip.PrefixFrom(all, 0))
		}
	}
	return out
}

// routedAddresses returns, for each IP family, the address from which this node reaches other networks. Without a Node
// object, these are the best substitute for the node's primary addresses.
func routedAddresses() (out []netip.Addr) {
	for _, elsewhere := range []string{"192.0.2.1:9", "[2001:db8::1]:9"} { // for documentation (RFC 5737, RFC 3849)
		if source, err := kernel.SourceTo(netip.MustParseAddrPort(elsewhere)); err == nil { // else no such family here
			out = append(out, source)
		}
	}
	return out
}

// setPrimaryAddresses opens node ports at these addresses and closes them at others,
// if NodePorts.Primary is set. Calls must not be concurrent.
func (d *Daemon) setPrimaryAddresses(addrs []netip.Addr) {
	now := d.config.NodePorts.networks(addrs)
	if !d.config.NodePorts.Primary || slices.Equal(now, d.nodePorts) {
		return
	}
	d.nodePorts = now
	d.proxy.SetNodePortAddresses(now)
	d.healthChecks.SetNetworks(now)
	var addresses []string
	for _, n := range now[1:] {
		addresses = append(addresses, n.String())
	}
	d.log.WithField("addresses", strings.Join(addresses, ",")).Info("Node port addresses selected")
}
