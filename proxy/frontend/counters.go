package frontend

import (
	"sync/atomic"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/proxy/balance"
	"github.com/usherproxy/usher/proxy/conn"
	"github.com/usherproxy/usher/proxy/latency"
	"github.com/usherproxy/usher/proxy/outcome"
)

// Counters count events since the start.
type Counters struct {
	connections, sessions clients
	associations          atomic.Int64 // accepted SCTP associations

	Unlogged                               atomic.Int64 // refused connections that the trace omits
	DatagramsToEndpoint, DatagramsToClient atomic.Int64
	dropped                                [numDrops]atomic.Int64
	Probes                                 [conn.ProbeResults]atomic.Int64
	LateProbes                             atomic.Int64
	Quarantines, Recoveries                atomic.Int64
	seen                                   [portal.SourceAddressCount]atomic.Int64 // successful attempts
	choices                                [balance.Reasons]atomic.Int64
	queueWaits                             latency.Histogram // buckets: latency.Queued; ended waits
}

// clients counts either all connections or all UDP sessions.
type clients struct {
	portCounters
	ends [outcome.Outcomes]atomic.Int64
}

// portCounters counts the clients of one service port, or of all service ports.
type portCounters struct {
	accepted, established, failed, retries atomic.Int64
	attempts                               [conn.Results]atomic.Int64
	toEndpoint, toClient                   atomic.Int64
}

// Observe implements conn.Observer: it counts the steps of the front end's clients.
func (f *FrontEnd) Observe(r *conn.Record, s conn.Step) {
	all := &f.Counters.connections
	if f.Protocol == config.UDP {
		all = &f.Counters.sessions
	}
	portMetrics, exemplar := f.portMetrics.Load(), uint64(0)
	if portMetrics == nil && s.Kind != conn.Accepted {
		f.portMetrics.CompareAndSwap(nil, new(PortMetrics))
		portMetrics = f.portMetrics.Load()
	}
	if s.Flags != 0 {
		exemplar = r.ID // a histogram bucket shows the ID of a connection with a problem (OpenMetrics)
	}
	established := s.Kind == conn.Established || s.Kind == conn.Attempted && s.Result == conn.Connected
	for _, t := range [...]*portCounters{&f.portCounters, &all.portCounters} {
		switch {
		case s.Kind == conn.Accepted:
			t.accepted.Add(1)
		case s.Kind == conn.Attempted:
			t.attempts[s.Result].Add(1)
			if s.Attempt > 1 {
				t.retries.Add(1)
			}
		case s.Kind == conn.Closed:
			if s.Flags&conn.Broken != 0 && s.Ending.Outcome != outcome.SourceDenied { // a denied client is no failure
				t.failed.Add(1)
			}
			t.toEndpoint.Add(s.Ending.ToEndpoint)
			t.toClient.Add(s.Ending.ToClient)
		}
		if established {
			t.established.Add(1)
		}
	}
	switch s.Kind {
	case conn.Accepted:
		if f.Protocol == config.SCTP {
			f.Counters.associations.Add(1)
		}
	case conn.Attempted:
		f.Counters.choices[s.Reason].Add(1)
		if established {
			f.Counters.seen[s.SourceAddress].Add(1)
			portMetrics.Connect.Observe(latency.Seconds, s.Time, s.Duration.Seconds(), exemplar)
			portMetrics.Recent.Connect.Observe(latency.Seconds, s.Time, s.Duration.Seconds())
		}
	case conn.Queued:
		f.Counters.queueWaits.Observe(latency.Queued, s.Time, s.Duration.Seconds(), 0)
	case conn.FirstByte:
		portMetrics.FirstByte.Observe(latency.Seconds, s.Time, s.Duration.Seconds(), exemplar)
		portMetrics.Recent.FirstByte.Observe(latency.Seconds, s.Time, s.Duration.Seconds())
	case conn.Closed:
		all.ends[s.Ending.Outcome].Add(1)
		portMetrics.ends[s.Ending.Outcome].Add(1)
		if s.Ending.Served {
			portMetrics.Lasted.Observe(latency.Lasting, s.Time, s.Duration.Seconds(), exemplar)
			portMetrics.Bytes.Observe(latency.Bytes, s.Time, float64(s.Ending.ToEndpoint+s.Ending.ToClient), exemplar)
		}
	}
}

