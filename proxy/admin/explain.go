package admin

import (
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/proxy"
	"github.com/usherproxy/usher/proxy/admin/api"
	"github.com/usherproxy/usher/proxy/balance"
	"github.com/usherproxy/usher/proxy/trace"
)

func (a *API) explain(r *http.Request) (any, error) {
	q, err := newQuestion(r.URL.Query())
	if err != nil {
		return nil, err
	}
	now := time.Now()
	x, err := a.proxy.Explain(q, now)
	if err != nil {
		return nil, questionError(err)
	}
	id, traits := x.Port.ID, a.proxy.Portal.Traits()
	out := api.Explanation{
		Service: id.ServiceName().String(), Port: id.Port, Family: id.Family.String(), Protocol: string(x.Port.Protocol),
		VIP: x.VIP.AddrPort().String(), VIPKind: string(x.VIP.Kind), Verdict: verdict(x.Cause, traits.Redirects), Policy: policy(&x),
		Order: order(&x, now), NotTried: notTried(&x, now), ScheduleMs: []float64{},
	}
	out.Text = sentences(&x, traits, q.Client, out.Order, now)
	if q.Client.IsValid() {
		out.Client = q.Client.String()
	}
	if x.Affinity != nil {
		entry := affinityEntry(*x.Affinity, &proxy.PortView{Port: x.Port}, podOf(x.Endpoints, x.Affinity.Endpoint))
		out.Affinity = &entry
	}
	if x.Port.Protocol != config.UDP {
		for _, slot := range a.proxy.Schedule {
			out.ScheduleMs = append(out.ScheduleMs, milliseconds(slot))
		}
	}
	return out, nil
}

func newQuestion(query url.Values) (q proxy.Question, err error) {
	service := query.Get("service")
	if !strings.Contains(service, "/") {
		service = "default/" + service
	}
	if q.Service, err = serviceName(service); err != nil {
		return q, err
	}
	q.Port = query.Get("port")
	if v := query.Get("client"); v != "" {
		if q.Client, err = netip.ParseAddr(v); err != nil {
			return q, badQuery("client", v, "an address such as 192.0.2.2")
		}
		q.Client = q.Client.Unmap()
	}
	if v := query.Get("vip"); v != "" {
		if q.VIP, err = netip.ParseAddrPort(v); err != nil {
			addr, err := netip.ParseAddr(v)
			if err != nil {
				return q, badQuery("vip", v, "an address, or an address and port")
			}
			q.VIP = netip.AddrPortFrom(addr, 0)
		}
	}
	return q, nil
}

// questionError returns the API error for a question that has no answer.
func questionError(err error) error {
	var q *proxy.QuestionError
	if !errors.As(err, &q) {
		return err
	}
	code := http.StatusBadRequest
	if q.Field == "service" {
		code = http.StatusNotFound
	}
	return &api.Error{Code: code, Message: q.Error()}
}

// verdict returns what would happen to a connection. redirects is that of the portal's traits: such a portal drops
// clients. Otherwise the listener resets them, or the kernel refuses them for lack of a listener.
func verdict(cause proxy.Cause, redirects bool) api.Verdict {
	switch {
	case cause == proxy.NoCause:
		return api.WouldTry
	case cause == proxy.HasProblem:
		return api.WouldFail
	case redirects && cause != proxy.NoEndpoint:
		return api.WouldDrop
	case cause == proxy.SourceDenied:
		return api.WouldRefuse
	}
	return api.WouldReject
}

// candidate returns e in the API's form.
func candidate(e *balance.Endpoint, reason, text string, now time.Time) api.Candidate {
	return api.Candidate{Endpoint: e.Addr.String(), Pod: e.Pod, Node: e.Node, Reason: reason, Text: text, Quarantine: quarantine(e, now)}
}

// order returns the endpoints that would be tried, in that order.
func order(x *proxy.Explanation, now time.Time) []api.Candidate {
	out := []api.Candidate{}
	for i, c := range x.Order {
		why := whyNext(x, c, now)
		if share := x.Set.Share(c.Endpoint, now); share < 1 {
			why += fmt.Sprintf("; new, at %.0f%% of its share (slow start)", 100*share)
		}
		one := candidate(c.Endpoint, c.Reason.String(), why, now)
		if one.Sees = sees(x.SourceAddress[i]); x.SourceAddress[i] == 0 {
			one.SourceText = "its client's own address if the client is a Pod on this node or the endpoint is on this node, else this node's"
		}
		out = append(out, one)
	}
	return out
}

