package admin

import (
	"cmp"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/proxy"
	"github.com/usherproxy/usher/proxy/admin/api"
	"github.com/usherproxy/usher/proxy/balance"
)

// services answers /services. It computes details only for the Services of the page, unless the query is
// about their state.
func (a *API) services(r *http.Request) (any, error) {
	query := r.URL.Query()
	size, err := limit(query)
	if err != nil {
		return nil, err
	}
	match, err := serviceMatcher(query)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	views := a.proxy.Inspect(match)
	a.proxy.AddOpenBytes(views)
	all, reports := groups(views), a.reportsOf()
	if more := a.rejected(reports, match, all); len(more) > 0 {
		all = append(all, more...)
		slices.SortFunc(all, func(a, b group) int { return cmp.Compare(a.key(), b.key()) })
	}
	text, state, protocol := strings.ToLower(query.Get("q")), query.Get("state"), query.Get("protocol")
	all = slices.DeleteFunc(all, func(g group) bool {
		return text != "" && !g.contains(text) || protocol != "" && !g.has(config.Protocol(protocol)) ||
			state != "" && string(g.summary(now).State) != state
	})
	out := api.ServiceList{Page: api.Page{Total: len(all)}, Items: []api.Service{}}
	if by := api.ServiceKeys[query.Get("sort")]; by != nil {
		slices.SortStableFunc(all, func(a, b group) int { return cmp.Compare(by(b.totals()), by(a.totals())) })
		all, out.Continue, err = offset(all, size, query.Get("continue"))
	} else {
		if last := query.Get("continue"); last != "" {
			all = slices.DeleteFunc(all, func(g group) bool { return g.key() <= last })
		}
		if len(all) > size {
			all = all[:size]
			out.Continue = all[size-1].key()
		}
	}
	if err != nil {
		return nil, err
	}
	for _, g := range all {
		out.Items = append(out.Items, a.summary(g, reports[g.name()], now))
	}
	return out, nil
}

// serviceMatcher returns a match function for the parameters namespace, name and service.
func serviceMatcher(query url.Values) (func(types.NamespacedName) bool, error) {
	listed := map[types.NamespacedName]bool{}
	for _, s := range query["service"] {
		name, err := serviceName(s)
		if err != nil {
			return nil, err
		}
		listed[name] = true
	}
	namespace, name := query.Get("namespace"), query.Get("name")
	return func(s types.NamespacedName) bool {
		return (namespace == "" || s.Namespace == namespace) && (name == "" || s.Name == name) && (len(listed) == 0 || listed[s])
	}, nil
}

func (a *API) service(r *http.Request) (any, error) {
	name := types.NamespacedName{Namespace: r.PathValue("namespace"), Name: r.PathValue("name")}
	views, reports := a.proxy.InspectService(name), a.reportsOf()
	a.proxy.AddOpenBytes(views)
	g := group(views)
	if len(g) == 0 {
		rejected := a.rejected(reports, func(n types.NamespacedName) bool { return n == name }, nil)
		if len(rejected) == 0 {
			return nil, notFound(fmt.Sprintf("no Service %s is served", name))
		}
		g = rejected[0]
	}
	now := time.Now()
	out := api.ServiceDetail{Service: a.summary(g, reports[name], now), Details: make([]api.ServicePort, 0, len(views))}
	for i := range views {
		out.Details = append(out.Details, detail(&views[i], &a.proxy.Options, now))
	}
	return out, nil
}

// group holds the service ports of one Service. A rejected one has a single port without a VIP; all others
// have VIPs.
type group []proxy.PortView

// groups divides views, which are sorted by Service.
func groups(views []proxy.PortView) (list []group) {
	for len(views) > 0 {
		n := 1
		for n < len(views) && views[n].Port.ID.ServiceName() == views[0].Port.ID.ServiceName() {
			n++
		}
		list = append(list, group(views[:n]))
		views = views[n:]
	}
	return list
}

func (g group) name() types.NamespacedName { return g[0].Port.ID.ServiceName() }

// key returns a name that sorts as PortID does. With a slash it would not, since "-" comes before "/".
func (g group) key() string { return g[0].Port.ID.Namespace + "\x00" + g[0].Port.ID.Service }

func (g group) has(protocol config.Protocol) bool {
	return slices.ContainsFunc(g, func(v proxy.PortView) bool { return v.Port.Protocol == protocol })
}