// Totals are counts for one service port since it was added, or for all service ports since the start.
type Totals struct {
	Active                            int64 // open connections or UDP sessions
	Queued                            int64 // for one service port only: clients in the queue for an endpoint
	Accepted, Established, Failed     int64 // connections or UDP sessions of clients
	Attempts, AttemptsFailed, Retries int64
	ToEndpoint, ToClient              int64 // bytes of ended connections
}

// Totals returns the counts of f.
func (f *FrontEnd) Totals() (t Totals) {
	t.add(&f.portCounters, f.Open.Load()+f.Sessions.Load())
	if s := f.View().Cluster; s != nil {
		t.Queued = int64(s.Queued())
	}
	return t
}

// Totals returns the counts of all service ports, including removed ones.
func (n *Node) Totals() (t Totals) {
	t.add(&n.Counters.connections.portCounters, n.Budget.Connections.Load())
	t.add(&n.Counters.sessions.portCounters, n.Budget.Sessions.Load())
	return t
}

func (t *Totals) add(of *portCounters, active int64) {
	t.Active += active
	t.Accepted += of.accepted.Load()
	t.Established += of.established.Load()
	t.Failed += of.failed.Load()
	t.Retries += of.retries.Load()
	for result := range of.attempts {
		n := of.attempts[result].Load()
		t.Attempts += n
		if conn.Result(result) != conn.Connected {
			t.AttemptsFailed += n
		}
	}
	t.ToEndpoint += of.toEndpoint.Load()
	t.ToClient += of.toClient.Load()
}

// Drop is the reason why a datagram was not forwarded.
type Drop int

const (
	DropNotAdmitted        Drop = iota // sent directly to the listener, or from a source that is not allowed
	DropUnknownDestination             // conntrack could not be queried for its original destination
	DropNoEndpoint                     // no endpoint exists, or all have refused
	DropReceiveBuffer                  // usher did not read fast enough
	DropSendBuffer                     // the kernel or the network interface did not send fast enough
	DropNotSent                        // the kernel refused to send it, or an ICMP error says that it did not arrive
	DropTooBig                         // exceeds the path MTU that the kernel knows
	DropHopLimit                       // arrived with a hop limit of 1
	numDrops
)

// String returns the word for d in metrics.
func (d Drop) String() string {
	return [...]string{"not-admitted", "unknown-destination", "no-endpoint", "receive-buffer-full", "send-buffer-full", "not-sent", "too-big", "hop-limit"}[d]
}

// Drop counts n datagrams that were not forwarded.
func (c *Counters) Drop(why Drop, n int) { c.dropped[why].Add(int64(n)) }

// Stats has the totals of all front ends since the process started, and current values.
type Stats struct {
	All                   Totals              // connections and UDP sessions together
	Accepted, Established int64               // connections
	Attempts              [conn.Results]int64 // of connections and UDP sessions, by conn.Result
	Choices               map[balance.Reason]int64
	SourceAddress         [portal.SourceAddressCount]int64 // successful attempts
	Unlogged              int64                            // refused connections that the trace omits
	Ends                  map[outcome.Outcome]int64        // of connections
	Open, Limit           int64                            // connections
	QueueWaits            latency.All                      // buckets: latency.Queued

	Sessions SessionStats
	// Associations are SCTP associations, which also count as connections.
	Associations struct{ Accepted, Open int64 }

	Quarantines, Recoveries int64                    // endpoints that entered quarantine, and that left it
	Probes                  [conn.ProbeResults]int64 // by conn.Result; not included in Attempts
	LateProbes              int64                    // checks that started more than one interval late
}

