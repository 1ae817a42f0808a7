package proxy

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/usherproxy/usher/affinity"
	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/proxy/balance"
	"github.com/usherproxy/usher/proxy/frontend"
	"github.com/usherproxy/usher/proxy/search"
)

// Question describes a connection; Explain returns what would happen to it.
type Question struct {
	Service types.NamespacedName
	Port    string         // name or number of the service port; "" if there is only one
	Client  netip.Addr     // invalid if unknown
	VIP     netip.AddrPort // port 0: any port; invalid: the first VIP of the client's family
}

// QuestionError names the invalid field of a Question.
type QuestionError struct {
	Field   string // service, port, client or vip
	Message string
}

// Error implements error.
func (e *QuestionError) Error() string { return e.Field + ": " + e.Message }

// Cause is the reason that no endpoint would be tried.
type Cause uint8

const (
	NoCause        Cause = iota
	HasProblem           // the service port is not served: see Explanation.Problem
	SourceDenied         // the client is not in loadBalancerSourceRanges
	NoEndpoint           // no usable endpoint
	NoEndpointHere       // no usable endpoint on this node, and the policy is Local
)

// Explanation is the answer to a Question. Package admin formats it as text.
type Explanation struct {
	Port          config.ServicePort
	VIP           config.VIP
	NodeLocal     bool // the client is on this node
	Cause         Cause
	Problem       *Problem               // nil if there is none
	Endpoints     []*balance.Endpoint    // all endpoints of the port
	Set           *balance.Set           // the usable ones of Endpoints for this client
	Affinity      *affinity.Entry        // of the client; nil if it has none, or if there is a Cause
	Order         []balance.Choice       // the order in which endpoints would be tried
	SourceAddress []portal.SourceAddress // for each endpoint in Order; zero if it depends on an unknown client
	NotTried      []NotTried
}

// NotTried is an endpoint that would not be tried, with the reason: "terminating", "not-serving",
// "not-ready", "weight-0", "policy-local", "topology" or "full".
type NotTried struct {
	*balance.Endpoint
	Reason string
}

// Explain returns what would happen if a client connected now. It changes nothing: see search.Preview.
func (p *Proxy) Explain(q Question, now time.Time) (Explanation, error) {
	front, vip, err := p.asked(q)
	if err != nil {
		return Explanation{}, err
	}
	p.mu.Lock()
	problem, v, t := p.problems[front.ID()], front.View(), frontend.Target(front.Protocol, vip)
	// A problem may concern another VIP. The rule of a VIP with endpoints is Reject if the VIP has no listener.
	served := p.owners[t] == front && p.refused[t] == nil && (v.Cluster.Len() == 0 || p.rules[t].Action != portal.Reject)
	p.mu.Unlock()
	if at := q.VIP.Addr(); vip.Kind == config.NodePort && at.IsValid() && at != vip.Addr && p.Portal.Traits().CarriesVIPs() && p.Socket == nil && !p.node.Locality.HasNodePorts(at) {
		problem, served = &Problem{Err: fmt.Errorf("%s is not an address of this node that has node ports", at)}, false
	}
	x := Explanation{Port: v.Port, VIP: vip, Problem: problem, Endpoints: v.All}
	x.NodeLocal = q.Client.IsValid() && p.node.Locality.OfThisNode(q.Client, vip.Addr)
	x.Set = v.Endpoints(&vip, x.NodeLocal)
	x.NotTried = leftOut(v, x.Set)
	switch {
	case problem != nil && !served:
		x.Cause = HasProblem
	case q.Client.IsValid() && !vip.Expects(q.Client) && !p.node.Locality.Admits(&vip, q.Client, vip.Addr):
		x.Cause = SourceDenied
	case x.Set.Len() > 0:
		if had, ok := front.Affinity.Peek(q.Client, now); ok {
			x.Affinity = &had
		}
		x.Order = search.Preview(x.Set, q.Client, vip.Addr, x.Affinity, now)
		for _, e := range x.Set.Endpoints() {
			if e.Full() {
				x.NotTried = append(x.NotTried, NotTried{e, "full"})
			}
		}
		client := q.Client
		if vip.Expects(client) { // the PROXY protocol header names the client
			client = netip.Addr{}
		}
		for _, c := range x.Order {
			x.SourceAddress = append(x.SourceAddress, front.Origin(v, client, vip.Addr, c.Endpoint.Endpoint).SourceAddress)
		}
	case v.Cluster.Len() == 0:
		x.Cause = NoEndpoint
	default:
		x.Cause = NoEndpointHere
	}
	return x, nil
}

