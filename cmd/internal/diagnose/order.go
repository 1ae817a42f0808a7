package diagnose

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/usherproxy/usher/cmd/internal/show"
	"github.com/usherproxy/usher/proxy/admin/api"
	"github.com/usherproxy/usher/proxy/admin/client"
	"github.com/usherproxy/usher/proxy/outcome"
)

// isOver reports whether a finding is about a past problem.
func isOver(f Finding) bool {
	return f.Check == "past" || f.Check == "quarantine" && f.Severity == Note
}

// impact returns the number of recent failures due to the problem of a finding, and when the problem began, as far as
// known. refused has, by Service, the number of connections that found no endpoint.
func (s *subject) impact(f Finding, refused map[string]int64) (failures int64, since time.Time) {
	name, is := strings.CutPrefix(f.Object, "Service ")
	if !is {
		return 0, since
	}
	ofEndpoint := false
	s.ports(func(p place) {
		for i := range p.port.Endpoints {
			e := &p.port.Endpoints[i]
			if p.name != name || !strings.HasPrefix(f.Wrong, endpointName(e)+" ") {
				continue
			}
			ofEndpoint = true
			if e.State.Failing() && (since.IsZero() || e.Since.Before(since)) {
				since = e.Since
			}
			failures += e.FailedRecently + e.NoResponseRecently
			if e.State == api.EndpointUnresponsive && e.Latency != nil && e.Latency.FirstByteP99Ms == 0 {
				failures += max(0, connectedRecently(e)-e.NoResponseRecently) // clients that are still waiting
			}
		}
	})
	if !ofEndpoint && f.Severity != Note {
		failures = refused[name]
		if d := s.service(name); d.State.Badness() > api.ServiceDegraded.Badness() {
			since = d.Since
		}
	}
	return failures, since
}

// askFailed sets failed and failedErr. It returns, by Service, the number of failed connections without an endpoint.
func (s *subject) askFailed(ctx context.Context) map[string]int64 {
	ctx, cancel := context.WithTimeout(ctx, s.atMost(askTime))
	defer cancel()
	list, err := s.client.Connections(ctx, client.ConnectionQuery{State: "ended", Service: s.Service, Outcome: "failed", Last: recentPeriod, Max: mostPast})
	s.failed, s.failedErr = list.Items, err
	refused := map[string]int64{}
	for _, c := range s.failed {
		if c.Endpoint == "" {
			refused[c.Service]++
		}
	}
	return refused
}

// denied reports clients that loadBalancerSourceRanges recently denied.
func denied(_ context.Context, s *subject) (all []Finding) {
	clients := map[string][]string{}
	times, last := map[string]int{}, map[string]time.Time{}
	if s.failedErr != nil {
		return []Finding{cannotCheck("whether clients were denied", s.failedErr)}
	}
	for _, c := range s.failed {
		at, err := netip.ParseAddrPort(c.Client)
		if c.End != outcome.SourceDenied.String() || err != nil {
			continue
		}
		if times[c.Service]++; times[c.Service] == 1 {
			last[c.Service] = c.Accepted
		}
		if address := at.Addr().String(); !slices.Contains(clients[c.Service], address) {
			clients[c.Service] = append(clients[c.Service], address)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(times)) {
		all = append(all, Finding{"", Warning, "Service " + name, fmt.Sprintf("%s from %s denied: not in loadBalancerSourceRanges", show.Plural(times[name], "connection"), show.Few(clients[name])),
			"last at " + last[name].Local().Format(time.DateTime),
			"if they should be admitted, add them to the ranges; usher explain " + name + " --client " + clients[name][0]})
	}
	return all
}

// withoutCluster returns the remedy of a finding for Services that come from files: it needs no kubectl.
func withoutCluster(f Finding) string {
	name := strings.TrimPrefix(f.Object, "Service ")
	switch {
	case !strings.Contains(f.Remedy, "kubectl"):
		return strings.ReplaceAll(f.Remedy, "the Pod's log", "the log of the process at that address")
	case strings.Contains(f.Remedy, "get endpointslices"):
		_, short, _ := strings.Cut(name, "/")
		return "do the manifests have an EndpointSlice with the label kubernetes.io/service-name: " + short + "? usher check FILES"
	case strings.Contains(f.Remedy, "describe pod"):
		return "see the conditions of its EndpointSlice in the manifests"
	}
	return "is there a firewall, is the listen backlog full, is the machine down, or is there no route to it? nft list ruleset; ss -ltn; ip route get ADDRESS"
}
