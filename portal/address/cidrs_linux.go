package address

import (
	"fmt"
	"maps"
	"net/netip"

	"github.com/usherproxy/usher/portal"
)

// wantedNetworks returns the service CIDRs that need a route while any VIP is served, and the index of each route's
// link. If VIPs are in the space, that is the link to it, where no process listens on unused addresses. If VIPs are on
// the node, it is 0: the kernel then rejects packets to unused addresses. With another proxy there is no rejecting
// route: the kernel looks for a route first, so the proxy's rules could not redirect the node's own packets. Nor is
// there one with kernel.VIPLink: a kernel that ignores a route's type would forward packets by it.
func (p *addressPortal) wantedNetworks() map[netip.Prefix]int {
	wanted := map[netip.Prefix]int{}
	for _, cidr := range p.settings.ServiceCIDRs {
		inSpace := p.onNode[portal.FamilyOf(cidr.Addr())] == nil
		switch {
		case len(p.users) == 0:
		case inSpace && p.link.index != 0:
			wanted[cidr] = p.link.index
		case !inSpace && !p.opts.OtherProxies && !p.routes.OnVIPLink():
			wanted[cidr] = 0
		}
	}
	return wanted
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
	for network, link := range maps.Clone(p.networks) {
		if is, want := wanted[network]; want && is == link {
			continue
		}
		delete(p.networks, network) // first: the kernel's event is then known to be usher's own
		if err := p.routes.DeleteNetwork(network); err != nil {
			p.networks[network] = link
			failing(network, err)
			continue
		}
		if _, want := wanted[network]; !want {
			changed = append(changed, fmt.Sprintf("the route for %s", network))
		}
	}
	for network, link := range wanted {
		if _, is := p.networks[network]; is {
			continue
		}
		p.networks[network] = link
		if err := p.routes.PutNetwork(network, link, spaceEnd.gateway(portal.FamilyOf(network.Addr()))); err != nil {
			delete(p.networks, network)
			failing(network, err)
			continue
		}
		changed = append(changed, fmt.Sprintf("the route for %s", network))
	}
	p.unrouted = failed
	return changed
}
