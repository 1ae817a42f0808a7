package diagnose

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/usherproxy/usher/cmd/internal/show"
	"github.com/usherproxy/usher/proxy/admin/api"
	"github.com/usherproxy/usher/proxy/admin/client"
	"github.com/usherproxy/usher/proxy/outcome"
)

// Severity is the severity of a finding.
type Severity string

// The severities, the worst first.
const (
	Failing Severity = "failing" // clients are not served
	Warning Severity = "warning" // some clients are not, or soon may not be
	Note    Severity = "note"    // possibly intended
)

// severities are all severities, the worst first.
var severities = []Severity{Failing, Warning, Note}

// Finding is a problem that a check found.
type Finding struct {
	Check    string   `json:"check"` // its name; Run sets it if it is empty
	Severity Severity `json:"severity"`
	Object   string   `json:"object"` // such as "Service default/web", "node", "usher"
	// Wrong describes the problem, Known the evidence, and Remedy the next step.
	Wrong  string `json:"wrong"`
	Known  string `json:"known"`
	Remedy string `json:"remedy"`
}

type check struct {
	name  string
	looks string // description of the check, for users
	find  func(context.Context, *subject) []Finding
	local bool // it checks the node itself, so this program must run there
}

// checks are all checks, in the order of Result.Looked.
var checks = []check{
	{"usher", "problems that usher reports: limits, portal, API server, clock, access log", usherItself, false},
	{"objects", "rejected manifests and objects, invalid annotations, port names", objects, false},
	{"served", "service ports that are not served: conflicts, listeners, rules", served, false},
	{"endpoints", "Services without endpoints, or without endpoints on this node", endpoints, false},
	{"quarantine", "endpoints that are in quarantine now, or have been repeatedly", quarantine, false},
	{"breaks", "endpoints that reset or refuse connections", breaks, false},
	{"denied", "clients that usher denied in the last 5 to 10 minutes, but not those whose packets a portal rule drops: check these with --client", denied, false},
	{"past", "connections that failed, were retried or were slow, as far back as usher keeps them", past, false},
	{"slow", "client wait times and missing responses in the last 5 to 10 minutes, by Service and endpoint", slow, false},
	{"reach", "whether failing endpoints can be reached from this node", reach, true},
	{"portal", "portal rules and routes: wanted compared with installed", portalRules, false},
	{"foreign", "rules of other programs for the Services' VIPs", foreignRules, true},
	{"firewall", "whether a host firewall drops redirected packets or health checks", firewall, true},
	{"route", "routes from this node to VIPs", routes, true},
	{"client", "whether --client would be admitted", clientLetIn, false},
	{"source", "whether endpoints see client addresses, where usher preserves them", source, true},
	{"conntrack", "free capacity and settings of the kernel's connection tracking", conntrack, true},
	{"clock", "whether the node's clock is synchronized", clock, true},
	{"dns", "whether --dns resolves Services", names, true},
}

// namedFinding is a finding about one of several ports or addresses. In Wrong, "%s" stands for its name.
type namedFinding struct {
	Finding
	name string
}

// grouped merges findings with the same severity and Wrong; evidence and remedy are those of the first. It merges
// findings of different Services only if anyService is set; the object of such a finding is the node.
func grouped(all []namedFinding, anyService bool) (out []Finding) {
	var names [][]string
	for _, f := range all {
		i := slices.IndexFunc(out, func(o Finding) bool {
			return o.Severity == f.Severity && o.Wrong == f.Wrong && (anyService || o.Object == f.Object)
		})
		if i < 0 {
			i = len(out)
			out, names = append(out, f.Finding), append(names, nil)
		}
		if out[i].Object != f.Object {
			out[i].Object = "node"
		}
		if !slices.Contains(names[i], f.name) {
			names[i] = append(names[i], f.name)
		}
	}
	for i := range out {
		out[i].Wrong = strings.Replace(out[i].Wrong, "%s", show.Few(names[i]), 1)
	}
	return out
}

// cannotCheck returns a note that a check failed with err.
func cannotCheck(what string, err error) Finding {
	return Finding{"", Note, "usher", "cannot check " + what, err.Error(), "run usher diagnose again"}
}

