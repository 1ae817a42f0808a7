package proxy

import (
	"fmt"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/portal/kernel"
	"github.com/usherproxy/usher/proxy/frontend"
)

// An external IP of a Service may be an address of this node. At such an address, the node's own ports take precedence:
// node ports, and those of usher's servers and of other processes.

// onNode reports whether vip is an external VIP on an address of this node, where the node's own ports take precedence.
// Other nodes may have the address, too.
func (p *Proxy) onNode(vip config.VIP) bool {
	return vip.External() && !vip.Addr.IsUnspecified() && !p.ClaimNodeAddresses && p.Portal.Traits().CarriesVIPs() && p.Socket == nil &&
		p.node.Locality.IsNode(vip.Addr)
}

// usedByServer returns an error if vip is a node port on which a server of usher listens.
func (f *frontEnd) usedByServer(vip config.VIP) error {
	p := f.proxy
	if vip.Kind != config.NodePort || f.Protocol != config.TCP || !p.Portal.Traits().Redirects || p.Socket != nil {
		return nil
	}
	for _, s := range p.Servers {
		a := s.Addr().Unmap()
		everywhere := !a.IsValid() || a.IsUnspecified() // in both families
		if s.Port() == vip.Port && (everywhere || config.FamilyOf(a) == f.ID().Family && p.node.Locality.HasNodePorts(a)) {
			return fmt.Errorf("%s %d: usher itself listens on this port", vip.Kind, vip.Port)
		}
	}
	return nil
}

// inUseOnNode returns an error if vip, a VIP of f, is an address of this node whose port is in use. A node port of
// another service port may use it, or a listening process. If usher itself listens on VIPs (no redirects), inUseOnNode
// does not look for processes: then bind(2) fails.
func (f *frontEnd) inUseOnNode(vip config.VIP) error {
	p := f.proxy
	if !p.onNode(vip) {
		return f.usedByServer(vip)
	}
	t := frontend.Target(f.Protocol, vip)
	nodePort := t
	nodePort.Addr = portal.FamilyOf(t.Addr).Any()
	if owner := p.owners[nodePort]; owner != nil && owner != f && p.node.Locality.HasNodePorts(t.Addr) {
		return fmt.Errorf("%s %s is an address of this node: port %d is a node port of %s", vip.Kind, t, t.Port, owner.ID())
	}
	if !p.Portal.Traits().Redirects {
		return nil
	}
	if holder := kernel.Holder(t, p.isFrontEnd); holder != "" {
		return fmt.Errorf("%s %s is an address of this node: %s", vip.Kind, t, holder)
	}
	return nil
}

// isFrontEnd reports whether l is the listener of a front end. It is called only if the portal redirects. Such a
// listener causes no conflict, since it accepts only redirected connections.
func (p *Proxy) isFrontEnd(l *kernel.Listener) bool {
	if p.listening == nil {
		p.listening = map[portal.Target]bool{}
		for _, fronts := range p.services {
			for _, f := range fronts {
				for _, own := range f.listeners {
					p.listening[f.listensOn(own)] = true
				}
			}
		}
	}
	return l.Mine && p.listening[portal.Target{Protocol: l.Protocol, Port: l.At.Port()}]
}

// listensOn returns the protocol and port of a listener.
func (f *frontEnd) listensOn(l frontend.Listener) portal.Target {
	return portal.Target{Protocol: frontend.Target(f.Protocol, config.VIP{}).Protocol, Port: l.Addr().Port()}
}

// displaceOnNode marks the front ends that serve the same port as nodePort on an address of this node, so that they
// release it. It does nothing if the target is not a node port.
func (p *Proxy) displaceOnNode(nodePort portal.Target) {
	if !nodePort.Addr.IsUnspecified() {
		return
	}
	for addr := range p.node.Locality.Addresses() {
		t := nodePort
		t.Addr = addr
		if owner := p.owners[t]; owner != nil && portal.FamilyOf(addr) == portal.FamilyOf(nodePort.Addr) {
			p.mark(owner)
		}
	}
}

// markNodeAddresses marks two groups of front ends. One has a VIP on an address of this node whose port has come into
// use there, or has become free, since the plan. The other has a cluster IP that has become an address of this node, or
// no longer is one.
func (p *Proxy) markNodeAddresses() {
	for _, fronts := range p.services {
		for _, f := range fronts {
			for _, vip := range f.View().Port.VIPs {
				t := frontend.Target(f.Protocol, vip)
				has := p.owners[t] == f
				if r, is := p.rules[t]; has && is && vip.Kind == config.ClusterIP && p.Portal.Traits().Redirects && r.Sole == p.node.Locality.IsNode(vip.Addr) {
					p.mark(f)
					break
				}
				if !vip.External() || vip.Addr.IsUnspecified() {
					continue
				}
				if inUse := f.inUseOnNode(vip) != nil; has == inUse {
					p.mark(f)
					break
				}
			}
		}
	}
}