// leftOut returns the endpoints that are not in set.
func leftOut(v *frontend.View, set *balance.Set) (list []NotTried) {
	for _, e := range v.All {
		if set.Find(e.Addr) != nil {
			continue
		}
		list = append(list, NotTried{e, WhyLeftOut(v.Cluster, e)})
	}
	return list
}

// WhyLeftOut returns the Reason of a [NotTried] for an endpoint that is not in a client's set. cluster is the set of
// endpoints for policy Cluster.
func WhyLeftOut(cluster *balance.Set, e *balance.Endpoint) string {
	switch {
	case e.Terminating && !e.Serving:
		return "not-serving"
	case e.Terminating && !e.Ready:
		return "terminating"
	case !e.Ready:
		return "not-ready"
	case e.Weight.Int() == 0:
		return "weight-0"
	case cluster.Find(e.Addr) != nil:
		return "policy-local"
	}
	return "topology"
}

// asked finds the front end and the VIP of q.
func (p *Proxy) asked(q Question) (*frontEnd, config.VIP, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fronts := p.services[q.Service]
	if len(fronts) == 0 {
		return nil, config.VIP{}, &QuestionError{"service", fmt.Sprintf("no Service %s is served", q.Service)}
	}
	ids := slices.SortedFunc(maps.Keys(fronts), config.PortID.Compare)
	names, vips := map[string]bool{}, []string(nil)
	var found *frontEnd
	var foundVIP config.VIP
	for _, id := range ids {
		f := fronts[id]
		port := f.View().Port
		if q.Port != "" && q.Port != id.Port && !slices.ContainsFunc(port.VIPs, func(v config.VIP) bool { return strconv.Itoa(int(v.Port)) == q.Port }) {
			continue
		}
		vip, ok := q.vip(port)
		if !ok {
			for _, v := range port.VIPs {
				vips = append(vips, v.AddrPort().String())
			}
			continue
		}
		names[id.Port] = true
		if found == nil {
			found, foundVIP = f, vip
		}
	}
	vip := q.VIP.String()
	if q.VIP.Port() == 0 {
		vip = q.VIP.Addr().String()
	}
	switch {
	case found == nil && vips != nil && q.VIP.IsValid():
		return nil, config.VIP{}, &QuestionError{"vip", fmt.Sprintf("Service %s has no VIP %s; it has %s", q.Service, vip, portal.Shorten(vips))}
	case found == nil && vips != nil:
		return nil, config.VIP{}, &QuestionError{"client", fmt.Sprintf("Service %s has no VIP of the IP family of %s; it has %s", q.Service, q.Client, portal.Shorten(vips))}
	case found == nil:
		return nil, config.VIP{}, &QuestionError{"port", fmt.Sprintf("Service %s has no port %q; it has %s", q.Service, q.Port, portNames(ids))}
	case len(names) > 1:
		return nil, config.VIP{}, &QuestionError{"port", fmt.Sprintf("Service %s has several ports; name one of %s", q.Service, portNames(ids))}
	}
	return found, foundVIP, nil
}

// vip returns the VIP of port that q refers to.
func (q *Question) vip(port config.ServicePort) (config.VIP, bool) {
	for _, v := range port.VIPs {
		switch {
		case q.VIP.Addr().IsValid():
			sameAddr := v.Addr == q.VIP.Addr() || v.Addr.IsUnspecified() && v.Addr.Is4() == q.VIP.Addr().Is4() && q.VIP.Port() != 0
			if sameAddr && (q.VIP.Port() == 0 || q.VIP.Port() == v.Port) {
				return v, true
			}
		case !q.Client.IsValid(), q.Client.Is4() == v.Addr.Is4():
			return v, true
		}
	}
	return config.VIP{}, false
}

func portNames(ids []config.PortID) string {
	var names []string
	for _, id := range ids {
		if !slices.Contains(names, id.Port) {
			names = append(names, id.Port)
		}
	}
	return strings.Join(names, ", ")
}