// reports returns whether usher itself reports a problem with this reason.
func (s *subject) reports(reason string) bool {
	return slices.ContainsFunc(s.status.Problems, func(p api.StatusProblem) bool { return p.Object == "usher" && p.Reason == reason })
}

func usherItself(_ context.Context, s *subject) (all []Finding) {
	for _, p := range s.status.Problems {
		if p.Object != "usher" {
			continue
		}
		severity := Warning
		if p.Reason == "PortalFailed" || p.Reason == "NotServing" {
			severity = Failing
		}
		all = append(all, Finding{"", severity, p.Object, p.Message, "reported by usher as " + p.Reason + ", since " + p.Since.Local().Format(time.DateTime), p.Remedy})
	}
	if r := s.status.Restarts; r != nil && s.Service == "" {
		when := "usher ended unexpectedly"
		if !r.Time.IsZero() {
			when += " at " + r.Time.Local().Format(time.DateTime)
		}
		all = append(all, Finding{"", Note, "usher", fmt.Sprintf("%s (%s), and its keeper restarted it", when, r.Last),
			show.Plural(r.Count, "restart") + " since the keeper started",
			"see the logs of usher and of the kernel (journalctl -k) at that time; docs/running.md#what-survives explains which connections survive"})
	}
	return all
}

// objects returns a finding for each invalid object of the API server or the manifests.
func objects(_ context.Context, s *subject) (all []Finding) {
	of := map[string]bool{}
	for i := range s.services {
		d := &s.services[i]
		name := d.Namespace + "/" + d.Name
		for j, p := range d.Problems {
			if slices.Contains(d.Problems[:j], p) {
				continue // an EndpointSlice of the other IP family has the same problem
			}
			severity, effect := Warning, "a part of it is not served, or usher still serves the previous version"
			switch {
			case d.State == api.ServiceRejected:
				severity, effect = Failing, "it is not served"
			case strings.Contains(p.Message, noPort):
				severity, effect = Failing, "clients of that port are refused"
			}
			of[p.Message] = true
			remedy := "correct it; usher applies the change at once"
			if strings.Contains(p.Message, "no port is named") {
				remedy = "give the EndpointSlice's port the same name as the Service's port, or leave both unnamed"
			}
			all = append(all, Finding{"", severity, "Service " + name, p.Message, p.Reason + ": " + effect, remedy})
		}
	}
	for _, p := range s.status.Problems {
		if s.Service == "" && (strings.HasPrefix(p.Reason, "Manifest") || p.Reason == "PartNotServed") && !of[p.Message] {
			all = append(all, Finding{"", Warning, p.Object, p.Message, p.Reason + ", since " + p.Since.Local().Format(time.DateTime), p.Remedy})
		}
	}
	return all
}

func served(_ context.Context, s *subject) []Finding {
	var all []namedFinding
	remedies := map[string]string{
		"AddressConflict":   "change the address or port of one of the two",
		"NodeAddressInUse":  "use another port, or an external IP that is not an address of the node; or set --claim-node-addresses to let Services use such ports",
		"ListenFailed":      "find the process that uses the port with ss -lntup, or use another --portal",
		"PortalFailed":      "run usher get portals -A; usher's log has the kernel's error",
		"ProtocolNotServed": "leave the port to another proxy (service.kubernetes.io/service-proxy-name)",
		"SCTPOff":           "load the kernel module sctp, and run usher with --sctp=on",
	}
	s.ports(func(p place) {
		if problem := p.port.Problem; problem != nil {
			all = append(all, namedFinding{Finding{"", Failing, p.object, "port %s is not served: " + problem.Message, problem.Reason + ": usher keeps retrying", remedies[problem.Reason]},
				p.port.VIP + "/" + p.port.Protocol})
		} else if p.port.Protocol == "UDP" && strings.HasSuffix(p.port.VIP, ":69") { // RFC 1350, section 4
			all = append(all, namedFinding{Finding{"", Warning, p.object, "TFTP clients of %s get no answer", "port 69/UDP: a TFTP server answers from another port, and usher forwards only what comes from the endpoint's port",
				"let clients connect to the Pod, or run it with hostNetwork"}, p.port.VIP})
		}
	})
	return grouped(all, false)
}

