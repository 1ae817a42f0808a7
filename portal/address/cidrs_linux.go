package address

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
)

// wantedNetworks returns the service CIDRs whose unused addresses the kernel has to reject: all, while any VIP is
// served. With another proxy there are none: the kernel looks for a route first, so the proxy's rules could not
// redirect the node's own packets. Nor are there any with kernel.VIPLink: a kernel that ignores a route's type would
// forward packets by it.
func (p *addressPortal) wantedNetworks() []netip.Prefix {
	if len(p.users) == 0 || p.opts.OtherProxies || p.routes.OnVIPLink() {
		return nil
	}
	return p.settings.ServiceCIDRs
}

// updateNetworks adds and removes routes for service CIDRs, and returns those it has changed. Services are served even
// if the kernel refuses such a route.
func (p *addressPortal) updateNetworks() (changed []string) {
	wanted := p.wantedNetworks()
	failed := map[netip.Prefix]bool{}
	failing := func(network netip.Prefix, err error) {
		if failed[network] = true; !p.unrouted[network] {
			p.log.WithError(err).Info("Packets to unused addresses of a service CIDR are not rejected")
		}
	}
	for network := range maps.Clone(p.networks) {
		if slices.Contains(wanted, network) {
			continue
		}
		delete(p.networks, network) // first: the kernel's event is then known to be usher's own
		if err := p.routes.DeleteNetwork(network); err != nil {
			p.networks[network] = true
			failing(network, err)
			continue
		}
		changed = append(changed, fmt.Sprintf("the route for %s", network))
	}
	for _, network := range wanted {
		if p.networks[network] {
			continue
		}
		p.networks[network] = true
		if err := p.routes.RejectNetwork(network); err != nil {
			delete(p.networks, network)
			failing(network, err)
			continue
		}
		changed = append(changed, fmt.Sprintf("the route for %s", network))
	}
	p.unrouted = failed
	return changed
}