// contains reports whether text, in lower case, is in one of the names and addresses of the Service.
func (g group) contains(text string) bool {
	in := func(s string) bool { return strings.Contains(strings.ToLower(s), text) }
	if in(g[0].Port.ID.ServiceName().String()) {
		return true
	}
	for _, v := range g {
		if in(v.Port.ID.Port) ||
			slices.ContainsFunc(v.Port.VIPs, func(vip config.VIP) bool { return in(vip.AddrPort().String()) }) ||
			slices.ContainsFunc(v.Endpoints, func(e *balance.Endpoint) bool { return in(e.Addr.String()) || in(e.Pod) }) {
			return true
		}
	}
	return false
}

func (g group) totals() (all api.Totals) {
	for _, v := range g {
		all = all.Plus(totals(v.Totals))
	}
	return all
}

func (g group) summary(now time.Time) api.Service {
	id := g[0].Port.ID
	s := api.Service{Namespace: id.Namespace, Name: id.Service, Totals: g.totals(), State: g.state(now), Ends: g.ends(), Latency: g.latency(now)}
	if s.State == api.ServiceRejected {
		s.Ports = []api.PortSummary{}
		return s
	}
	seen, n := map[netip.AddrPort]bool{}, map[api.EndpointState]int{}
	for i := range g {
		v := &g[i]
		s.Ports = append(s.Ports, portSummary(v))
		s.AffinitySeconds = max(s.AffinitySeconds, v.Port.AffinityTimeout.Seconds())
		for _, e := range v.Endpoints {
			if !seen[e.Addr] {
				seen[e.Addr] = true
				n[stateOf(v, e, now)]++
			}
		}
	}
	s.Endpoints = api.EndpointCounts{Total: len(seen), Ready: n[api.EndpointReady], Outlier: n[api.EndpointOutlier],
		Unresponsive: n[api.EndpointUnresponsive], Quarantined: n[api.EndpointQuarantined],
		Terminating: n[api.EndpointTerminating], NotReady: n[api.EndpointNotReady]}
	return s
}

// state is that of the port in the worst state.
func (g group) state(now time.Time) api.ServiceState {
	if len(g[0].Port.VIPs) == 0 {
		return api.ServiceRejected
	}
	worst := api.ServiceOK
	for i := range g {
		if state := portState(&g[i], now); state.Badness() > worst.Badness() {
			worst = state
		}
	}
	return worst
}

// portState returns the state of one service port.
func portState(v *proxy.PortView, now time.Time) api.ServiceState {
	quarantined := 0
	for _, e := range v.Cluster.Endpoints() {
		if stateOf(v, e, now) == api.EndpointQuarantined {
			quarantined++
		}
	}
	allReady := !slices.ContainsFunc(v.Endpoints, func(e *balance.Endpoint) bool { return stateOf(v, e, now) != api.EndpointReady })
	switch {
	case v.Problem != nil:
		return api.ServiceProblem
	case v.Cluster.Len() == 0:
		return api.ServiceNoEndpoints
	case v.Internal.Len() == 0:
		return api.ServiceNoLocalEndpoints
	case quarantined == v.Cluster.Len():
		return api.ServiceDown
	case !allReady:
		return api.ServiceDegraded
	case len(dropped(v)) > 0:
		return api.ServiceNoLocalEndpointsExternal
	}
	return api.ServiceOK
}

func stateOf(v *proxy.PortView, e *balance.Endpoint, now time.Time) api.EndpointState {
	if e.Health(now).State == balance.Down {
		return api.EndpointQuarantined
	}
	switch {
	case e.Terminating && !e.Ready: // with publishNotReadyAddresses it is both, and has its full share
		return api.EndpointTerminating
	case e.Ready && e.Outlier(now):
		return api.EndpointOutlier
	case e.Ready && unresponsive(v, e, now):
		return api.EndpointUnresponsive
	case e.Ready:
		return api.EndpointReady
	}
	return api.EndpointNotReady
}

// When an endpoint is unresponsive: at least fewestUnresponsive clients got no byte recently, since a browser
// sometimes opens a connection and sends no request. A client whose connection is open counts after longWait. If
// the endpoint answers others, the part of its clients without a byte is at least unresponsivePart. It is also at
// least unresponsiveTimes that of the other endpoints, which had at least fewestClientsCompare clients.
const (
	longWait             = 10 * time.Second
	fewestUnresponsive   = 5
	unresponsivePart     = 0.1
	unresponsiveTimes    = 5
	fewestClientsCompare = 20
)

