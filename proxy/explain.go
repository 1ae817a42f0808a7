package proxy

import (
	"fmt"
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
	"github.com/usherproxy/usher/proxy/trace"
)

// Question is what Explain is asked: what would become of a connection?
type Question struct {
	Service types.NamespacedName
	Port    string         // name or number of the service port; "" if there is only one
	Client  netip.Addr     // invalid for one of whom nothing is known
	VIP     netip.AddrPort // port 0: any; invalid: the first VIP of the client's family
}

// QuestionError says which part of a Question has no answer.
type QuestionError struct {
	Field   string // service, port, client or vip
	Message string
}

// Error implements error.
func (e *QuestionError) Error() string { return e.Field + ": " + e.Message }

// Verdict says what would become of a connection.
type Verdict string

// The verdicts.
const (
	WouldTry    Verdict = "try"     // endpoints would be tried
	WouldRefuse Verdict = "refuse"  // the client would be reset
	WouldReject Verdict = "reject"  // the client would be told at once that nobody listens
	WouldDrop   Verdict = "drop"    // its packets would vanish
	WouldFail   Verdict = "problem" // the service port is not served
)

// Explanation is the answer to a Question.
type Explanation struct {
	Port      config.ServicePort
	Endpoints []*balance.Endpoint // all that the port has
	VIP       config.VIP
	Verdict   Verdict
	Policy    string // which endpoints count, and why
	Affinity  *affinity.Entry
	Order     []Candidate // in which they would be tried
	NotTried  []Candidate
	Text      []string // sentences
}

// Candidate is an endpoint that would, or would not, be tried.
type Candidate struct {
	Endpoint *balance.Endpoint
	Reason   string // a balance.Reason, or not-ready, terminating, policy-local, topology
	Text     string
}

// Explain tells what would happen if a client connected now. It changes nothing:
// no turn is used up, no probe is claimed, no affinity begins or ends.
func (p *Proxy) Explain(q Question, now time.Time) (Explanation, error) {
	front, vip, err := p.asked(q)
	if err != nil {
		return Explanation{}, err
	}
	p.mu.Lock()
	problem := p.problems[front.id()]
	p.mu.Unlock()
	v := front.view.Load()
	x := &explaining{proxy: p, view: v, client: q.Client, now: now}
	x.Port, x.Endpoints, x.VIP = v.port, v.all, vip
	x.local = q.Client.IsValid() && p.locality.ofThisNode(q.Client, vip.Addr)
	x.set = v.endpoints(&vip, x.local)
	x.policy()
	x.leaveOut()
	switch {
	case problem != nil:
		x.verdict(WouldFail, "The service port is not served as it should be: %v.", problem.Err)
	case q.Client.IsValid() && !p.locality.admits(&vip, q.Client, vip.Addr):
		x.sourceRefused()
	case x.set.Len() == 0:
		x.nobody()
	default:
		x.order(front.affinity)
	}
	return x.Explanation, nil
}

// asked finds the front end and the VIP that q asks about.
func (p *Proxy) asked(q Question) (*frontEnd, config.VIP, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fronts := p.services[q.Service]
	if len(fronts) == 0 {
		return nil, config.VIP{}, &QuestionError{"service", fmt.Sprintf("there is no Service %s that usher serves", q.Service)}
	}
	ids := make([]config.PortID, 0, len(fronts))
	for id := range fronts {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, config.PortID.Compare)
	names, field := map[string]bool{}, "port"
	var found *frontEnd
	var foundVIP config.VIP
	for _, id := range ids {
		f := fronts[id]
		port := f.view.Load().port
		if q.Port != "" && q.Port != id.Port && !slices.ContainsFunc(port.VIPs, func(v config.VIP) bool { return strconv.Itoa(int(v.Port)) == q.Port }) {
			continue
		}
		vip, ok := q.vip(port)
		if !ok {
			field = "vip"
			continue
		}
		names[id.Port] = true
		if found == nil {
			found, foundVIP = f, vip
		}
	}
	switch {
	case found == nil && field == "vip":
		return nil, config.VIP{}, &QuestionError{"vip", fmt.Sprintf("Service %s has no such VIP, or none of the client's IP family", q.Service)}
	case found == nil:
		return nil, config.VIP{}, &QuestionError{"port", fmt.Sprintf("Service %s has no port %q; it has %s", q.Service, q.Port, portNames(ids))}
	case len(names) > 1:
		return nil, config.VIP{}, &QuestionError{"port", fmt.Sprintf("Service %s has several ports: say which of %s", q.Service, portNames(ids))}
	}
	return found, foundVIP, nil
}

// vip returns the VIP of port that is meant.
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

// explaining is an Explanation that is being made.
type explaining struct {
	Explanation
	proxy  *Proxy
	view   *view
	set    *balance.Set
	client netip.Addr
	local  bool // the client is of this node
	now    time.Time
}

func (x *explaining) say(format string, args ...any) {
	x.Text = append(x.Text, fmt.Sprintf(format, args...))
}

func (x *explaining) verdict(v Verdict, format string, args ...any) {
	x.Verdict = v
	x.say(format, args...)
}

