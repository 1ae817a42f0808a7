package balance

import (
	"cmp"
	"math/bits"
	"sync/atomic"
	"time"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/proxy/latency"
)

// Endpoint is one endpoint of a service port with its state. Each Pool.Update creates new Endpoints; two represent the
// same endpoint if they share a State.
type Endpoint struct {
	*config.Endpoint // part of the config.ServicePort passed to Update; never changed
	*State
	pool *Pool
}

// State is the state of an endpoint. It is kept while the endpoint is listed and belongs to the same Pod. A removed
// endpoint that had connections (not UDP sessions) at the last Update gets its State back when it returns. The counters
// stay, and the health is reset.
type State struct {
	// Counters that the data plane updates and that are shown to users.
	Active    atomic.Int64 // connections open now, and attempts under way: see Endpoint.Take
	Connected atomic.Int64 // connections established since the start
	Failed    atomic.Int64 // attempts that failed, and connections that the endpoint reset
	// Bytes of connections that have ended.
	ToEndpoint, ToClient atomic.Int64

	stateSince atomic.Uint64          // see Since: Unix time in ms, and a state in the lowest four bits; 0 at first
	ends       atomic.Uint32          // how the latest connections ended: see ended
	health     atomic.Pointer[health] // nil if no failure is known, as for most endpoints
	rareState  atomic.Pointer[rareState]
}

// rareState is state that an endpoint does not need before an event such as its first client. State.rareState is nil
// until then.
type rareState struct {
	readyAt          atomic.Int64 // see readySince; Unix time in ns
	drained          atomic.Int64 // see EndConnections; Unix time in ns, 0 for never
	times            atomic.Pointer[Times]
	failures         atomic.Pointer[latency.Recent] // only the times are used; the durations are 0
	breaks           atomic.Pointer[latency.Recent] // when the endpoint broke connections; the durations are 0
	connectedAtBreak atomic.Int64                   // State.Connected when the endpoint last broke a connection

	noResponse  atomic.Pointer[latency.Recent] // only the times are used
	noResponses atomic.Int64                   // since the start
	unused      atomic.Pointer[latency.Recent] // only the times are used
	queue       atomic.Pointer[queue]
	own         atomic.Pointer[Endpoint] // see Own
}

// Own returns a copy of the endpoint. A connection may use it for days; a pointer to the original would keep all
// Endpoints of the same Pool.Update in memory.
func (e *Endpoint) Own() *Endpoint {
	r := e.ensureRare()
	own := r.own.Load()
	if own == nil || own.pool != e.pool || *own.Endpoint != *e.Endpoint {
		c := *e.Endpoint
		own = &Endpoint{&c, e.State, e.pool}
		r.own.Store(own)
	}
	return own
}

// ensureRare returns s.rareState, and creates it if needed.
func (s *State) ensureRare() *rareState {
	if s.rareState.Load() == nil {
		s.rareState.CompareAndSwap(nil, new(rareState))
	}
	return s.rareState.Load()
}

// noRare is the rareState of endpoints without one. It is only read.
var noRare rareState

func (s *State) rare() *rareState { return cmp.Or(s.rareState.Load(), &noRare) }

// Times holds recent waits of an endpoint's clients, from the start of the successful attempt. Those in Connect end
// when the connection is established, those in FirstByte at the endpoint's first byte.
type Times struct{ Connect, FirstByte latency.Recent }

// Times returns the endpoint's Times, and creates them if needed.
func (s *State) Times() *Times {
	r := s.rareState.Load()
	if r == nil {
		r = s.ensureRare()
	}
	if r.times.Load() == nil {
		r.times.CompareAndSwap(nil, new(Times))
	}
	return r.times.Load()
}

// ExistingTimes returns the endpoint's Times, or nil if it had no client yet.
func (s *State) ExistingTimes() *Times { return s.rare().times.Load() }

// countFailure adds one to State.Failed and to the recent failures.
func (s *State) countFailure(now time.Time) {
	s.Failed.Add(1)
	count(&s.ensureRare().failures, now)
}

// count adds one to r at now.
func count(r *atomic.Pointer[latency.Recent], now time.Time) {
	if r.Load() == nil {
		r.CompareAndSwap(nil, new(latency.Recent))
	}
	r.Load().Observe(latency.Seconds, now, 0)
}

// countBreak is countFailure for a connection that the endpoint broke; see Outlier.
func (s *State) countBreak(now time.Time) {
	s.countFailure(now)
	r := s.ensureRare()
	count(&r.breaks, now)
	r.connectedAtBreak.Store(s.Connected.Load())
}

// recent returns the count of r, which may be nil, in the last 5 to 10 minutes before now.
func recent(r *latency.Recent, now time.Time) int64 {
	if r == nil {
		return 0
	}
	var l latency.Sum
	l.Add(r, now)
	return int64(l.Number())
}

// Since returns when the endpoint entered state, a number below 16 that the caller defines. The parameter began is that
// time; unless exact is set, it is an estimate. Since remembers and returns began if state differs from that of the
// last call. It also does so if exact is set and began is later than the remembered time. Otherwise it returns the
// remembered time.
func (s *State) Since(state uint8, began time.Time, exact bool) time.Time {
	for {
		was := s.stateSince.Load()
		if was != 0 && uint8(was&15) == state && !(exact && began.UnixMilli() > int64(was>>4)) {
			return time.UnixMilli(int64(was >> 4))
		}
		if s.stateSince.CompareAndSwap(was, uint64(began.UnixMilli())<<4|uint64(state)) {
			return time.UnixMilli(began.UnixMilli())
		}
	}
}