// unresponsive reports whether clients recently connected to e, but none got a byte, or far more left without
// one than at the other endpoints. Another endpoint of the port must have sent some: where none sends any,
// the protocol may have no answers. The kernel accepts connections also for a program that hangs.
func unresponsive(v *proxy.PortView, e *balance.Endpoint, now time.Time) bool {
	few := func(without, clients float64) bool {
		return without < fewestUnresponsive || without < unresponsivePart*clients
	}
	l := recentLatencyOf(e, now)
	if clients := float64(clientsWaited(e, l, now)); few(clients-float64(l.firstByte.Number()), clients) {
		return false // true of almost all endpoints; the rest visits all connections and endpoints
	}
	waiting := v.Waiting(now, longWait)
	each, all := v.Responses(func(o *balance.Endpoint) proxy.Responses {
		l := recentLatencyOf(o, now)
		return proxy.Responses{With: float64(l.firstByte.Number()), Without: float64(withoutResponse(o, waiting, now)), Clients: float64(clientsWaited(o, l, now))}
	})
	own := each[e]
	silent := own.Clients >= fewestUnresponsive && own.With == 0
	if !silent && few(own.Without, own.Clients) {
		return false
	}
	others := proxy.Responses{With: all.With - own.With, Without: all.Without - own.Without, Clients: all.Clients - own.Clients}
	return others.With > 0 && (silent ||
		others.Clients >= fewestClientsCompare && own.Without*others.Clients >= unresponsiveTimes*others.Without*own.Clients)
}

// withoutResponse returns how many recent connections of e ended as no-response, plus those that still wait.
func withoutResponse(e *balance.Endpoint, waiting map[netip.AddrPort]int64, now time.Time) int64 {
	_, ended := e.NoResponse(now)
	return ended + waiting[e.Addr]
}

// clientsWaited returns how many clients connected to e recently. It leaves out those that closed soon and moved no
// data, such as TCP health checks. l is the latency of e.
func clientsWaited(e *balance.Endpoint, l recentLatency, now time.Time) int64 {
	return max(0, int64(l.connect.Number())-e.UnusedRecently(now))
}

func portSummary(v *proxy.PortView) api.PortSummary {
	s := api.PortSummary{Name: v.Port.ID.Port, Family: v.Port.ID.Family.String(), Protocol: string(v.Port.Protocol), Settings: v.Port.Texts(), VIP: v.Port.VIPs[0].AddrPort().String()}
	if s.Sees = sees(v.SourceAddress); v.SourceAddress == 0 {
		s.Sees = sees(portal.SourceClient)
	}
	if len(v.Listeners) > 0 {
		s.Listener = v.Listeners[0].String()
	}
	if v.Problem != nil {
		s.Problem = &api.Problem{Reason: string(v.Problem.Reason), Message: v.Problem.Err.Error()}
	}
	s.Dropped, s.ProxyProtocol = dropped(v), proxyProtocol(v.Port)
	if t := v.Port.Topology; t != nil {
		s.Topology = &api.Topology{Keys: t.Keys, Key: t.Key, Value: t.Value, Text: topologyInWords(t)}
	}
	return s
}

// dropped returns the clients that are not served because no usable endpoint is on this node.
func dropped(v *proxy.PortView) (list []api.Dropped) {
	if v.Cluster == nil || v.Cluster.Len() == 0 { // not known yet, or all are refused
		return nil
	}
	outside := slices.ContainsFunc(v.Port.VIPs, func(vip config.VIP) bool { return vip.External() })
	for _, of := range []struct {
		clients string
		there   bool
		set     *balance.Set
	}{{"internal", true, v.Internal}, {"external", outside, v.External}} {
		if of.there && of.set.Len() == 0 {
			list = append(list, api.Dropped{Clients: of.clients,
				Text: fmt.Sprintf("%sTrafficPolicy is Local, and no usable endpoint is on this node", of.clients)})
		}
	}
	return list
}

// proxyProtocol returns the port's use of the PROXY protocol, or nil.
func proxyProtocol(port config.ServicePort) *api.ProxyProtocol {
	p := api.ProxyProtocol{ToEndpoints: port.ProxyProtocol.String()}
	for _, vip := range port.VIPs {
		if vip.Balancers != nil { // the same for all that have them
			p.From = nil
			for _, network := range vip.Balancers.Networks {
				p.From = append(p.From, network.String())
			}
		}
	}
	if p.ToEndpoints == "" && p.From == nil {
		return nil
	}
	return &p
}