// notTried returns the endpoints that would not be tried.
func notTried(x *proxy.Explanation, now time.Time) []api.Candidate {
	out := []api.Candidate{}
	for _, e := range x.NotTried {
		why := inWords(e.Reason, x.Port.Topology)
		if drain := x.Port.DrainTimeout; e.Terminating && !e.Ready && drain > 0 {
			why += fmt.Sprintf("; its connections end %s after termination started", trace.Short(drain))
		}
		out = append(out, candidate(e.Endpoint, e.Reason, why, now))
	}
	return out
}

// inWords returns the reason for not trying an endpoint as text.
func inWords(reason string, t *config.Topology) string {
	if reason == "topology" && t != nil && len(t.Keys) > 0 {
		return elsewhere(t)
	}
	return whyNotTried[reason]
}

var whyNotTried = map[string]string{
	"terminating":  "its Pod is terminating and others are ready",
	"not-serving":  "its Pod is terminating and no longer serves",
	"not-ready":    "it is not ready",
	"weight-0":     "its weight is 0: it gets no new connections",
	"policy-local": "it is on another node, and the policy is Local",
	"full":         "it is at its connection limit",
	"topology":     "the EndpointSlice's hints reserve it for other nodes or zones",
}

// elsewhere returns why topology keys exclude an endpoint.
func elsewhere(t *config.Topology) string {
	if t.Key == "" {
		return "its node shares none of the topology keys with this node"
	}
	return fmt.Sprintf("its node's %s is not %s, as this node's is", t.Key, t.Value)
}

// policy returns which endpoints count for this client.
func policy(x *proxy.Explanation) string {
	words, all := policyWords(x)
	if t := x.Port.Topology; t != nil && all {
		return words + "; " + topologyInWords(t)
	}
	return words
}

// topologyInWords returns how endpoints were selected from those of all nodes.
func topologyInWords(t *config.Topology) string {
	keys := "topology keys " + strings.Join(t.Keys, ", ") + ": "
	switch {
	case len(t.Keys) == 0:
		return fmt.Sprintf("the EndpointSlices' hints for %s=%s", t.Key, t.Value)
	case t.Key == "":
		return keys + "no endpoint shares any key with this node"
	case t.Value == "":
		return keys + "no endpoint shares any other key with this node, so all endpoints count"
	}
	return fmt.Sprintf("%s%s=%s decides", keys, t.Key, t.Value)
}

// policyWords is policy without the topology. It also returns whether the endpoints of all nodes count.
func policyWords(x *proxy.Explanation) (words string, all bool) {
	switch {
	case !x.VIP.External() && x.Port.InternalLocal:
		return "internalTrafficPolicy Local: only endpoints on this node", false
	case !x.VIP.External():
		return "internalTrafficPolicy Cluster: endpoints on all nodes", true
	case x.Port.ExternalLocal && x.NodeLocal:
		return "externalTrafficPolicy Local, but the client is on this node: endpoints on all nodes", true
	case x.Port.ExternalLocal:
		return "externalTrafficPolicy Local: only endpoints on this node", false
	}
	return "externalTrafficPolicy Cluster: endpoints on all nodes", true
}