func endpoints(_ context.Context, s *subject) []Finding {
	var all []namedFinding
	s.ports(func(p place) {
		usable, total := usable(p.port), len(p.port.Endpoints)
		vip := p.port.VIP + "/" + p.port.Protocol
		switch {
		case p.port.Problem != nil:
		case total == 0 && p.misnamed(): // the check "objects" reports the cause
		case total == 0:
			all = append(all, namedFinding{Finding{"", Failing, p.object, "no endpoints for %s: clients are refused", "usher knows 0 endpoints for this port", noEndpoints(p)}, vip})
		case usable == 0:
			known, remedy := fmt.Sprintf("0 of %d are ready or serving", total), "see why the readiness probe fails: kubectl describe pod"
			if i := slices.IndexFunc(p.port.Endpoints, func(e api.Endpoint) bool { return e.Ready || e.Serving }); i >= 0 {
				e := &p.port.Endpoints[i]
				known, remedy = fmt.Sprintf("0 of %d are used; %s is not used: %s", total, endpointName(e), e.NotUsed), "usher get endpoints "+p.name+" shows the reason for each"
			}
			all = append(all, namedFinding{Finding{"", Failing, p.object, "no usable endpoint for %s: clients are refused", known, remedy}, vip})
		}
		for _, d := range p.port.Dropped {
			severity := Failing
			if d.Clients == "external" { // they should use another node
				severity = Note
			}
			all = append(all, namedFinding{Finding{"", severity, p.object, d.Clients + " clients of %s are not served: " + d.Text, fmt.Sprintf("%d of %d endpoints are usable for them", 0, total),
				"run a Pod on this node, connect through a node that has one, or set the traffic policy to Cluster"}, vip})
		}
	})
	return grouped(all, false)
}

// usable returns the number of endpoints of a port that clients on this node may use.
func usable(port *api.ServicePort) (n int) {
	for _, e := range port.Endpoints {
		if slices.Contains(e.UsedFor, "node") {
			n++
		}
	}
	return n
}

// noPort occurs in the messages of translate.Misnamed, which report that an EndpointSlice lacks a port of its Service.
const noPort = "has no endpoints"

// misnamed reports whether a problem of the Service explains why this port has no endpoints.
func (p place) misnamed() bool {
	return slices.ContainsFunc(p.problems, func(problem api.Problem) bool {
		m := problem.Message
		return strings.Contains(m, noPort) && (strings.Contains(m, fmt.Sprintf("port %q of", p.port.Name)) || strings.Contains(m, fmt.Sprintf("no port is named %q", p.port.Name)))
	})
}

// noEndpoints returns the remedy for a port without endpoints.
func noEndpoints(p place) string {
	namespace, name, _ := strings.Cut(p.name, "/")
	return fmt.Sprintf("does the selector match Pods? kubectl -n %s get endpointslices -l kubernetes.io/service-name=%s", namespace, name)
}

// The check "quarantine" reports endpoints that were in quarantine at least flaps times. The finding is a warning if
// the last time was within recentPeriod, otherwise a note.
const (
	flaps        = 3
	recentPeriod = 10 * time.Minute
)