// SessionStats are numbers about UDP sessions and their datagrams.
type SessionStats struct {
	Open, Limit          int64
	Begun, Answered      int64
	Ends                 map[outcome.Outcome]int64
	ToEndpoint, ToClient int64           // datagrams
	Dropped              [numDrops]int64 // datagrams, by Drop
}

// Stats returns the current numbers, except Associations.Open.
func (n *Node) Stats() Stats {
	c, b := &n.Counters, n.Budget
	s := Stats{
		All:         n.Totals(),
		Accepted:    c.connections.accepted.Load(),
		Established: c.connections.established.Load(),
		Unlogged:    c.Unlogged.Load(),
		Ends:        endsNow(&c.connections.ends),
		Open:        b.Connections.Load(),
		Limit:       b.ConnectionLimit(),
		Quarantines: c.Quarantines.Load(),
		Recoveries:  c.Recoveries.Load(),
		LateProbes:  c.LateProbes.Load(),
		Sessions: SessionStats{
			Open: b.Sessions.Load(), Limit: b.SessionLimit(),
			Begun: c.sessions.accepted.Load(), Answered: c.sessions.established.Load(), Ends: endsNow(&c.sessions.ends),
			ToEndpoint: c.DatagramsToEndpoint.Load(), ToClient: c.DatagramsToClient.Load(),
		},
	}
	s.QueueWaits.Add(&c.queueWaits)
	s.Associations.Accepted = c.associations.Load()
	for i := range s.Attempts {
		s.Attempts[i] = c.connections.attempts[i].Load() + c.sessions.attempts[i].Load()
	}
	for i := range s.Probes {
		s.Probes[i] = c.Probes[i].Load()
	}
	for i := range s.SourceAddress {
		s.SourceAddress[i] = c.seen[i].Load()
	}
	s.Choices = map[balance.Reason]int64{}
	for i := range c.choices {
		if n := c.choices[i].Load(); n > 0 {
			s.Choices[balance.Reason(i)] = n
		}
	}
	for i := range s.Sessions.Dropped {
		s.Sessions.Dropped[i] = c.dropped[i].Load()
	}
	return s
}

// PortMetrics holds the metrics of a service port that Totals lacks: times, sizes and outcomes. A service port has none
// before its first client, which saves memory: of 10,000 service ports, most never have a client.
type PortMetrics struct {
	Connect   latency.Histogram // buckets: latency.Seconds; from accept until an endpoint was connected
	FirstByte latency.Histogram // buckets: latency.Seconds; see conn.Record.FirstByte
	Lasted    latency.Histogram // buckets: latency.Lasting; of connections and sessions that had an endpoint
	Bytes     latency.Histogram // buckets: latency.Bytes, both directions together; of the same clients
	Recent    balance.Times     // Connect and FirstByte of the last minutes
	ends      [outcome.Outcomes]atomic.Int64
}

// PortMetrics returns the PortMetrics of f, or nil.
func (f *FrontEnd) PortMetrics() *PortMetrics { return f.portMetrics.Load() }

// answers reports whether any client of f has received a byte from an endpoint.
func (f *FrontEnd) answers() bool {
	var all latency.All
	if s := f.PortMetrics(); s != nil {
		all.Add(&s.FirstByte)
	}
	number, _ := all.Buckets(nil)
	return number > 0
}

// Ends returns the number of clients by outcome, without zeros.
func (s *PortMetrics) Ends() map[outcome.Outcome]int64 { return endsNow(&s.ends) }

// endsNow returns the current counts, without zeros.
func endsNow(counts *[outcome.Outcomes]atomic.Int64) map[outcome.Outcome]int64 {
	now := map[outcome.Outcome]int64{}
	for o := range counts {
		if n := counts[o].Load(); n > 0 {
			now[outcome.Outcome(o)] = n
		}
	}
	return now
}
