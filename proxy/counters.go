package proxy

import (
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/proxy/trace"
)

// counters count what happened since the start. They are kept where the trace
// is: each event is counted once.
type counters struct {
	accepted, established atomic.Int64
	attempts              [numResults]atomic.Int64
	retries, failed       atomic.Int64
	associations          atomic.Int64 // SCTP; they are among accepted too
	toEndpoint, toClient  atomic.Int64
	unlogged              atomic.Int64

	sessions                               atomic.Int64 // UDP sessions that have begun
	answered                               atomic.Int64 // of those
	datagramsToEndpoint, datagramsToClient atomic.Int64
	dropped                                [numDrops]atomic.Int64

	mu          sync.Mutex
	ends        map[trace.End]int64
	sessionEnds map[trace.End]int64

	serviceChanges, endpointChanges   atomic.Int64
	servicesApplied, endpointsApplied atomic.Int64 // of those
	repaired, portalFailures          atomic.Int64
	quarantines, recoveries           atomic.Int64
	probes                            [numResults]atomic.Int64
}

// AttemptResult says how an attempt ended.
type AttemptResult int

// The results.
const (
	AttemptConnected AttemptResult = iota
	AttemptRefused
	AttemptNoAnswer
	AttemptFailed // in any other way
	numResults
)

// String returns the word that metrics use.
func (r AttemptResult) String() string {
	return [...]string{"connected", "refused", "no-answer", "failed"}[r]
}

// ResultOf returns the result of an attempt that ended with the error given, "" if
// it succeeded.
func ResultOf(err string) AttemptResult {
	switch err {
	case "":
		return AttemptConnected
	case errRefused.Error():
		return AttemptRefused
	case errNoAnswer.Error():
		return AttemptNoAnswer
	}
	return AttemptFailed
}

// Drop says why a datagram was not passed on.
type Drop int

// The reasons.
const (
	DropNotAdmitted   Drop = iota // it came straight to the listener, or from a source that is not allowed
	DropUnknownOrigin             // conntrack could not say where it was meant to go
	DropNoEndpoint                // there is none, or all have refused
	DropLimit                     // no room for another session
	DropReceiveBuffer             // usher could not read fast enough
	DropSendBuffer                // the kernel could not send fast enough
	DropNotSent                   // the kernel would not send it
	DropTooBig                    // a link on its way takes none of that size; the kernel knows now
	DropHopLimit                  // it came with a hop limit of 1
	numDrops
)

// String returns the word that metrics use.
func (d Drop) String() string {
	return [...]string{"not-admitted", "unknown-origin", "no-endpoint", "limit", "receive-buffer-full", "send-buffer-full", "not-sent", "too-big", "hop-limit"}[d]
}

func (c *counters) drop(why Drop, n int) { c.dropped[why].Add(int64(n)) }

// count counts a step of a connection, of which life is what is known, e
// included.
func (c *counters) count(life *trace.Life, e *trace.Event) {
	if isRetry(e) {
		c.retries.Add(1)
	}
	if isFailure(life, e) {
		c.failed.Add(1)
	}
	if e.Protocol == config.UDP && e.Kind != trace.Attempt {
		c.countSession(e)
		return
	}
	switch e.Kind {
	case trace.Accepted:
		c.accepted.Add(1)
		if e.Protocol == config.SCTP {
			c.associations.Add(1)
		}
	case trace.Attempt:
		c.attempts[ResultOf(e.Err)].Add(1)
	case trace.Established:
		c.established.Add(1)
	case trace.Closed:
		c.toEndpoint.Add(e.ToEndpoint)
		c.toClient.Add(e.ToClient)
		c.mu.Lock()
		c.ends[e.End]++
		c.mu.Unlock()
	}
}

// appliedChanges notes that the kernel has taken all changes so far.
func (c *counters) appliedChanges() {
	c.servicesApplied.Store(c.serviceChanges.Load())
	c.endpointsApplied.Store(c.endpointChanges.Load())
}

func (c *counters) countSession(e *trace.Event) {
	switch e.Kind {
	case trace.Accepted:
		c.sessions.Add(1)
	case trace.Established:
		c.answered.Add(1)
	case trace.Closed:
		c.toEndpoint.Add(e.ToEndpoint)
		c.toClient.Add(e.ToClient)
		c.mu.Lock()
		c.sessionEnds[e.End]++
		c.mu.Unlock()
	}
}

// Stats are numbers about a Proxy: those that count do so since its start.
type Stats struct {
	Accepted, Established int64
	Attempts              [numResults]int64 // by AttemptResult
	Retries               int64             // attempts after a connection's, or session's, first
	Failed                int64             // connections and sessions that ended without an endpoint
	Unlogged              int64             // connections that were refused and that the trace leaves out
	Ends                  map[trace.End]int64
	ToEndpoint, ToClient  int64 // bytes of connections and UDP sessions that have ended

	Sessions UDPStats
	// Associations are those of SCTP, which count as connections too.
	Associations struct{ Accepted, Open int64 }

	Open, Limit     int64 // connections
	Services, Ports int
	Listeners       int64
	AffinityClients int64
	Problems        map[Reason]int

	ServiceChanges, EndpointChanges   int64
	ServicesPending, EndpointsPending int64             // of those, that the kernel has not taken yet
	Repaired                          int64             // rules, routes and chains that somebody had removed or changed
	PortalFailures                    int64             // changes that the portal could not make
	Quarantines, Recoveries           int64             // endpoints that went into quarantine, and that answered after one
	Probes                            [numResults]int64 // by AttemptResult; they are not among Attempts

	// NoLocalEndpoints is how many service ports have policy Local, endpoints,
	// and none of them on this node.
	NoLocalEndpoints map[config.Family]NoLocal
}