func quarantine(ctx context.Context, s *subject) (all []Finding) {
	times := map[string]int{}
	first, last := map[string]time.Time{}, map[string]time.Time{}
	for m, err := range s.client.Events(ctx, client.EventQuery{Service: s.Service, Kind: api.KindEndpointQuarantined, History: true, Once: true}) {
		if err != nil {
			all = append(all, cannotCheck("which endpoints were in quarantine before", err))
			break // s.services has those in quarantine now
		}
		e := m.Event
		if e == nil {
			continue
		}
		key := e.Service + " " + e.Endpoint
		if times[key]++; times[key] == 1 {
			first[key] = e.Time
		}
		last[key] = e.Time
	}
	s.ports(func(p place) {
		for i := range p.port.Endpoints {
			e := &p.port.Endpoints[i]
			key := p.name + " " + e.Address
			n := times[key]
			delete(times, key) // report several ports and families once
			again := ""
			if n >= flaps {
				again = fmt.Sprintf("; in quarantine %d times since %s, last at %s", n, first[key].Local().Format(time.DateTime), last[key].Local().Format(time.DateTime))
			}
			switch {
			case e.Quarantine != nil:
				severity := Warning
				if s.service(p.name).State == api.ServiceDown {
					severity = Failing
				}
				all = append(all, Finding{"", severity, p.object, endpointName(e) + " is in quarantine: " + e.Quarantine.Cause,
					e.Quarantine.Count() + again, remedyFor(e.Quarantine.Cause, p.name)})
			case n >= flaps:
				severity := Warning
				if s.status.Now.Sub(last[key]) > recentPeriod {
					severity = Note
				}
				all = append(all, Finding{"", severity, p.object, endpointName(e) + " is unstable", strings.TrimPrefix(again, "; ") + ", and recovered each time",
					"usher trace " + p.name + " --outcome=failed,retry --history shows when and why"})
			}
		}
	})
	return all
}

// service returns the details of the Service with this name, "namespace/name", or empty ones.
func (s *subject) service(name string) (none api.ServiceDetail) {
	for i := range s.services {
		if d := &s.services[i]; d.Namespace+"/"+d.Name == name {
			return *d
		}
	}
	return none
}

// remedyFor returns the remedy for an endpoint of a Service, "namespace/name", that fails for this cause.
func remedyFor(cause, service string) string {
	switch {
	case strings.Contains(cause, "refused"):
		return "does the process in the Pod listen on that port, and on the Pod's address?"
	case strings.Contains(cause, "no answer"), strings.Contains(cause, "timed out"):
		return "is there a firewall or NetworkPolicy, or is the node down? kubectl get pod -o wide, kubectl get networkpolicy"
	case strings.Contains(cause, "probe"):
		return "the probe configured by the annotation usher.io/probe fails; see the Pod's log"
	}
	return "usher trace " + service + " --outcome=failed,retry --history"
}

// The minimum of recent failures for an endpoint to be reported: a number, and a percentage of its connections.
const failedTimes, failedPercent = 2, 2

// failing reports whether an endpoint is an outlier, or has enough recent failures to be reported.
func failing(e *api.Endpoint) bool {
	return e.State == api.EndpointOutlier || e.FailedRecently >= failedTimes && 100*e.FailedRecently >= failedPercent*(connectedRecently(e)+e.FailedRecently)
}

func connectedRecently(e *api.Endpoint) int64 {
	if e.Latency == nil {
		return 0
	}
	return int64(e.Latency.Clients)
}

func breaks(_ context.Context, s *subject) (all []Finding) {
	s.ports(func(p place) {
		for i := range p.port.Endpoints {
			e := &p.port.Endpoints[i]
			if e.Quarantine != nil || !failing(e) {
				continue
			}
			wrong := endpointName(e) + " fails some of its connections"
			if e.State == api.EndpointOutlier {
				wrong = endpointName(e) + " is an outlier: it accepts connections, but resets many of them"
			}
			known := fmt.Sprintf("in the last 5 to 10 minutes: %s, %s (%d%%)", show.Plural(int(connectedRecently(e)), "connection"), show.Plural(int(e.FailedRecently), "failure"),
				100*e.FailedRecently/max(1, connectedRecently(e)+e.FailedRecently))
			if e.Failed > e.FailedRecently {
				known += fmt.Sprintf("; since usher first saw it: %s, %s", show.Plural(int(e.Connected), "connection"), show.Plural(int(e.Failed), "failure"))
			}
			if n := p.port.Ends[outcome.EndpointReset.String()]; n > 0 {
				known += fmt.Sprintf("; since usher started, the endpoints of this port reset %s after they had accepted them", show.Plural(int(n), "connection"))
			}
			all = append(all, Finding{"", Warning, p.object, wrong, known, "usher get connections " + p.name + " --outcome failed,retried --endpoint " + e.Address + "; then the Pod's log"})
		}
	})
	return all
}

