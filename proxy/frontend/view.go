package frontend

import (
	"net/netip"
	"slices"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/proxy/balance"
	"github.com/usherproxy/usher/proxy/conn"
	"github.com/usherproxy/usher/proxy/forward"
)

// View is a front end's configuration at one moment: a value that is replaced,
// never changed.
type View struct {
	Port config.ServicePort
	All  []*balance.Endpoint // usable or not
	// Those for clients, by who asks: see config.ServicePort.
	Cluster, Internal, External *balance.Set

	Limits   *forward.Limits
	Replaced chan struct{} // closed when another view takes this one's place

	Clients *conn.Port // for the records of clients
}

// Endpoints returns the endpoints for clients that came to vip.
func (v *View) Endpoints(vip *config.VIP, nodeLocal bool) *balance.Set {
	switch {
	case !vip.External():
		return v.Internal
	case nodeLocal:
		return v.Cluster
	}
	return v.External
}

// VIPAt returns the VIP with that very address and port.
func (v *View) VIPAt(at netip.AddrPort) (*config.VIP, bool) {
	for i := range v.Port.VIPs { // one to some tens
		if vip := &v.Port.VIPs[i]; vip.AddrPort() == at {
			return vip, true
		}
	}
	return nil, false
}

// VIPOf returns the VIP that is a portal's target.
func (v *View) VIPOf(t portal.Target) (*config.VIP, bool) {
	return v.VIPAt(netip.AddrPortFrom(t.Addr, t.Port))
}

// vipFor returns the VIP that a client which connected to original meant: that one, or a
// node port.
func (v *View) vipFor(original netip.AddrPort) (*config.VIP, bool) {
	if vip, ok := v.VIPAt(original); ok {
		return vip, true
	}
	return v.VIPAt(netip.AddrPortFrom(portal.FamilyOf(original.Addr()).Any(), original.Port()))
}

// Redirect returns the rule that leads from t to a listener.
func (v *View) Redirect(t portal.Target, port uint16) portal.Rule {
	vip, _ := v.VIPOf(t)
	r := portal.Rule{Target: t, Action: portal.Redirect, LocalPort: port}
	if len(vip.Sources) > 0 {
		// Where the VIP is an address of this node, its processes come from there:
		// the listener knows whether they may; see Locality.Admits.
		itself := netip.PrefixFrom(vip.Addr, vip.Addr.BitLen())
		sources := append(slices.Clip(vip.Sources), itself)
		if vip.Balancers != nil { // who comes through them the listener is told
			sources = append(sources, vip.Balancers.Networks...)
		}
		r.Sources = portal.SourcesOf(sources)
	}
	if vip.External() && v.External.Len() == 0 {
		r.Action = v.Action(vip) // for clients of this node it leads to the listener all the same
	}
	return r
}

// ServesLike reports whether each kind of client that has endpoints by v has some by other, too. For
// service ports that differ in endpoints only, Action and Redirect are the same then.
func (v *View) ServesLike(other *View) bool {
	return (v.Cluster.Len() == 0) == (other.Cluster.Len() == 0) && (v.Internal.Len() == 0) == (other.Internal.Len() == 0) &&
		(v.External.Len() == 0) == (other.External.Len() == 0)
}

// Action says what becomes of what is sent to vip.
func (v *View) Action(vip *config.VIP) portal.Action {
	return ActionFor(vip.External(), v.Internal.Len(), v.External.Len(), v.Cluster.Len())
}

// ActionFor says what becomes of what is sent to a VIP with so many endpoints for each kind of
// client. Dropped is where the policy is Local and endpoints are on other nodes only; of VIPs
// that are external, what clients of this node send is led to those all the same.
func ActionFor(external bool, internals, externals, all int) portal.Action {
	switch {
	case all == 0 && (external || internals == 0):
		return portal.Reject
	case external && externals == 0, !external && internals == 0:
		return portal.Drop
	}
	return portal.Redirect
}
