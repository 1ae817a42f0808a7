package frontend

import (
	"maps"
	"sync"
	"sync/atomic"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/proxy/trace"
)

// Counters count what happened since the start. They are kept where the trace
// is: each event is counted once.
type Counters struct {
	accepted, established atomic.Int64
	attempts              [trace.Results]atomic.Int64
	retries, failed       atomic.Int64
	associations          atomic.Int64 // SCTP; they are among accepted too
	toEndpoint, toClient  atomic.Int64

	sessions, answered atomic.Int64 // UDP sessions: that have begun, and of those

	mu          sync.Mutex
	ends        map[trace.End]int64
	sessionEnds map[trace.End]int64

	// For who does what is counted.
	Unlogged                               atomic.Int64 // clients that were refused, and left out of the trace
	DatagramsToEndpoint, DatagramsToClient atomic.Int64
	dropped                                [numDrops]atomic.Int64
	Probes                                 [trace.Results]atomic.Int64
	Quarantines, Recoveries                atomic.Int64
}

// Drop says why a datagram was not passed on.
type Drop int

// The reasons.
const (
	DropNotAdmitted   Drop = iota // it came straight to the listener, or from a source that is not allowed
	DropUnknownOrigin             // conntrack could not say where it was meant to go
	DropNoEndpoint                // there is none, or all have refused
	DropReceiveBuffer             // usher could not read fast enough
	DropSendBuffer                // the kernel could not send fast enough
	DropNotSent                   // the kernel would not send it
	DropTooBig                    // a link on its way takes none of that size; the kernel knows now
	DropHopLimit                  // it came with a hop limit of 1
	numDrops
)

// String returns the word that metrics use.
func (d Drop) String() string {
	return [...]string{"not-admitted", "unknown-origin", "no-endpoint", "receive-buffer-full", "send-buffer-full", "not-sent", "too-big", "hop-limit"}[d]
}

// Drop counts n datagrams that were not passed on.
func (c *Counters) Drop(why Drop, n int) { c.dropped[why].Add(int64(n)) }

// count counts a step of a connection, of which life is what is known, e
// included.
func (c *Counters) count(life *trace.Life, e *trace.Event) {
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
		c.attempts[e.Result].Add(1)
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

func (c *Counters) countSession(e *trace.Event) {
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

// Stats are numbers about the clients of all front ends: those that count do so since
// the start.
type Stats struct {
	Accepted, Established int64
	Attempts              [trace.Results]int64 // by trace.Result
	Retries               int64                // attempts after a connection's, or session's, first
	Failed                int64                // connections and sessions that ended without an endpoint
	Unlogged              int64                // connections that were refused and that the trace leaves out
	Ends                  map[trace.End]int64
	ToEndpoint, ToClient  int64 // bytes of connections and UDP sessions that have ended
	Open, Limit           int64 // connections

	Sessions SessionStats
	// Associations are those of SCTP, which count as connections too.
	Associations struct{ Accepted, Open int64 }

	Quarantines, Recoveries int64                // endpoints that went into quarantine, and that answered after one
	Probes                  [trace.Results]int64 // by trace.Result; they are not among Attempts
}

// SessionStats are numbers about UDP sessions and their datagrams.
type SessionStats struct {
	Open, Limit          int64
	Begun, Answered      int64
	Ends                 map[trace.End]int64
	ToEndpoint, ToClient int64           // datagrams
	Dropped              [numDrops]int64 // datagrams, by Drop
}

// Stats returns the numbers as they are now, but for Associations.Open.
func (n *Node) Stats() Stats {
	c, b := &n.Counters, n.Budget
	s := Stats{
		Accepted:    c.accepted.Load(),
		Established: c.established.Load(),
		Attempts:    loaded(&c.attempts),
		Retries:     c.retries.Load(),
		Failed:      c.failed.Load(),
		Unlogged:    c.Unlogged.Load(),
		ToEndpoint:  c.toEndpoint.Load(),
		ToClient:    c.toClient.Load(),
		Open:        b.Connections.Load(),
		Limit:       b.ConnectionLimit(),
		Quarantines: c.Quarantines.Load(),
		Recoveries:  c.Recoveries.Load(),
		Probes:      loaded(&c.Probes),
		Sessions: SessionStats{
			Open: b.Sessions.Load(), Limit: b.SessionLimit(),
			Begun: c.sessions.Load(), Answered: c.answered.Load(),
			ToEndpoint: c.DatagramsToEndpoint.Load(), ToClient: c.DatagramsToClient.Load(),
		},
	}
	s.Associations.Accepted = c.associations.Load()
	for i := range s.Sessions.Dropped {
		s.Sessions.Dropped[i] = c.dropped[i].Load()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	s.Sessions.Ends = maps.Clone(c.sessionEnds)
	s.Ends = maps.Clone(c.ends)
	return s
}

func loaded(counters *[trace.Results]atomic.Int64) (all [trace.Results]int64) {
	for i := range counters {
		all[i] = counters[i].Load()
	}
	return all
}
