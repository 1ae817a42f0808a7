package frontend

import (
	"iter"
	"maps"
	"net/netip"
	"sync/atomic"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/portal/kernel"
)

// Locality determines whether a client is a Pod or a process of this node. Traffic policies for external clients do not
// apply to such clients.
type Locality struct {
	current   atomic.Pointer[localAddrs]     // not nil from Node.Init on
	isPod     func(netip.Addr) bool          // Settings.IsPod
	nodePorts atomic.Pointer[[]netip.Prefix] // see SetNodePorts; not nil from Node.Init on
}

// localAddrs is immutable: it is replaced as a whole.
type localAddrs struct {
	addrs map[netip.Addr]bool // of this node
	pods  []netip.Prefix      // of its Pods
}

// Refresh reads the node's addresses. If that fails, it keeps the previous ones.
func (l *Locality) Refresh() {
	addrs, err := kernel.LocalAddrs()
	if err != nil {
		return
	}
	next := &localAddrs{addrs: make(map[netip.Addr]bool, len(addrs)), pods: l.current.Load().pods}
	for _, a := range addrs {
		next.addrs[a] = true
	}
	l.current.Store(next)
}

// SetPods replaces the networks of this node's Pods.
func (l *Locality) SetPods(pods []netip.Prefix) {
	l.current.Store(&localAddrs{addrs: l.current.Load().addrs, pods: pods})
}

// IsNode reports whether a is an address of this node.
func (l *Locality) IsNode(a netip.Addr) bool {
	return a.IsLoopback() || l.current.Load().addrs[a]
}

// SetNodePorts sets the networks within which this node's addresses have node ports; none means all.
func (l *Locality) SetNodePorts(within []netip.Prefix) { l.nodePorts.Store(&within) }

// HasNodePorts reports whether a is an address of this node that has node ports.
func (l *Locality) HasNodePorts(a netip.Addr) bool {
	within := *l.nodePorts.Load()
	return l.IsNode(a) && (len(within) == 0 || kernel.ContainsAddr(within, a))
}

// Addresses returns the addresses of this node.
func (l *Locality) Addresses() iter.Seq[netip.Addr] {
	return maps.Keys(l.current.Load().addrs)
}

// OfThisNode determines by a connection's source and destination whether the client is a process or a Pod of this node.
// If a VIP is an address of the node, the node's processes connect to the VIP from the VIP itself.
func (l *Locality) OfThisNode(from, to netip.Addr) bool { return from == to || l.local(from) }

// Admits reports whether vip allows the client. If the VIP is an address of this node, a process of this node connects
// from the VIP itself. The process is allowed if vip allows any address of this node.
func (l *Locality) Admits(vip *config.VIP, from, to netip.Addr) bool {
	if vip.Allows(from) {
		return true
	}
	if from == to {
		for a := range l.current.Load().addrs {
			if vip.Allows(a) {
				return true
			}
		}
	}
	return false
}

// local reports whether a is an address of this node or of one of its Pods.
func (l *Locality) local(a netip.Addr) bool {
	if l.IsNode(a) {
		return true
	}
	for _, p := range l.current.Load().pods {
		if p.Contains(a) {
			return true
		}
	}
	return l.isPod != nil && l.isPod(a)
}