func detail(v *proxy.PortView, o *proxy.Options, now time.Time) api.ServicePort {
	p := api.ServicePort{
		PortSummary: portSummary(v), AppProtocol: v.Port.AppProtocol,
		VIPs: []api.VIP{}, Listeners: []string{}, Rules: []api.PortalRule{}, Endpoints: make([]api.Endpoint, 0, len(v.Endpoints)),
		Policies: policies(v.Port), Totals: totals(v.Totals), Ends: group{*v}.ends(), Latency: group{*v}.latency(now),
	}
	for _, vip := range v.Port.VIPs {
		out := api.VIP{Kind: string(vip.Kind), Address: vip.AddrPort().String()}
		for _, source := range vip.Sources {
			out.Sources = append(out.Sources, source.String())
		}
		p.VIPs = append(p.VIPs, out)
	}
	for _, l := range v.Listeners {
		p.Listeners = append(p.Listeners, l.String())
	}
	for _, r := range v.Rules {
		rule := NewPortalRule(o.Portal.Mode(), r)
		rule.Text = ruleInWords(o.Portal.Traits(), r)
		p.Rules = append(p.Rules, rule)
	}
	for _, e := range v.Endpoints {
		p.Endpoints = append(p.Endpoints, endpoint(v, e, now))
	}
	return p
}

func policies(port config.ServicePort) api.Policies {
	words := map[bool]string{false: "Cluster", true: "Local"}
	return api.Policies{Internal: words[port.InternalLocal], External: words[port.ExternalLocal], AffinitySeconds: port.AffinityTimeout.Seconds()}
}

func endpoint(v *proxy.PortView, e *balance.Endpoint, now time.Time) api.Endpoint {
	l, state := recentLatencyOf(e, now), stateOf(v, e, now)
	none, noneRecently := e.NoResponse(now)
	out := api.Endpoint{
		Address: e.Addr.String(), Pod: e.Pod, Node: e.Node, Zone: e.Zone, State: state, Since: endpointSince(e, state, now), Weight: e.Weight.Int(),
		Ready: e.Ready, Serving: e.Serving, Terminating: e.Terminating, UsedFor: []string{},
		Quarantine: quarantine(e, now),
		Active:     e.Active.Load(), Limit: v.Port.EndpointLimit, Connected: e.Connected.Load(), Failed: e.Failed.Load(), FailedRecently: e.FailedRecently(now), NoResponse: none, NoResponseRecently: noneRecently,
		BytesToEndpoint: e.ToEndpoint.Load() + v.OpenBytes[e.Addr].ToEndpoint, BytesToClient: e.ToClient.Load() + v.OpenBytes[e.Addr].ToClient, Latency: l.forAPI(),
	}
	if state == api.EndpointUnresponsive {
		out.WaitingLong = v.Waiting(now, longWait)[e.Addr]
	}
	var without []string // clients whose connections do not go to it
	for _, use := range []struct {
		name string
		set  *balance.Set
	}{{"internal", v.Internal}, {"external", v.External}, {"node", v.Cluster}} {
		if use.set.Find(e.Addr) != nil {
			if share := use.set.Share(e, now); share < 1 {
				out.Share = share
			}
			out.UsedFor = append(out.UsedFor, use.name)
		} else {
			without = append(without, use.name)
		}
	}
	if len(without) > 0 {
		out.NotUsed = inWords(proxy.WhyLeftOut(v.Cluster, e), v.Port.Topology)
	}
	if len(out.UsedFor) > 0 && len(without) > 0 {
		out.NotUsed = "for " + strings.Join(without, ", ") + ": " + out.NotUsed
	}
	return out
}

func quarantine(e *balance.Endpoint, now time.Time) *api.Quarantine {
	h := e.Health(now)
	if h.State != balance.Down {
		return nil
	}
	return &api.Quarantine{Until: h.Until, SecondsLeft: max(0, h.Until.Sub(now)).Seconds(), Probed: h.UntilProbe, Failures: h.Failures, Cause: h.Err.Error()}
}

// Planned returns the details that port would have in a proxy with the api.Status.Settings of the node, without
// listeners, rules and connections.
func Planned(port config.ServicePort, ofNode map[string]string) api.ServicePort {
	v := proxy.PortView{Port: port}
	if _, log := ofNode[accessLog]; !log {
		v.Port.AccessLog = false
	}
	if ofNode[clientAddress] == "node" || port.NodeAddress {
		v.SourceAddress = portal.SourceConfigured
	}
	p := detail(&v, &proxy.Options{}, time.Time{})
	uses := map[config.Endpoint][]string{}
	for _, use := range []struct {
		name      string
		endpoints []config.Endpoint
	}{{"internal", port.Internal}, {"external", port.External}, {"node", port.Cluster}} {
		for _, e := range use.endpoints {
			uses[e] = append(uses[e], use.name)
		}
	}
	for _, e := range port.Endpoints {
		p.Endpoints = append(p.Endpoints, api.Endpoint{Address: e.Addr.String(), Pod: e.Pod, Node: e.Node, Zone: e.Zone,
			Weight: e.Weight.Int(), Ready: e.Ready, Serving: e.Serving, Terminating: e.Terminating, UsedFor: uses[e]})
	}
	return p
}
