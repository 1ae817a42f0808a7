package main

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"time"
)

// nodePortAddresses say on which addresses of the node its node ports are.
type nodePortAddresses struct {
	networks []netip.Prefix // none means all
	// primary says that networks are the node's primary addresses, which may
	// change; nowhere, as long as they are not known.
	primary bool
	nodeIP  netip.Addr // is primary in its family, if it is valid
}

// primary is the word for the node's primary addresses in --nodeport-addresses,
// as in kube-proxy's.
const primary = "primary"

// nowhere is a network that no address of a node is in.
var nowhere = netip.PrefixFrom(netip.IPv6Unspecified(), 128)

// parseNodePortAddresses parses the value of --nodeport-addresses. As with
// kube-proxy, an IP family of which nothing is said is not restricted.
func parseNodePortAddresses(list []string, nodeIP netip.Addr) (nodePortAddresses, error) {
	if len(list) == 0 {
		return nodePortAddresses{}, nil
	}
	if list[0] == primary && len(list) == 1 {
		return nodePortAddresses{primary: true, nodeIP: nodeIP}.at(nil), nil
	}
	var out []netip.Prefix
	var four, six bool
	for _, s := range list {
		p, err := netip.ParsePrefix(s)
		if err != nil {
			return nodePortAddresses{}, usagef("--nodeport-addresses: %q is neither a CIDR such as 192.0.2.0/24 nor, alone, the word %q", s, primary)
		}
		out = append(out, p)
		four, six = four || p.Addr().Is4(), six || p.Addr().Is6()
	}
	if !four {
		out = append(out, netip.PrefixFrom(netip.IPv4Unspecified(), 0))
	}
	if !six {
		out = append(out, netip.PrefixFrom(netip.IPv6Unspecified(), 0))
	}
	return nodePortAddresses{networks: out}, nil
}

// at returns n where the node's primary addresses are these. A family without one
// has no node ports.
func (n nodePortAddresses) at(addrs []netip.Addr) nodePortAddresses {
	n.networks = []netip.Prefix{nowhere}
	if n.nodeIP.IsValid() {
		n.networks = append(n.networks, netip.PrefixFrom(n.nodeIP, n.nodeIP.BitLen()))
	}
	for _, a := range addrs {
		if a.Is4() != n.nodeIP.Is4() || !n.nodeIP.IsValid() {
			n.networks = append(n.networks, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	return n
}

// routedAddresses returns the address in each IP family from which this node
// reaches other networks: its primary ones, as far as can be told without a Node
// object.
func routedAddresses() (out []netip.Addr) {
	// Addresses for documentation (RFC 5737, RFC 3849). To connect a UDP socket
	// sends nothing.
	for _, elsewhere := range []string{"192.0.2.1:9", "[2001:db8::1]:9"} {
		conn, err := net.Dial("udp", elsewhere)
		if err != nil {
			continue // no such family here
		}
		out = append(out, conn.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap())
		conn.Close()
	}
	return out
}

// setPrimaryAddresses opens node ports at these addresses, and closes them at
// others, if they are to be at the primary ones.
func (s *server) setPrimaryAddresses(addrs []netip.Addr) {
	was := s.flags.nodePorts
	if !was.primary {
		return
	}
	now := was.at(addrs)
	if slices.Equal(now.networks, was.networks) {
		return
	}
	s.flags.nodePorts = now
	s.proxy.SetNodePortAddresses(now.networks)
	s.healthChecks.SetNetworks(now.networks)
	s.log.WithField("addresses", join(now.networks[1:])).Info("Node ports are served at this node's primary addresses")
}

// followRoutes keeps node ports at the primary addresses of a node that has no
// Node object, until ctx ends. They have been set once already.
func (s *server) followRoutes(ctx context.Context) {
	ticker := time.NewTicker(s.flags.proxy.CheckInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			s.setPrimaryAddresses(routedAddresses())
		}
	}
}
