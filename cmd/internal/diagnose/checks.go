package diagnose

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/usherproxy/usher/cmd/internal/show"
	"github.com/usherproxy/usher/proxy/admin/api"
	"github.com/usherproxy/usher/proxy/admin/client"
	"github.com/usherproxy/usher/proxy/outcome"
)

// Severity says how bad a finding is.
type Severity string

// The severities, the worst first.
const (
	Failing Severity = "failing" // clients are not served
	Warning Severity = "warning" // some are not, or soon may not be
	Note    Severity = "note"    // it may be meant to be so
)

// severities are all, the worst first.
var severities = []Severity{Failing, Warning, Note}

// Finding is something that is wrong.
type Finding struct {
	Check    string   `json:"check"`
	Severity Severity `json:"severity"`
	Object   string   `json:"object"`
	// Wrong is what is wrong, Known how that is known, and Remedy what to do.
	Wrong  string `json:"wrong"`
	Known  string `json:"known"`
	Remedy string `json:"remedy"`
}

// check looks at one thing.
type check struct {
	name  string
	looks string // at what, for people
	find  func(context.Context, *subject) []Finding
	local bool // of the node itself, where this program has to run
}

// checks are all there are.
var checks = []check{
	{"usher", "what usher itself knows: limits, portal, API server, clock, access log", usherItself, false},
	{"objects", "manifests and objects that are rejected, wrong annotations, names of ports", objects, false},
	{"served", "service ports that are not served: conflicts, listeners, rules", served, false},
	{"endpoints", "Services without endpoints, or without one on this node", endpoints, false},
	{"quarantine", "endpoints in quarantine, and that were there again and again", quarantine, false},
	{"breaks", "endpoints that break connections or refuse them", breaks, false},
	{"denied", "clients that were not let in lately", denied, false},
	{"past", "connections that failed, were retried or slow, as far back as they are kept", past, false},
	{"slow", "how long clients waited lately, and whether for nothing, by Service and endpoint", slow, false},
	{"reach", "whether endpoints that do badly can be reached from here", reach, true},
	{"portal", "portal rules and routes, wanted against installed", portalRules, false},
	{"foreign", "rules of others for the same addresses", foreignRules, true},
	{"firewall", "whether a host firewall drops what the portal redirects, and health checks", firewall, true},
	{"route", "routes from this node to VIPs", routes, true},
	{"client", "whether --client would be let in", clientLetIn, false},
	{"source", "whether endpoints see their clients' own addresses, where usher sends with those", source, true},
	{"conntrack", "room in the kernel's connection tracking, and whether its settings are those that were configured", conntrack, true},
	{"clock", "whether the node's clock is synchronized", clock, true},
	{"dns", "whether --dns answers for Services", names, true},
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
		all = append(all, Finding{"", severity, p.Object, p.Message, "usher says so, " + p.Reason + ", since " + p.Since.Format(time.DateTime), p.Remedy})
	}
	return all
}

// objects are those of which the source says that they are wrong.
func objects(_ context.Context, s *subject) (all []Finding) {
	of := map[string]bool{}
	for i := range s.services {
		d := &s.services[i]
		name := d.Namespace + "/" + d.Name
		for _, p := range d.Problems {
			severity, effect := Warning, "a part of it is not served, or the version before it still is"
			if d.State == api.ServiceRejected {
				severity, effect = Failing, "it is not served"
			}
			of[p.Message] = true
			remedy := "correct it; usher takes it over at once"
			if strings.Contains(p.Message, "none is named") {
				remedy = "give the port of the EndpointSlice the name of the Service's port, or leave both without one"
			}
			all = append(all, Finding{"", severity, "Service " + name, p.Message, p.Reason + ": " + effect, remedy})
		}
	}
	for _, p := range s.status.Problems {
		if s.Service == "" && (strings.HasPrefix(p.Reason, "Manifest") || p.Reason == "PartNotServed") && !of[p.Message] {
			all = append(all, Finding{"", Warning, p.Object, p.Message, p.Reason + ", since " + p.Since.Format(time.DateTime), p.Remedy})
		}
	}
	return all
}

