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

// Run looks at all states every lookInterval, or, where there are more than 250 Services, after lookPerService for each, so
// that it takes about a thousandth of a core. A state may begin so much later for people than in truth.
const (
	lookInterval   = 5 * time.Second
	lookPerService = 20 * time.Millisecond
)

// starts knows since when Services are in the state that they are in. Endpoints know it themselves.
type starts struct {
	mu sync.Mutex
	of map[types.NamespacedName]start
}

type start struct {
	state api.ServiceState
	since time.Time
}

// Run looks at the states of all Services, endpoints and of usher itself until ctx ends, so that they have a start
// also if no client asks for them.
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

// summary is that of g with what the source has reported of it, and the start of its state.
func (a *API) summary(g group, reports []config.Report, now time.Time) api.Service {
	s := g.summary(now)
	s.Problems = reported(reports)
	if s.State != api.ServiceRejected {
		s.Since = a.starts.service(g, s.State, now)
		return s
	}
	for i, r := range reports {
		if i == 0 || r.Since.Before(s.Since) {
			s.Since = r.Since
		}
	}
	return s
}

// service returns since when a Service is in the state that it is in at now. One that was not known, or was in
// another state, came into it when the first of its endpoints did that are not ready now, as far as that is known.
func (s *starts) service(g group, state api.ServiceState, now time.Time) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	was, known := s.of[g.name()]
	if known && was.state == state {
		return was.since
	}
	began := now
	for i := range g {
		for _, e := range g[i].Endpoints {
			of := stateOf(&g[i], e, now)
			since := endpointSince(e, of, now)
			if state != api.ServiceOK && of != api.EndpointReady && since.Before(began) && since.After(was.since) {
				began = since
			}
		}
	}
	if s.of == nil {
		s.of = map[types.NamespacedName]start{}
	}
	s.of[g.name()] = start{state, began}
	return began
}

// forget forgets the Services that are not among all.
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

// endpointSince returns since when an endpoint is in the state that it is in at now. A quarantine knows it exactly;
// all else began when it was first looked at.
func endpointSince(e *balance.Endpoint, state api.EndpointState, now time.Time) time.Time {
	began := now
	if h := e.Health(now); state == api.EndpointQuarantined && !h.Since.IsZero() {
		began = h.Since
	}
	return e.Since(uint8(state.Badness()), began)
}

// look notes the states of a Service's endpoints.
func (g group) look(now time.Time) {
	for i := range g {
		for _, e := range g[i].Endpoints {
			endpointSince(e, stateOf(&g[i], e, now), now)
		}
	}
}

// earliest are the starts of the endpoints that have been in a state for longest, by state; of those that are failures.
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