// policy says which endpoints count for this client.
func (x *explaining) policy() {
	port := x.view.port
	switch {
	case !x.VIP.External() && port.InternalLocal:
		x.Policy = "internalTrafficPolicy Local: only endpoints on this node"
	case !x.VIP.External():
		x.Policy = "internalTrafficPolicy Cluster: endpoints on all nodes"
	case port.ExternalLocal && x.local:
		x.Policy = "externalTrafficPolicy Local, but the client is of this node: endpoints on all nodes"
	case port.ExternalLocal:
		x.Policy = "externalTrafficPolicy Local: only endpoints on this node"
	default:
		x.Policy = "externalTrafficPolicy Cluster: endpoints on all nodes"
	}
}

// leaveOut notes the endpoints that are not in the set, with why.
func (x *explaining) leaveOut() {
	for _, e := range x.view.all {
		if x.set.Find(e.Addr) != nil {
			continue
		}
		c := Candidate{Endpoint: e}
		switch {
		case e.Terminating:
			c.Reason, c.Text = "terminating", "its Pod is ending, and others are ready"
		case !e.Ready:
			c.Reason, c.Text = "not-ready", "it is not ready"
		case x.view.cluster.Find(e.Addr) != nil:
			c.Reason, c.Text = "policy-local", "it is on another node, and the policy is Local"
		default:
			c.Reason, c.Text = "topology", "the EndpointSlice's hints leave it to other nodes or zones"
		}
		x.NotTried = append(x.NotTried, c)
	}
}

// filters reports whether the portal itself keeps clients away.
func (x *explaining) filters() bool {
	mode := x.proxy.Portal.Mode()
	return mode == portal.ModeIPTables || mode == portal.ModeNFTables
}

func (x *explaining) sourceRefused() {
	if x.filters() {
		x.verdict(WouldDrop, "The client %s is not in loadBalancerSourceRanges: the portal drops its packets.", x.client)
		return
	}
	x.verdict(WouldRefuse, "The client %s is not in loadBalancerSourceRanges: it is reset.", x.client)
}

func (x *explaining) nobody() {
	switch {
	case x.view.cluster.Len() == 0:
		x.verdict(WouldReject, "There is no endpoint that could be used: nobody listens, and the portal rejects.")
	case x.filters():
		x.verdict(WouldDrop, "There are endpoints, but none on this node, and the policy is Local: the portal drops packets, since another node may have one.")
	default:
		x.verdict(WouldReject, "There are endpoints, but none on this node, and the policy is Local: nobody listens here.")
	}
}

// order finds out in which order endpoints would be tried.
func (x *explaining) order(table *affinity.Table) {
	x.Verdict = WouldTry
	var tried []netip.AddrPort
	take := func(e *balance.Endpoint, reason balance.Reason, text string) {
		x.Order = append(x.Order, Candidate{Endpoint: e, Reason: string(reason), Text: text})
		tried = append(tried, e.Addr)
	}
	if had, ok := table.Peek(x.client, x.now); ok {
		x.Affinity = &had
		switch e := x.set.Find(had.Endpoint); {
		case e == nil:
			x.say("The client had %s, which is not usable any more: its affinity ends.", had.Endpoint)
		case x.quarantine(e) != "":
			x.say("The client had %s, which is %s: its affinity ends.", had.Endpoint, x.quarantine(e))
		default:
			take(e, balance.Affinity, fmt.Sprintf("the client had it before, and keeps it for %s", trace.Short(had.Left)))
		}
	}
	for turn := uint32(0); len(x.Order) < maxAttempts; {
		c, next, ok := x.set.Peek(turn, x.now, tried)
		if !ok {
			break
		}
		turn = next
		take(c.Endpoint, c.Reason, x.why(c))
	}
	for i, c := range x.Order {
		switch i {
		case 0:
			x.say("First %s: %s.", c.Endpoint.Addr, c.Text)
		default:
			x.say("If that fails, %s: %s.", c.Endpoint.Addr, c.Text)
		}
	}
}

// why says in words why an endpoint is next.
func (x *explaining) why(c balance.Choice) string {
	switch c.Reason {
	case balance.RoundRobin:
		if c.PassedOver > 0 {
			return fmt.Sprintf("it is its turn; %d passed over in quarantine", c.PassedOver)
		}
		return "it is its turn"
	case balance.Probe:
		return "its quarantine is over: this connection would find out whether it answers"
	case balance.LastResort:
		return "all that are left are in quarantine; this one is " + x.quarantine(c.Endpoint)
	}
	if q := x.quarantine(c.Endpoint); q != "" {
		return "there is no other left, though it is " + q
	}
	return "there is no other left"
}

// quarantine says in words that e is in quarantine, or "".
func (x *explaining) quarantine(e *balance.Endpoint) string {
	period, ok := e.Quarantined(x.now)
	if !ok {
		return ""
	}
	left := trace.Short(max(0, period.Until.Sub(x.now)))
	why := fmt.Sprintf("(failures in a row: %d, the last: %v)", period.Failures, period.Cause)
	if period.Probed {
		return fmt.Sprintf("in quarantine until a probe is answered, the next in %s %s", left, why)
	}
	return fmt.Sprintf("in quarantine for another %s %s", left, why)
}
