package proxy

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/usherproxy/usher/affinity"
	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/proxy/balance"
	"github.com/usherproxy/usher/proxy/frontend"
	"github.com/usherproxy/usher/proxy/trace"
)

// PortView is a snapshot of one service port for users: its configuration, listeners, rules and state. Its endpoints,
// sets, affinity and metrics are shared with the proxy; treat them as read-only.
type PortView struct {
	Port      config.ServicePort
	Listeners []netip.AddrPort // none if it has no endpoints
	Problem   *Problem         // nil if there is none
	Rules     []portal.Rule    // wanted rules; only set by InspectService

	Endpoints []*balance.Endpoint // usable or not
	// SourceAddress is the source address that all endpoints see; zero if that depends on the client.
	SourceAddress portal.SourceAddress
	// Cluster, Internal and External are as in config.ServicePort.
	Cluster, Internal, External *balance.Set

	log     *trace.Log               // for Waiting
	waiting map[netip.AddrPort]int64 // result of the first call of Waiting

	// Results of the first call of Responses.
	responses map[*balance.Endpoint]Responses
	all       Responses

	Affinity    *affinity.Table
	Totals      frontend.Totals
	OpenBytes   map[netip.AddrPort]trace.Moved // of open connections, by endpoint; only set by AddOpenBytes
	PortMetrics *frontend.PortMetrics          // nil if the service port has had no client yet
}

// Waiting returns, by endpoint, how many open connections of the service port have sent data and waited at least d
// without receiving any. Only the first call looks at all open connections. Later calls, one for each endpoint, return
// the same map.
func (v *PortView) Waiting(now time.Time, d time.Duration) map[netip.AddrPort]int64 {
	if v.waiting == nil && v.log != nil {
		v.waiting = v.log.Waiting(v.Port.ID, now, d)
	}
	return v.waiting
}

// Responses counts the recent connections of an endpoint, or of all endpoints of a service port.
type Responses struct {
	With, Without float64 // connections that got a byte from the endpoint, and that did not
	Clients       float64 // connections that waited for a byte, whether they got one or not
}

// Responses calls of for each endpoint, and returns the results and their sum. Only the first call does so: callers ask
// once for each endpoint.
func (v *PortView) Responses(of func(*balance.Endpoint) Responses) (each map[*balance.Endpoint]Responses, all Responses) {
	if v.responses == nil {
		v.responses = make(map[*balance.Endpoint]Responses, len(v.Endpoints))
		for _, e := range v.Endpoints {
			r := of(e)
			v.responses[e] = r
			v.all.With, v.all.Without, v.all.Clients = v.all.With+r.With, v.all.Without+r.Without, v.all.Clients+r.Clients
		}
	}
	return v.responses, v.all
}

// Inspect returns the service ports of the Services for which match returns true, in PortID order. Configuration
// changes and calls of Proxy.Serve wait meanwhile, but no other clients do.
func (p *Proxy) Inspect(match func(types.NamespacedName) bool) (list []PortView) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var fronts []*frontEnd
	for name, of := range p.services {
		if match(name) {
			fronts = slices.AppendSeq(fronts, maps.Values(of))
		}
	}
	slices.SortFunc(fronts, func(a, b *frontEnd) int { return a.ID().Compare(b.ID()) }) // PortViews are large to swap
	list = make([]PortView, 0, len(fronts))
	for _, f := range fronts {
		list = append(list, f.inspect())
	}
	return list
}

// AddOpenBytes sets OpenBytes in list, and adds these bytes to the Totals, which otherwise count only ended connections
// and UDP sessions. It returns the sum for all service ports, including those not in list.
func (p *Proxy) AddOpenBytes(list []PortView) (all trace.Moved) {
	ports := p.Trace.OpenBytes()
	for _, of := range ports {
		for _, m := range of {
			all = all.Plus(m)
		}
	}
	for i := range list {
		v := &list[i]
		v.OpenBytes = ports[v.Port.ID]
		for _, m := range v.OpenBytes {
			v.Totals.ToEndpoint += m.ToEndpoint
			v.Totals.ToClient += m.ToClient
		}
	}
	return all
}

// Status returns all service ports, in PortID order.
func (p *Proxy) Status() []PortView {
	return p.Inspect(func(types.NamespacedName) bool { return true })
}

// InspectService returns the service ports of one Service with their rules.
func (p *Proxy) InspectService(name types.NamespacedName) (list []PortView) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, f := range p.services[name] {
		v := f.inspect()
		for _, t := range f.owned {
			if r, has := p.rules[t]; has {
				v.Rules = append(v.Rules, r)
			}
		}
		slices.SortFunc(v.Rules, func(a, b portal.Rule) int { return a.Target.Compare(b.Target) })
		list = append(list, v)
	}
	slices.SortFunc(list, func(a, b PortView) int { return a.Port.ID.Compare(b.Port.ID) })
	return list
}

// inspect returns the PortView of f, without Rules. The caller holds Proxy.mu.
func (f *frontEnd) inspect() PortView {
	v := f.View()
	out := PortView{
		Port: v.Port, Problem: f.proxy.problems[f.ID()],
		SourceAddress: f.Origin(v, netip.Addr{}, v.Port.VIPs[0].Addr, &config.Endpoint{Addr: v.Port.VIPs[0].AddrPort()}).SourceAddress,
		Endpoints:     v.All, Cluster: v.Cluster, Internal: v.Internal, External: v.External,
		Affinity: f.Affinity, Totals: f.Totals(), PortMetrics: f.PortMetrics(), log: f.Trace,
	}
	for _, l := range f.listeners {
		out.Listeners = append(out.Listeners, l.Addr())
	}
	return out
}