func served(_ context.Context, s *subject) (all []Finding) {
	remedies := map[string]string{
		"AddressConflict":   "give one of the two another address or port",
		"NodeAddressInUse":  "use another port, or an external IP that is no address of the node; --claim-node-addresses lets Services have such ports",
		"ListenFailed":      "ss -lntup shows which process has the port; or use another --portal",
		"PortalFailed":      "usher portals; the log says what the kernel answered",
		"ProtocolNotServed": "leave the port to another proxy (service.kubernetes.io/service-proxy-name)",
		"SCTPOff":           "load the kernel's module sctp, and run usher with --sctp=on",
	}
	s.ports(func(p place) {
		if problem := p.port.Problem; problem != nil {
			all = append(all, Finding{"", Failing, p.object, "port " + p.port.VIP + "/" + p.port.Protocol + " is not served: " + problem.Message,
				problem.Reason + ": usher tries again all the time", remedies[problem.Reason]})
		}
	})
	return all
}

func endpoints(_ context.Context, s *subject) (all []Finding) {
	s.ports(func(p place) {
		usable, total := usable(p.port), len(p.port.Endpoints)
		vip := p.port.VIP + "/" + p.port.Protocol
		switch {
		case p.port.Problem != nil:
		case total == 0:
			all = append(all, Finding{"", Failing, p.object, "no endpoint at all for " + vip + ": clients are refused", "usher knows 0 endpoints",
				noEndpoints(p)})
		case usable == 0:
			all = append(all, Finding{"", Failing, p.object, "no endpoint for " + vip + " can be used: clients are refused", fmt.Sprintf("0 of %d are ready, or serving", total),
				"kubectl describe pod: the readiness probe says why"})
		}
		for _, d := range p.port.Dropped {
			all = append(all, Finding{"", dropSeverity(d.Clients), p.object, d.Clients + " clients of " + vip + " are dropped: " + d.Text, fmt.Sprintf("%d of %d endpoints are for them", 0, total),
				"let a Pod run on this node, come by a node that has one, or set the policy to Cluster"})
		}
	})
	return all
}

// usable returns how many endpoints of a port can be used.
func usable(port *api.ServicePort) (n int) {
	for _, e := range port.Endpoints {
		if e.Ready || e.Serving {
			n++
		}
	}
	return n
}

// noEndpoints returns the remedy for a port without endpoints. Where a slice has them, and
// its ports are to blame, a problem of the Service says so: see translate.Misnamed.
func noEndpoints(p place) string {
	if slices.ContainsFunc(p.problems, func(p api.Problem) bool { return strings.Contains(p.Message, "has no endpoints") }) {
		return "correct the ports of its EndpointSlice, which has endpoints"
	}
	namespace, name, _ := strings.Cut(p.name, "/")
	return fmt.Sprintf("does the selector match Pods? kubectl -n %s get endpointslices -l kubernetes.io/service-name=%s", namespace, name)
}

// dropSeverity: clients from outside are meant to come by another node.
func dropSeverity(clients string) Severity {
	if clients == "external" {
		return Note
	}
	return Failing
}

// flaps is how often an endpoint has to have been in quarantine to be told, and lately for how long it is more than a note.
const (
	flaps  = 3
	lately = 10 * time.Minute
)

func quarantine(ctx context.Context, s *subject) (all []Finding) {
	times := map[string]int{}
	first, last := map[string]time.Time{}, map[string]time.Time{}
	for m, err := range s.client.Events(ctx, client.EventQuery{Service: s.Service, Kind: api.KindEndpointQuarantined, History: true, Once: true}) {
		if err != nil {
			break // what is in quarantine now is known all the same
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
			delete(times, key) // of several ports and families once
			again := ""
			if n >= flaps {
				again = fmt.Sprintf("; %d times since %s, the last at %s", n, first[key].Local().Format(time.DateTime), last[key].Local().Format(time.DateTime))
			}
			switch {
			case e.Quarantine != nil:
				severity := Warning
				if state := s.stateOf(p.name); state == api.ServiceDown {
					severity = Failing
				}
				all = append(all, Finding{"", severity, p.object, endpointName(e) + " is in quarantine: " + e.Quarantine.Cause,
					e.Quarantine.Count() + again, remedyFor(e.Quarantine.Cause, p.name)})
			case n >= flaps:
				severity := Warning
				if s.status.Now.Sub(last[key]) > lately {
					severity = Note
				}
				all = append(all, Finding{"", severity, p.object, endpointName(e) + " comes and goes", strings.TrimPrefix(again, "; ") + ", it went into quarantine, and recovered",
					"usher trace " + p.name + " --outcome=failed,retry --history tells when and why"})
			}
		}
	})
	return all
}

