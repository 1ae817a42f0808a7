package proxy

import (
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/usherproxy/usher/proxy/trace"
)

// begin returns the record of a connection or UDP session that was accepted.
func (f *frontEnd) begin(id uint64, from, to netip.AddrPort, accepted time.Time) *trace.Life {
	return f.proxy.Trace.Begin(trace.Subject{Conn: id, Port: f.id(), Protocol: f.protocol, Client: from, VIP: to}, accepted)
}

// step counts a step of a connection and puts it into the trace. Nothing of e is
// kept but in copies.
func (f *frontEnd) step(life *trace.Life, e *trace.Event) {
	e.Subject = &life.Subject
	f.proxy.Trace.Step(life, e)
	f.proxy.counters.count(life, e)
	f.tally.count(life, e)
}

// unlogged counts a connection that was refused, and puts nothing into the trace.
func (f *frontEnd) unlogged(subject trace.Subject, end trace.End) {
	f.proxy.counters.unlogged.Add(1)
	life := &trace.Life{Subject: subject}
	for _, e := range []trace.Event{{Kind: trace.Accepted}, {Kind: trace.Closed, End: end}} {
		e.Subject = &life.Subject
		f.proxy.counters.count(life, &e)
		f.tally.count(life, &e)
	}
}

// tally counts for one service port what counters counts for all.
type tally struct {
	accepted, established, failed     atomic.Int64
	attempts, attemptsFailed, retries atomic.Int64
	toEndpoint, toClient              atomic.Int64
}

func (t *tally) count(life *trace.Life, e *trace.Event) {
	switch e.Kind {
	case trace.Accepted:
		t.accepted.Add(1)
	case trace.Attempt:
		t.attempts.Add(1)
		if e.Err != "" {
			t.attemptsFailed.Add(1)
		}
		if isRetry(e) {
			t.retries.Add(1)
		}
	case trace.Established:
		t.established.Add(1)
	case trace.Closed:
		if isFailure(life, e) {
			t.failed.Add(1)
		}
		if e.ToEndpoint != 0 {
			t.toEndpoint.Add(e.ToEndpoint)
		}
		if e.ToClient != 0 {
			t.toClient.Add(e.ToClient)
		}
	}
}

// isRetry reports whether e is an attempt after a connection's first.
func isRetry(e *trace.Event) bool { return e.Kind == trace.Attempt && e.Attempt > 1 }

// isFailure reports whether e is the end of a connection that did not come about.
// A UDP session whose endpoint never answered, and never refused, is none: some
// protocols have no answers.
func isFailure(life *trace.Life, e *trace.Event) bool {
	if e.Kind != trace.Closed {
		return false
	}
	switch e.End {
	case trace.Idle, trace.EndpointLeft, trace.Withdrawn, trace.Drained:
		return false
	}
	_, established := life.Established()
	return !established
}

// Totals are counts for one service port since it is served, or for all since the
// start.
type Totals struct {
	Active                            int64 // connections or UDP sessions that are open
	Accepted, Established, Failed     int64 // of those that clients made
	Attempts, AttemptsFailed, Retries int64
	ToEndpoint, ToClient              int64 // bytes of those that have ended
}

// totals returns the counts of f.
func (f *frontEnd) totals() Totals {
	t := &f.tally
	return Totals{
		Active:   f.open.Load() + f.sessions.Load(),
		Accepted: t.accepted.Load(), Established: t.established.Load(), Failed: t.failed.Load(),
		Attempts: t.attempts.Load(), AttemptsFailed: t.attemptsFailed.Load(), Retries: t.retries.Load(),
		ToEndpoint: t.toEndpoint.Load(), ToClient: t.toClient.Load(),
	}
}

// Totals returns the counts of all service ports, also of those that are gone.
func (s *Stats) Totals() Totals {
	t := Totals{
		Active:   s.Open + s.Sessions.Open,
		Accepted: s.Accepted + s.Sessions.Begun, Established: s.Established + s.Sessions.Answered, Failed: s.Failed,
		Retries:    s.Retries,
		ToEndpoint: s.ToEndpoint, ToClient: s.ToClient,
	}
	for result, n := range s.Attempts {
		t.Attempts += n
		if AttemptResult(result) != AttemptConnected {
			t.AttemptsFailed += n
		}
	}
	return t
}