// sentences describes what would happen to the client.
func sentences(x *proxy.Explanation, traits portal.Traits, client netip.Addr, order []api.Candidate, now time.Time) (text []string) {
	say := func(format string, args ...any) { text = append(text, fmt.Sprintf(format, args...)) }
	switch x.Cause {
	case proxy.HasProblem:
		say("The service port has a problem: %v.", x.Problem.Err)
	case proxy.SourceDenied:
		effect := "usher resets it"
		if traits.Redirects {
			effect = "the portal drops its packets"
		}
		say("The client %s is not in loadBalancerSourceRanges%s: %s.", client, ranges(x.VIP.Sources), effect)
	case proxy.NoEndpoint:
		if t := x.Port.Topology; t != nil && t.Key == "" && len(x.Endpoints) > 0 {
			say("No usable endpoint is on a node that shares a topology key with this node.")
		}
		if traits.Redirects {
			say("No usable endpoint: usher does not listen, and the portal rejects clients.")
		} else {
			say("No usable endpoint: usher does not listen, and the kernel refuses clients.")
		}
	case proxy.NoEndpointHere:
		if traits.Redirects {
			say("The policy is Local and no usable endpoint is on this node: the portal drops packets.")
		} else {
			say("The policy is Local and no usable endpoint is on this node: the client is refused.")
		}
	}
	if client.IsValid() && x.VIP.Expects(client) {
		say("%s is a load balancer: it must start with a PROXY protocol header. The rest applies to the client that the header names.", client)
	}
	if x.Cause == proxy.NoCause && x.Port.ProxyProtocol != 0 {
		say("A PROXY protocol %s header passes the client's address to the endpoint.", x.Port.ProxyProtocol)
	}
	if how := x.Port.Probe; x.Cause == proxy.NoCause && how.Check.Kind != 0 {
		say("Endpoints are probed every %s, by %s: after %d that fail in a row one is in quarantine, until %d in a row succeed.", trace.Short(how.Interval), how.Check, how.Fall, how.Rise)
	}
	if by := x.Port.Scheduler; x.Cause == proxy.NoCause && !client.IsValid() && (by == config.SourceHash || by == config.Maglev) {
		say("The scheduler %s uses the client's address, and the request names no client: the first endpoint may differ per client.", by)
	}
	if x.Affinity != nil {
		had := x.Affinity.Endpoint
		if e := x.Set.Find(had); e == nil {
			say("The client had %s, which is no longer usable: its affinity ends.", had)
		} else if q := inQuarantine(e, now); q != "" {
			say("The client had %s, which is %s: its affinity ends.", had, q)
		}
	}
	if limit := x.Port.EndpointLimit; x.Cause == proxy.NoCause && limit > 0 && len(order) == 0 {
		whom := "an eligible endpoint"
		if x.Affinity != nil && x.Set.Find(x.Affinity.Endpoint) != nil {
			whom = x.Affinity.Endpoint.String() + ", which it had,"
		}
		say("It would wait in the queue until %s has fewer than %d connections, for at most %s, and then be reset. Clients in the queue: %d.", whom, limit, trace.Short(x.Port.QueueTimeout), x.Set.Queued())
	}
	for i, c := range order {
		if i == 0 {
			say("First %s: %s. It sees %s.", c.Endpoint, c.Text, c.SourceText)
		} else {
			say("If that fails, %s: %s. It sees %s.", c.Endpoint, c.Text, c.SourceText)
		}
	}
	return text
}

// whyNext returns as text why an endpoint is next.
func whyNext(x *proxy.Explanation, c balance.Choice, now time.Time) string {
	switch c.Reason {
	case balance.Affinity:
		return fmt.Sprintf("session affinity: the client had it before, and keeps it for %s", trace.Short(x.Affinity.Left))
	case balance.Probe:
		return "its quarantine is over: this connection would test it"
	case balance.LastResort:
		return "all remaining endpoints are in quarantine; this one is " + inQuarantine(c.Endpoint, now)
	case balance.OnlyOne:
		return onlyOne(c.Endpoint, now)
	}
	text := byScheduler(c)
	if c.Skipped > 0 {
		text += fmt.Sprintf(", after skipping %d in quarantine", c.Skipped)
	}
	return text
}

// byScheduler returns as text why the scheduler chose an endpoint.
func byScheduler(c balance.Choice) string {
	switch c.Reason {
	case balance.ByTurn, balance.ByWeight:
		return "it is next in rotation"
	case balance.ByTwo, balance.ByLeast, balance.ByDelay, balance.ByNoQueue:
		return fmt.Sprintf("%s: %d open, weight %d", c.Reason, c.Endpoint.Active.Load(), c.Endpoint.Weight.Int())
	}
	return c.Reason.String()
}

func onlyOne(e *balance.Endpoint, now time.Time) string {
	if q := inQuarantine(e, now); q != "" {
		return q + "; used, as no other endpoint is left"
	}
	return "no other endpoint is left"
}

// inQuarantine returns a text if e is in quarantine, else "".
func inQuarantine(e *balance.Endpoint, now time.Time) string {
	h := e.Health(now)
	if h.State != balance.Down {
		return ""
	}
	left := h.Until.Sub(now)
	next := "in " + trace.Short(left)
	if left < time.Millisecond {
		next = "now"
	}
	why := fmt.Sprintf("(%s; last: %v)", quarantine(e, now).Count(), h.Err)
	if h.By == balance.CheckFailed {
		return fmt.Sprintf("in quarantine until its probes succeed, next %s (%v)", next, h.Err)
	}
	if h.UntilProbe {
		return fmt.Sprintf("in quarantine until a probe succeeds, next %s %s", next, why)
	}
	return fmt.Sprintf("in quarantine, which ends %s %s", next, why)
}

// ranges lists networks in parentheses: the first ones, if there are many.
func ranges(networks []netip.Prefix) string {
	const most = 5
	if len(networks) == 0 {
		return ""
	}
	var list []string
	for _, n := range networks[:min(len(networks), most)] {
		list = append(list, n.String())
	}
	if len(networks) > most {
		list = append(list, "…")
	}
	return " (" + strings.Join(list, ", ") + ")"
}