// slowMs is the wait, in milliseconds, from which clients count as slow: the default of usher's --slow-threshold.
const slowMs = 200

// fewest is the minimum number of clients for a meaningful percentile of their waits.
const fewest = 20

func slow(_ context.Context, s *subject) (all []Finding) {
	remedy := func(p place, filter string) string {
		return "usher get connections " + p.name + " --state=all --outcome=slow,retried" + filter + "; for the details of one: usher get connection ID"
	}
	s.ports(func(p place) {
		before, quarantined := len(all), false // if an endpoint is in quarantine, it may have caused the waits; the check "quarantine" reports it
		for i := range p.port.Endpoints {
			e := &p.port.Endpoints[i]
			if e.Quarantine != nil {
				quarantined = true
				continue
			}
			if e.State == api.EndpointUnresponsive {
				all = append(all, hangs(p, e))
				continue
			}
			if isSlow(p, e) {
				all = append(all, Finding{"", Warning, p.object, endpointName(e) + " is slow", fmt.Sprintf("in the last 5 to 10 minutes, p50 time to first byte was about %s; over all endpoints %s",
					show.Milliseconds(e.Latency.FirstByteP50Ms), show.Milliseconds(p.port.Latency.FirstByteP50Ms)), remedy(p, " --endpoint="+e.Address)})
			} else if others, is := slowForSome(p, e); is {
				all = append(all, Finding{"", Warning, p.object, endpointName(e) + " is slow for some of its clients", fmt.Sprintf("in the last 5 to 10 minutes, its p99 time to first byte was about %s, p50 %s; p99 of the other endpoints at most %s",
					show.Milliseconds(e.Latency.FirstByteP99Ms), show.Milliseconds(e.Latency.FirstByteP50Ms), show.Milliseconds(others)), remedy(p, " --endpoint="+e.Address)})
			}
		}
		if l := p.port.Latency; l != nil && len(all) == before && !quarantined && l.Clients >= fewest && l.ConnectP99Ms >= slowMs {
			all = append(all, Finding{"", Warning, p.object, "some clients of " + p.port.VIP + " wait long for a connection", fmt.Sprintf("in the last 5 to 10 minutes, p99 connect time was about %s, p50 at most %s",
				show.Milliseconds(l.ConnectP99Ms), show.Milliseconds(l.ConnectP50Ms)), remedy(p, "")})
		}
	})
	return all
}

// An endpoint is slow for some of its clients if its p99 is at least slowMs and slowTimes the largest p99 of the
// others. Endpoints with fewer than fewestForP99 clients are not compared.
const fewestForP99, slowTimes = 100, 4

// slowForSome reports whether some clients of an endpoint recently waited far longer for its first byte than those of
// the other endpoints. It also returns the largest p99 of the others, in milliseconds.
func slowForSome(p place, e *api.Endpoint) (others float64, is bool) {
	compared := 0
	for i := range p.port.Endpoints {
		if o := &p.port.Endpoints[i]; o != e && o.Latency != nil && o.Latency.Clients >= fewestForP99 {
			compared++
			others = max(others, o.Latency.FirstByteP99Ms)
		}
	}
	l := e.Latency
	return others, compared > 0 && l != nil && l.Clients >= fewestForP99 && l.FirstByteP99Ms >= max(slowMs, slowTimes*others)
}

// isSlow reports whether an endpoint's clients recently waited long for its first byte.
func isSlow(p place, e *api.Endpoint) bool {
	return e.Latency != nil && p.port.Latency != nil && e.Latency.Clients >= fewest && e.Latency.FirstByteP50Ms >= slowMs
}