func (s *subject) stateOf(name string) api.ServiceState {
	for i := range s.services {
		if s.services[i].Namespace+"/"+s.services[i].Name == name {
			return s.services[i].State
		}
	}
	return ""
}

// remedyFor returns what to do about an endpoint that fails in this way.
func remedyFor(cause, service string) string {
	switch {
	case strings.Contains(cause, "refused"):
		return "does the process in the Pod listen on that port, and on the Pod's address?"
	case strings.Contains(cause, "no answer"), strings.Contains(cause, "timed out"):
		return "a firewall or NetworkPolicy, or a node that is gone? kubectl get pod -o wide, kubectl get networkpolicy"
	case strings.Contains(cause, "probe"):
		return "what the annotation usher.io/probe asks for is not answered; see the Pod's log"
	}
	return "usher trace " + service + " --outcome=failed,retry --history"
}

// How much an endpoint has to fail lately to be told: so many times, and so many percent.
const failedTimes, failedPercent = 2, 2

// failing reports whether an endpoint fails so much that it is to be told. What it failed before is past.
func failing(e *api.Endpoint) bool {
	return e.State == api.EndpointOutlier || e.FailedLately >= failedTimes && 100*e.FailedLately >= failedPercent*(connectedLately(e)+e.FailedLately)
}

func connectedLately(e *api.Endpoint) int64 {
	if e.Latency == nil {
		return 0
	}
	return int64(e.Latency.Clients)
}

func breaks(_ context.Context, s *subject) (all []Finding) {
	s.ports(func(p place) {
		for i := range p.port.Endpoints {
			e := &p.port.Endpoints[i]
			if e.Quarantine != nil {
				continue
			}
			if !failing(e) {
				continue
			}
			wrong := endpointName(e) + " fails some of what it gets"
			if e.State == api.EndpointOutlier {
				wrong = endpointName(e) + " is an outlier: it takes connections, and breaks most of them"
			}
			all = append(all, Finding{"", Warning, p.object, wrong, fmt.Sprintf("in the last minutes, %d times it was connected, and %d attempts and connections failed; since usher has started %d and %d, and of all endpoints' connections %d were reset, %d ended without a response",
				connectedLately(e), e.FailedLately, e.Connected, e.Failed, p.port.Ends[outcome.EndpointReset.String()], p.port.Ends[outcome.NoResponse.String()]),
				"usher get connections " + p.name + " --state=ended --endpoint " + e.Address + "; then the Pod's log"})
		}
	})
	return all
}

// slowMs is how long a client has to wait to be told: what usher calls slow unless --slow-threshold says otherwise.
const slowMs = 200

// fewest is how many clients there have to be for what most of them waited to mean something.
const fewest = 20

