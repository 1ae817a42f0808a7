package admin

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/proxy"
	"github.com/usherproxy/usher/proxy/admin/api"
	"github.com/usherproxy/usher/proxy/balance"
)

// Run checks all states every lookInterval, or with more than 250 Services every lookPerService times their
// number, so that it takes about a thousandth of a core. The reported start of a state may be later by that
// time.
const (
	lookInterval   = 5 * time.Second
	lookPerService = 20 * time.Millisecond
)

// starts records since when Services are in their current state. Endpoints record it themselves.
type starts struct {
	mu sync.Mutex
	of map[types.NamespacedName]start
}

type start struct {
	state api.ServiceState
	since time.Time
}

// Run checks the states of all Services, endpoints and of usher itself until ctx ends, so that each has a
// start even without readers.
func (a *API) Run(ctx context.Context) {
	for wait := time.Duration(0); ; {
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		stats := a.proxy.Stats()
		a.problems(&stats, time.Now())
		wait = max(lookInterval, time.Duration(stats.Services)*lookPerService)
	}
}

// summary returns the summary of g, with the source's reports and the start of its state.
func (a *API) summary(g group, reports []config.Report, now time.Time) api.Service {
	s := g.summary(now)
	s.Problems = reported(reports)
	if s.State != api.ServiceRejected {
		s.Since = a.starts.service(g, s.State, now)
		if s.State != api.ServiceOK {
			_, s.Trouble = g.trouble(a.proxy.Portal.Traits(), now)
		}
		return s
	}
	for i, r := range reports {
		if i == 0 || r.Since.Before(s.Since) {
			s.Since = r.Since
		}
	}
	return s
}

// service returns since when a Service is in its state at now. If the Service is new, or was in another state,
// service derives this from the known changes of its endpoints that are not ready. States up to degraded begin with
// the first of these changes. Worse states begin with the last one, since one usable endpoint prevents them.
func (s *starts) service(g group, state api.ServiceState, now time.Time) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	was, known := s.of[g.name()]
	if known && was.state == state {
		return was.since
	}
	began, found, last := now, false, state.Badness() > api.ServiceDegraded.Badness()
	for i := range g {
		for _, e := range g[i].Endpoints {
			of := stateOf(&g[i], e, now)
			since := endpointSince(e, of, now)
			if state != api.ServiceOK && of != api.EndpointReady && since.After(was.since) && (!found || since.After(began) == last) {
				began, found = since, true
			}
		}
	}
	if s.of == nil {
		s.of = map[types.NamespacedName]start{}
	}
	s.of[g.name()] = start{state, began}
	return began
}

// forget removes the Services that are not in all.
func (s *starts) forget(all []group) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.of) <= len(all) {
		return
	}
	still := make(map[types.NamespacedName]start, len(all))
	for _, g := range all {
		if is, known := s.of[g.name()]; known {
			still[g.name()] = is
		}
	}
	s.of = still
}

// endpointSince returns since when an endpoint is in its state at now. A quarantine has the exact time; other
// states begin when they are first observed.
func endpointSince(e *balance.Endpoint, state api.EndpointState, now time.Time) time.Time {
	if h := e.Health(now); state == api.EndpointQuarantined && !h.Since.IsZero() {
		return e.Since(uint8(state.Badness()), h.Since, true)
	}
	return e.Since(uint8(state.Badness()), now, false)
}

// look records the states of a Service's endpoints.
func (g group) look(now time.Time) {
	for i := range g {
		for _, e := range g[i].Endpoints {
			endpointSince(e, stateOf(&g[i], e, now), now)
		}
	}
}

// earliest returns the earliest start of each state that is a failure, among all endpoints.
func earliest(all []proxy.PortView, now time.Time) map[api.EndpointState]time.Time {
	first := map[api.EndpointState]time.Time{}
	for i := range all {
		for _, e := range all[i].Endpoints {
			state := stateOf(&all[i], e, now)
			if !state.Failing() {
				continue
			}
			if since := endpointSince(e, state, now); first[state].IsZero() || since.Before(first[state]) {
				first[state] = since
			}
		}
	}
	return first
}