// NoLocal counts service ports by the policy that leaves them without endpoints.
type NoLocal struct{ Internal, External int }

// UDPStats are numbers about UDP sessions and their datagrams.
type UDPStats struct {
	Open, Limit          int64
	Begun, Answered      int64
	Ends                 map[trace.End]int64
	ToEndpoint, ToClient int64           // datagrams
	Dropped              [numDrops]int64 // datagrams, by Drop
}

// Stats returns the numbers as they are now.
func (p *Proxy) Stats() Stats {
	c := &p.counters
	servicesApplied, endpointsApplied := c.servicesApplied.Load(), c.endpointsApplied.Load() // before what they are of
	s := Stats{
		Accepted:         c.accepted.Load(),
		Established:      c.established.Load(),
		Retries:          c.retries.Load(),
		Failed:           c.failed.Load(),
		Unlogged:         c.unlogged.Load(),
		ToEndpoint:       c.toEndpoint.Load(),
		ToClient:         c.toClient.Load(),
		Open:             p.budget.connections.Load(),
		Limit:            p.budget.connectionLimit(),
		Listeners:        p.budget.listeners.Load(),
		AffinityClients:  p.affinities.Used(),
		Problems:         map[Reason]int{},
		ServiceChanges:   c.serviceChanges.Load(),
		EndpointChanges:  c.endpointChanges.Load(),
		Repaired:         c.repaired.Load(),
		PortalFailures:   c.portalFailures.Load(),
		Quarantines:      c.quarantines.Load(),
		Recoveries:       c.recoveries.Load(),
		NoLocalEndpoints: map[config.Family]NoLocal{config.IPv4: {}, config.IPv6: {}},
	}
	s.ServicesPending = s.ServiceChanges - servicesApplied
	s.EndpointsPending = s.EndpointChanges - endpointsApplied
	s.Associations.Accepted = c.associations.Load()
	for i := range s.Attempts {
		s.Attempts[i] = c.attempts[i].Load()
	}
	for i := range s.Probes {
		s.Probes[i] = c.probes[i].Load()
	}
	s.Sessions = UDPStats{
		Open: p.budget.sessions.Load(), Limit: p.budget.sessionLimit(),
		Begun: c.sessions.Load(), Answered: c.answered.Load(),
		ToEndpoint: c.datagramsToEndpoint.Load(), ToClient: c.datagramsToClient.Load(),
	}
	for i := range s.Sessions.Dropped {
		s.Sessions.Dropped[i] = c.dropped[i].Load()
	}
	c.mu.Lock()
	s.Sessions.Ends = maps.Clone(c.sessionEnds)
	s.Ends = maps.Clone(c.ends)
	c.mu.Unlock()

	p.mu.Lock()
	defer p.mu.Unlock()
	s.Services = len(p.services)
	for _, fronts := range p.services {
		s.Ports += len(fronts)
		for _, f := range fronts {
			v := f.view.Load()
			if f.protocol == config.SCTP {
				s.Associations.Open += f.open.Load()
			}
			without := s.NoLocalEndpoints[v.port.ID.Family]
			if v.port.InternalLocal && v.internal.Len() == 0 && v.cluster.Len() > 0 {
				without.Internal++
			}
			if v.port.ExternalLocal && v.external.Len() == 0 && v.cluster.Len() > 0 {
				without.External++
			}
			s.NoLocalEndpoints[v.port.ID.Family] = without
		}
	}
	for _, problem := range p.problems {
		s.Problems[problem.Reason]++
	}
	return s
}

// SyncStatus says whether what the source wants is in force.
type SyncStatus struct {
	LastQueued  time.Time // when the source last handed over a change; zero if it never did
	LastApplied time.Time // when the kernel was last brought up to date; zero if it never was
	LastChecked time.Time // when the portal was last compared with the kernel; zero if it never was
	Pending     time.Time // since when a change waits to be applied; zero if none does
}

// syncState is a SyncStatus that is kept up to date.
type syncState struct {
	mu  sync.Mutex
	now SyncStatus
}

func (s *syncState) queued(at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now.LastQueued = at
	if s.now.Pending.IsZero() {
		s.now.Pending = at
	}
}

func (s *syncState) applied(at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now.LastApplied, s.now.Pending = at, time.Time{}
}

func (s *syncState) checked(at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now.LastChecked = at
}

// SyncStatus returns how it is now. It never waits for a change that is being
// made.
func (p *Proxy) SyncStatus() SyncStatus {
	p.sync.mu.Lock()
	defer p.sync.mu.Unlock()
	return p.sync.now
}
