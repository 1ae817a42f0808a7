package frontend

import (
	"sync/atomic"

	"github.com/usherproxy/usher/proxy/trace"
)

// count counts a step of a client's, of which life is what is known, e included.
func (f *FrontEnd) count(life *trace.Life, e *trace.Event) {
	f.Counters.count(life, e)
	f.tally.count(life, e)
}

// tally counts for one service port what Counters counts for all.
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

// Totals returns the counts of f.
func (f *FrontEnd) Totals() Totals {
	t := &f.tally
	return Totals{
		Active:   f.Open.Load() + f.Sessions.Load(),
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
		if trace.Result(result) != trace.Connected {
			t.AttemptsFailed += n
		}
	}
	return t
}