// hangs returns the finding about an unresponsive endpoint: it never responds, or it leaves far more clients without a
// response than the other endpoints.
func hangs(p place, e *api.Endpoint) Finding {
	wrong := endpointName(e) + " accepts connections but never responds"
	known := fmt.Sprintf("in the last 5 to 10 minutes it had %s and sent no byte, while other endpoints of this port sent data", show.Plural(int(connectedRecently(e)), "client"))
	if e.Latency == nil || e.Latency.FirstByteP99Ms > 0 {
		wrong = endpointName(e) + " leaves far more clients without a response than other endpoints of its port"
		known = fmt.Sprintf("in the last 5 to 10 minutes, %d of %s closed without having received a byte", e.NoResponseRecently, show.Plural(int(connectedRecently(e)), "connection"))
		if e.WaitingLong > 0 {
			known += fmt.Sprintf("; %d others have waited at least 10 s for the first byte", e.WaitingLong)
		}
	}
	return Finding{"", Warning, p.object, wrong, known,
		"check the process: the kernel accepts connections even if the process hangs; usher get connections " + p.name + " --state=all --endpoint=" + e.Address}
}

// portalRules reports rules of the portal that are missing in the kernel or differ, at most three of each, and how many
// there are. It skips those that the kernel rejected: the check "served" reports them with the cause.
func portalRules(ctx context.Context, s *subject) (all []Finding) {
	if s.reports("PortalFailed") {
		return nil
	}
	rejected := map[string]bool{}
	s.ports(func(p place) {
		if p.port.Problem != nil && p.port.Problem.Reason == "PortalFailed" {
			for _, v := range p.port.VIPs {
				rejected[v.Address+"/"+p.port.Protocol] = true
				if host, _, err := net.SplitHostPort(v.Address); err == nil {
					rejected[host+"/"] = true // the portal "address" has rules without ports
				}
			}
		}
	})
	portals, err := s.client.Portals(ctx)
	if err != nil {
		return []Finding{{"", Note, "usher", "cannot compare the portal's rules", err.Error(), "usher get portals -A"}}
	}
	object := "usher"
	if s.Service != "" {
		object = "Service " + s.Service
	}
	rules := map[string]int{} // by state
	states := map[string]string{"missing": "is missing", "differs": "differs"}
	for _, r := range portals.Rules {
		if rejected[r.VIP+"/"+r.Protocol] ||
			s.Service != "" && !strings.HasPrefix(r.Service, s.Service+":") && r.Service != s.Service {
			continue
		}
		if rules[r.State]++; states[r.State] != "" && rules[r.State] <= 3 {
			all = append(all, Finding{"", Failing, object, fmt.Sprintf("the portal rule for %s (%s) %s", r.VIP, r.Service, states[r.State]), "",
				"usher restores it automatically; if it does not, see the log for the cause, or find the process that removes it: nft monitor, auditctl"})
		}
	}
	for i := range all {
		all[i].Known = fmt.Sprintf("compared with the kernel's rules: %d missing, %d different", rules["missing"], rules["differs"])
	}
	for _, p := range portals.Parts {
		if states[p.State] != "" {
			all = append(all, Finding{"", Warning, "usher", fmt.Sprintf("%s %s %s", p.Family, p.Name, states[p.State]), "compared with the kernel's rules", "usher restores it automatically; see the log"})
		}
	}
	return all
}

func clientLetIn(ctx context.Context, s *subject) []Finding {
	if s.Client == "" {
		return nil
	}
	var all []namedFinding
	var failed error
	ports := 0
	s.ports(func(p place) {
		for _, v := range p.port.VIPs {
			if ports++; ports > maxServices || v.Kind == "NodePort" {
				continue
			}
			e, err := s.client.Explain(ctx, client.ExplainQuery{Service: p.name, Port: p.port.Name, Client: s.Client, VIP: v.Address})
			failed = cmp.Or(failed, err)
			text := strings.Join(e.Text, " ")
			if err != nil || e.Verdict == api.WouldTry || !strings.Contains(text, "loadBalancerSourceRanges") {
				continue // other checks report ports that are not served or have no endpoints
			}
			all = append(all, namedFinding{Finding{"", Failing, p.object, s.Client + " would not be served at %s: " + text,
				"usher explain reports: " + string(e.Verdict), "check loadBalancerSourceRanges; usher explain " + p.name + " --client " + s.Client + " --vip " + v.Address}, v.Address + " (" + v.Kind + ")"})
		}
	})
	findings := grouped(all, false)
	if failed != nil {
		findings = append(findings, cannotCheck("at all VIPs whether "+s.Client+" would be admitted", failed))
	}
	return findings
}