// CountNoResponse counts a connection that ended as outcome.NoResponse at now.
func (s *State) CountNoResponse(now time.Time) {
	r := s.ensureRare()
	r.noResponses.Add(1)
	count(&r.noResponse, now)
}

// NoResponse returns how many connections of the endpoint ended as outcome.NoResponse, in total and in the last 5 to 10
// minutes before now. They do not count as failures.
func (s *State) NoResponse(now time.Time) (total, inPeriod int64) {
	r := s.rare()
	return r.noResponses.Load(), recent(r.noResponse.Load(), now)
}

// FailedRecently returns how many of State.Failed occurred in the last 5 to 10 minutes before now.
func (s *State) FailedRecently(now time.Time) int64 { return recent(s.rare().failures.Load(), now) }

// CountUnused counts a connection that its client closed at now, soon after opening it and without data in either
// direction. Examples are TCP health checks, and connections that browsers open in advance.
func (s *State) CountUnused(now time.Time) { count(&s.ensureRare().unused, now) }

// UnusedRecently returns how many connections CountUnused has counted in the last 5 to 10 minutes before now.
func (s *State) UnusedRecently(now time.Time) int64 { return recent(s.rare().unused.Load(), now) }

// Take counts a connection from the start of its attempt, so that concurrent choices see it in the load. Call Release
// when the attempt has failed or the connection has ended.
func (e *Endpoint) Take() { e.Active.Add(1) }

// tryTake is Take, unless the endpoint is Full.
func (e *Endpoint) tryTake() bool {
	for {
		bound, active := e.pool.bound.Load(), e.Active.Load()
		if bound > 0 && active >= bound {
			return false
		}
		if e.Active.CompareAndSwap(active, active+1) {
			return true
		}
	}
}

// Release undoes a Take or a Set.Take. The clients at the front of the queues are woken; one of them may take the free
// slot. If the attempt failed, call Report first.
func (e *Endpoint) Release() {
	e.Active.Add(-1)
	if e.pool.waiting.Load() > 0 {
		e.pool.wake(e)
	}
}

// Moved adds the bytes of an ended connection.
func (s *State) Moved(toEndpoint, toClient int64) {
	s.ToEndpoint.Add(toEndpoint)
	s.ToClient.Add(toClient)
}

// Drained returns the deadline that EndConnections has set. An attempt that was under way at that call may still
// succeed; its connection must end by this deadline, too. ok is false if there is no deadline.
func (s *State) Drained() (by time.Time, ok bool) {
	r := s.rareState.Load()
	if r == nil {
		return time.Time{}, false
	}
	ns := r.drained.Load()
	return time.Unix(0, ns), ns != 0
}

// An endpoint is an Outlier if it broke more than half of the connections that ended last. It also is an Outlier if it
// broke at least one in outlierPart of its connections in the last 5 to 10 minutes. The second condition no longer
// applies after a series of unbroken connections that is outlierOver times as long as the average series between two
// breaks.
const (
	outlierWindow = 16 // how many of the latest ended connections the first condition considers
	fewest        = 4  // minimum of ended connections for the first, and of broken ones for the second
	outlierPart   = 50
	outlierOver   = 10
)

// ended records the end of an established connection; broken means that the endpoint was at fault. s.ends has a bit for
// each connection (1 = broken), the newest in bit 0. A 1 above the oldest marks the end of the list; 0 means that none
// has ended.
func (s *State) ended(broken bool) {
	for {
		was := s.ends.Load()
		now := max(was, 1) << 1
		if now >= 2<<outlierWindow { // the oldest is dropped
			now = now&(1<<outlierWindow-1) | 1<<outlierWindow
		}
		if broken {
			now |= 1
		}
		if s.ends.CompareAndSwap(was, now) {
			return
		}
	}
}

// counted returns the number of connections in ends.
func counted(ends uint32) int { return max(0, bits.Len32(ends)-1) }

// broke returns how many of the connections in ends were broken.
func broke(ends uint32) int { return max(0, bits.OnesCount32(ends)-1) }

// Outlier reports whether the endpoint breaks many connections, see outlierWindow.
func (s *State) Outlier(now time.Time) bool {
	if ends := s.ends.Load(); counted(ends) >= fewest && 2*broke(ends) > counted(ends) {
		return true
	}
	r := s.rare()
	if r.breaks.Load() == nil {
		return false
	}
	broken := recent(r.breaks.Load(), now)
	clients := max(recent(&s.Times().Connect, now), broken) // older connections may break, too
	unbroken := s.Connected.Load() - r.connectedAtBreak.Load()
	return broken >= fewest && broken*outlierPart >= clients && unbroken*broken <= outlierOver*(clients-unbroken)
}

// Full reports whether the endpoint has reached its limit of connections. It reads the Pool's limit: if that
// changes, the new limit applies to Endpoints of older Sets, too.
func (e *Endpoint) Full() bool {
	bound := e.pool.bound.Load()
	return bound > 0 && e.Active.Load() >= bound
}
