package redirect

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/portal/kernel"
)

// An endpoint sees the client's own address if usher connects from that address, with a transparent socket. The
// endpoint's answers then have the client as destination, so they must pass through this node and reach the socket:
//
//  - they pass through this node if the client or the endpoint is here;
//  - conntrack detects that they answer a packet with usher's mark, and a rule marks them;
//    policy routing then sends them to this node: see package kernel, RouteAnswers;
//  - if both are on one bridge, the bridge would forward the answers to the client. So usher
//    connects from an alias, an unused address. Outgoing packets are translated to the
//    client's address, and answers back to the alias, which takes them off the bridge.
//
// usher adds neither an address nor a route for aliases, and only usher's packets are translated. Packets that other
// processes send to an alias follow the node's other routes.

// origins is the input of Origin. A value is replaced, never changed.
type origins struct {
	// node is why endpoints of a family see the node's address; zero if they can see the client's.
	node       [len(portal.Families)]portal.SourceAddress
	aliases    []Alias
	aliasRange [len(portal.Families)]netip.Prefix
	pods       []netip.Prefix
	interfaces portal.Interfaces
	ports      portal.PortRange
}

// port returns a random one of o.ports.
func (o *origins) port() uint16 {
	if o.ports.IsZero() {
		return 0
	}
	return o.ports.First + uint16(rand.N(int(o.ports.Last-o.ports.First)+1))
}

// isPod reports whether addr, reached by path, is known to be one of this node's Pods. The networks of Pods may include
// those of other nodes (--cluster-cidr), whose Pods are behind a router or the default route.
func (o *origins) isPod(addr netip.Addr, path kernel.Path) bool {
	if !path.Direct || path.Local {
		return false
	}
	return o.interfaces.Has(path.Name) ||
		!path.Uplink && kernel.ContainsAddr(o.pods, addr)
}

// probeAnswers determines whether endpoints of a family can see their clients' addresses.
func (p *Portal) probeAnswers(m *machine) {
	at := m.backend.Setting()
	switch {
	case p.opts.NodeAddress:
		m.node = portal.SourceConfigured
		at.Answers = false
		return
	case at.Answers:
		err := kernel.ProbeAnswers(m.family, at.Mark)
		if err == nil {
			m.node = portal.SourceNotReady
			return
		}
		m.log.WithError(err).Info("Endpoints will see this node's address, not their clients'")
	}
	m.node, at.Answers = portal.SourceKernel, false
}

// leadAnswers routes the answers to this node, once the rules that mark them are installed, and returns the parts that
// it installed. err is the error of installing those rules, if any.
func (m *machine) leadAnswers(err error) (made []string) {
	at := m.backend.Setting()
	if !at.Answers && (m.node == portal.SourceNotReady || m.node == 0) {
		m.node = portal.SourceKernel // the backend has cleared Answers since Open
	}
	if m.routed || len(m.rules) == 0 || err != nil {
		return nil
	}
	if !at.Answers {
		m.routed = true
		return nil
	}
	if made, err = kernel.RouteAnswers(m.family, at.Mark); err != nil {
		if m.node != portal.SourceKernel {
			m.log.WithError(err).Warn("Endpoints see this node's address, not their clients'")
		}
		m.node = portal.SourceKernel
		return made
	}
	m.node, m.routed = 0, true
	return made
}

// forgetAnswers removes another process's routing rules for answers, if they have another mark or this portal has none.
func (p *Portal) forgetAnswers() {
	mark := uint32(0)
	for _, b := range p.Backends() {
		if at := b.Setting(); at.Answers {
			mark = at.Mark
		}
	}
	if removed, err := kernel.ForgetAnswers(mark); err != nil {
		p.log.WithError(err).Debug("Failed to look for routing rules left by another process")
	} else if len(removed) > 0 {
		p.log.WithField("removed", portal.Shorten(removed)).Info("Removed routing rules left by another process")
	}
}

// bridgeIsNew reports whether the bridges' networks have changed since aliases were assigned.
func (p *Portal) bridgeIsNew(family portal.Family) bool {
	networks, err := kernel.BridgeNetworks(family)
	p.mu.Lock()
	defer p.mu.Unlock()
	m := p.families[family]
	return err == nil && len(m.rules) > 0 && m.unusable == nil && !slices.Equal(networks, m.bridges)
}

// findAliases assigns aliases to the current bridges.
func (p *Portal) findAliases(m *machine) {
	at := m.backend.Setting()
	if !at.Answers || at.NoAliases {
		return
	}
	networks, err := kernel.BridgeNetworks(m.family)
	if err != nil {
		p.log.WithError(err).Debug("Failed to list bridges")
		return
	}
	m.bridges = networks
	at.Aliases = aliases(networks, p.settings.LocalSources, p.aliasRange(m.family), at.Aliases)
}

// aliasRange returns the network for the aliases of a family.
func (p *Portal) aliasRange(family portal.Family) (network netip.Prefix) {
	for _, network = range family.Of(p.opts.Aliases) {
	}
	return network
}

// publish updates the input of Origin.
func (p *Portal) publish() {
	o := &origins{pods: p.settings.LocalSources, interfaces: p.opts.PodInterfaces, ports: p.clientPorts}
	for family, m := range p.families {
		o.node[family], o.aliasRange[family] = m.node, p.aliasRange(m.family)
		if m.unusable != nil {
			o.node[family] = portal.SourceKernel
			continue
		}
		o.aliases = append(o.aliases, m.backend.Setting().Aliases...)
	}
	p.origins.Store(o)
}

func (p *Portal) Origin(client, endpoint netip.Addr, where portal.EndpointLocality) portal.Origin {
	node := func(why portal.SourceAddress) portal.Origin { return portal.Origin{SourceAddress: why} }
	o := p.origins.Load()
	if why := o.node[portal.FamilyOf(endpoint)]; why != 0 {
		return node(why)
	}
	if !client.IsValid() {
		return portal.Origin{Here: where != portal.Elsewhere}
	}
	now := time.Now()
	from, to := p.paths.Of(client, now), p.paths.Of(endpoint, now)
	if !from.Known() || !to.Known() {
		return node(portal.SourceNotReady)
	}
	endpointHere := to.Local && from.Interface != 0 || // an endpoint that is a process of this node needs a route to the client
		to.Direct && !to.Local && to.Neighbours != kernel.Apart && (where == portal.Here || where == portal.Unknown && o.isPod(endpoint, to))
	clientHere := o.isPod(client, from) && from.Neighbours != kernel.Apart
	switch {
	case from.Local:
		return node(portal.SourceOwnProcess)
	case !endpointHere && !clientHere:
		return node(portal.SourceElsewhere)
	case from.Interface != to.Interface:
		return portal.Origin{Bind: netip.AddrPortFrom(client, o.port()), SourceAddress: portal.SourceClient, Here: endpointHere}
	case to.Neighbours != kernel.Bridged:
		return node(portal.SourceSameBridge)
	}
	for _, a := range o.aliases {
		if a.Of.Contains(client) {
			return portal.Origin{Bind: netip.AddrPortFrom(aliasOf(client, o.aliasRange[portal.FamilyOf(client)]), 0), SourceAddress: portal.SourceClient, Here: endpointHere}
		}
	}
	return node(portal.SourceNoAlias)
}
