package diagnose

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/usherproxy/usher/cmd/internal/show"
	"github.com/usherproxy/usher/proxy/admin/api"
	"github.com/usherproxy/usher/proxy/admin/client"
	"github.com/usherproxy/usher/proxy/outcome"
)

const (
	// mostPast is the maximum number of connections that are examined, the newest: more than usher keeps by default.
	mostPast = 5000
	// mostEvents is the maximum number of events reported for a Service, the most frequent.
	mostEvents = 5
)

// event is a kind of failure of a Service's connections. what describes it, and find has the flags of get connections
// that select them. endpoint is only set for slow connections.
type event struct{ service, what, find, endpoint string }

// past reports failures of connections, except those whose cause another check reports: unhealthy endpoints, and ports
// without usable ones. If the last failure of a kind is recent, the problem may continue. The finding then has Check
// "recent", and is not listed as past.
func past(ctx context.Context, s *subject) (all []Finding) {
	list, err := s.client.Connections(ctx, client.ConnectionQuery{State: "ended", Service: s.Service, Outcome: "failed,retried,slow", Max: mostPast})
	if err != nil {
		return []Finding{cannotCheck("past connections", err)}
	}
	reported, empty := map[[2]string]bool{}, map[string]bool{}
	waits := map[[2]string]*api.Latency{}
	s.ports(func(p place) {
		if usable(p.port) == 0 {
			empty[p.name] = true
		}
		for i := range p.port.Endpoints {
			e := &p.port.Endpoints[i]
			if key := [2]string{p.name, e.Address}; waits[key] == nil { // of the first port
				waits[key] = e.Latency
			}
			if failing(e) || e.Quarantine != nil || e.State == api.EndpointUnresponsive || isSlow(p, e) {
				reported[[2]string{p.name, e.Address}] = true
			}
		}
	})
	times := map[event]int{}
	first, last := map[event]time.Time{}, map[event]time.Time{}
	for i := range list.Items {
		c := &list.Items[i]
		at := c.Accepted
		if slices.Contains(c.Outcomes, "failed") {
			at = at.Add(time.Duration(c.DurationMs * float64(time.Millisecond)))
		}
		for e, addresses := range events(c) {
			known := slices.ContainsFunc(addresses, func(address string) bool { return reported[[2]string{c.Service, address}] })
			if known || c.End == outcome.NoEndpoint.String() && empty[c.Service] {
				continue
			}
			if times[e]++; times[e] == 1 || at.Before(first[e]) {
				first[e] = at
			}
			if at.After(last[e]) {
				last[e] = at
			}
		}
	}
	of := map[string]int{}
	for _, e := range slices.SortedFunc(maps.Keys(times), func(a, b event) int {
		return cmp.Or(cmp.Compare(times[b], times[a]), cmp.Compare(a.what, b.what))
	}) {
		if of[e.service]++; of[e.service] > mostEvents {
			continue
		}
		when := "last at " + last[e].Local().Format(time.DateTime)
		if times[e] > 1 {
			when += ", first at " + first[e].Local().Format(time.DateTime)
			if list.Total > len(list.Items) {
				when += " or earlier"
			}
		}
		if l := waits[[2]string{e.service, e.endpoint}]; l != nil {
			when += fmt.Sprintf("; in the last 5 to 10 minutes, its p99 time to first byte was about %s, p50 %s, of %s",
				show.Milliseconds(l.FirstByteP99Ms), show.Milliseconds(l.FirstByteP50Ms), show.Plural(int(l.Clients), "client"))
		}
		check := ""
		if s.status.Now.Sub(last[e]) <= recentPeriod {
			check = "recent"
		}
		text := show.Plural(times[e], "connection") + " " + e.what
		if times[e] == 1 {
			text = strings.Replace(text, " were ", " was ", 1)
		}
		all = append(all, Finding{check, Note, "Service " + e.service, text, when,
			"usher get connections " + e.service + " " + e.find + "; for one of them: usher get connection ID"})
	}
	return all
}

// events returns the failures of a connection, each with the addresses of its endpoints. A connection that neither
// failed nor was retried was slow.
func events(c *api.Connection) map[event][]string {
	all := map[event][]string{}
	if slices.Contains(c.Outcomes, "failed") {
		if outcome.Named(c.End).Fault() == outcome.FaultEndpoint {
			what, addresses := "failed: "+c.End, []string{c.Endpoint}
			if c.Endpoint != "" {
				what += ", endpoint " + cmp.Or(c.Pod, c.Endpoint)
			} else {
				for _, a := range c.Attempts {
					addresses = append(addresses, a.Endpoint)
				}
			}
			all[event{c.Service, what, "--outcome=failed", ""}] = addresses
		}
		return all
	}
	for _, a := range c.Attempts {
		if a.Error != "" {
			all[event{c.Service, "were retried: " + a.Result + ", endpoint " + cmp.Or(a.Pod, a.Endpoint), "--retried", ""}] = []string{a.Endpoint}
		}
	}
	if len(all) == 0 {
		all[event{c.Service, "waited long for the first byte of " + cmp.Or(c.Pod, c.Endpoint), "--outcome=slow", c.Endpoint}] = []string{c.Endpoint}
	}
	return all
}