func slow(_ context.Context, s *subject) (all []Finding) {
	remedy := func(p place) string {
		return "usher get connections " + p.name + " --state=all --outcome=slow,retried, and of one of them: usher get connection ID"
	}
	s.ports(func(p place) {
		before := len(all)
		for i := range p.port.Endpoints {
			e := &p.port.Endpoints[i]
			if e.State == api.EndpointUnresponsive {
				all = append(all, hangs(p, e))
				continue
			}
			if e.Latency == nil || p.port.Latency == nil {
				continue
			}
			if e.Latency.Clients < fewest || e.Latency.FirstByteP50Ms < slowMs {
				continue
			}
			all = append(all, Finding{"", Warning, p.object, endpointName(e) + " is slow", fmt.Sprintf("in the last minutes, half of its clients waited about %s or longer for its first byte; those of all endpoints %s",
				show.Milliseconds(e.Latency.FirstByteP50Ms), show.Milliseconds(p.port.Latency.FirstByteP50Ms)), remedy(p)})
		}
		if l := p.port.Latency; l != nil && len(all) == before && l.Clients >= fewest && l.ConnectP99Ms >= slowMs {
			all = append(all, Finding{"", Warning, p.object, "some clients of " + p.port.VIP + " wait long until they are connected", fmt.Sprintf("in the last minutes, one in a hundred waited about %s or longer, half of them %s at the most",
				show.Milliseconds(l.ConnectP99Ms), show.Milliseconds(l.ConnectP50Ms)), remedy(p)})
		}
	})
	return all
}

// hangs says of an endpoint that is unresponsive whom it does not answer.
func hangs(p place, e *api.Endpoint) Finding {
	wrong := endpointName(e) + " accepts connections, and answers none"
	known := fmt.Sprintf("in the last minutes it has had %s and sent no byte, and others of this port have", show.Plural(int(connectedLately(e)), "client"))
	if e.Latency == nil || e.Latency.FirstByteP99Ms > 0 {
		wrong = endpointName(e) + " leaves far more clients without a response than others of its port"
		known = fmt.Sprintf("in the last minutes %s left without a byte, and %d connected", show.Plural(int(e.NoResponseLately), "client"), connectedLately(e))
	}
	return Finding{"", Warning, p.object, wrong, known,
		"look at what runs there, which the kernel connects to also if it hangs; usher get connections " + p.name + " --state=all --endpoint=" + e.Address}
}

func portalRules(ctx context.Context, s *subject) (all []Finding) {
	portals, err := s.client.Portals(ctx)
	if err != nil {
		return []Finding{{"", Note, "usher", "the portal's rules could not be compared", err.Error(), "usher portals"}}
	}
	bad := map[string]int{}
	for _, r := range portals.Rules {
		if s.Service != "" && !strings.HasPrefix(r.Service, s.Service+":") && r.Service != s.Service {
			continue
		}
		if r.State == "missing" || r.State == "differs" {
			object := "usher"
			if s.Service != "" {
				object = "Service " + s.Service
			}
			if bad[object+"\x00"+r.State]++; bad[object+"\x00"+r.State] <= 3 {
				all = append(all, Finding{"", Failing, object, fmt.Sprintf("the portal rule for %s (%s) %s", r.VIP, r.Service, r.State), "compared with what the kernel has",
					"usher puts it back by itself; if it stays so, the log says why, or somebody takes it out again: nft monitor, auditctl"})
			}
		}
	}
	for _, p := range portals.Parts {
		if p.State == "missing" || p.State == "differs" {
			all = append(all, Finding{"", Warning, "usher", fmt.Sprintf("%s %s %s", p.Family, p.Name, p.State), "compared with what the kernel has", "usher puts it back by itself; see the log"})
		}
	}
	return all
}

func clientLetIn(ctx context.Context, s *subject) (all []Finding) {
	if s.Client == "" {
		return nil
	}
	ports := 0
	s.ports(func(p place) {
		for _, v := range p.port.VIPs {
			if ports++; ports > most || v.Kind == "NodePort" {
				continue
			}
			e, err := s.client.Explain(ctx, client.ExplainQuery{Service: p.name, Port: p.port.Name, Client: s.Client, VIP: v.Address})
			if err != nil || e.Verdict == api.WouldTry || e.Verdict == api.WouldReject {
				continue // of the other IP family; or without endpoints, which is another check's
			}
			all = append(all, Finding{"", Failing, p.object, fmt.Sprintf("%s would not be served at %s (%s): %s", s.Client, v.Address, v.Kind, strings.Join(e.Text, " ")),
				"usher explain says: " + string(e.Verdict), "loadBalancerSourceRanges, traffic policies; usher explain " + p.name + " --client " + s.Client + " --vip " + v.Address})
		}
	})
	return all
}
