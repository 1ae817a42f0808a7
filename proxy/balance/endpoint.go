package balance

import (
	"math/bits"
	"sync/atomic"
	"time"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/proxy/latency"
)

// Endpoint is one endpoint of a service port and what is known of it. Each update
// of a Pool makes new ones; the State tells whether two are the same endpoint.
type Endpoint struct {
	*config.Endpoint // in the model that the Pool was last given, which is not changed
	*State
	pool *Pool
}

// State is what is known of an endpoint. It lasts for as long as the endpoint
// is listed without a break and belongs to the same Pod, whatever else is said
// of it changes meanwhile.
type State struct {
	// Counters for the data plane to keep and for people to read.
	Active    atomic.Int64 // connections open now, and attempts under way: see Endpoint.Take
	Connected atomic.Int64 // connections ever established
	Failed    atomic.Int64 // attempts that failed, and connections that the endpoint broke
	// Bytes of connections that have ended.
	ToEndpoint, ToClient atomic.Int64

	shown  atomic.Uint64          // see Since: Unix time in ms, and a state in the lowest four bits; 0 at first
	ends   atomic.Uint32          // of the last connections: a one, and for each a one if it was broken, the newest last
	health atomic.Pointer[health] // nil, as with most of a hundred thousand, if nothing bad is known
	rare   atomic.Pointer[rare]
}

// rare is what is known of few endpoints, or of those that had clients; nil of all others.
type rare struct {
	cameAt   atomic.Int64 // see came; Unix time in ns
	drained  atomic.Int64 // see EndConnections; Unix time in ns, 0 for never
	times    atomic.Pointer[Times]
	failures atomic.Pointer[latency.Recent] // when; how long it took does not matter

	noResponse atomic.Pointer[latency.Histogram] // as failures
	queue      atomic.Pointer[queue]
}

// rarely returns s.rare, which is there from then on.
func (s *State) rarely() *rare {
	if s.rare.Load() == nil {
		s.rare.CompareAndSwap(nil, new(rare))
	}
	return s.rare.Load()
}

// Times are how long clients of an endpoint lately waited: until established, and until its first
// byte came for them, since they were accepted.
type Times struct{ Connect, FirstByte latency.Recent }

// Times returns those of the endpoint, which are there from then on.
func (s *State) Times() *Times {
	r := s.rare.Load()
	if r == nil {
		r = s.rarely()
	}
	if r.times.Load() == nil {
		r.times.CompareAndSwap(nil, new(Times))
	}
	return r.times.Load()
}

// TimesSeen returns those of the endpoint, or nil if it had no client yet.
func (s *State) TimesSeen() *Times {
	if r := s.rare.Load(); r != nil {
		return r.times.Load()
	}
	return nil
}

// countFailure adds one to State.Failed and to those of late.
func (s *State) countFailure(now time.Time) {
	s.Failed.Add(1)
	r := s.rarely()
	if r.failures.Load() == nil {
		r.failures.CompareAndSwap(nil, new(latency.Recent))
	}
	r.failures.Load().Observe(latency.Seconds, now, 0)
}

// Since returns since when the endpoint is in a state, a number below 16. What the states are is up to those who ask:
// if the last question was about another one, this one began at began.
func (s *State) Since(state uint8, began time.Time) time.Time {
	for {
		was := s.shown.Load()
		if was != 0 && uint8(was&15) == state {
			return time.UnixMilli(int64(was >> 4))
		}
		if s.shown.CompareAndSwap(was, uint64(began.UnixMilli())<<4|uint64(state)) {
			return time.UnixMilli(began.UnixMilli())
		}
	}
}

// CountNoResponse counts a connection that ended as outcome.NoResponse at now.
func (s *State) CountNoResponse(now time.Time) {
	r := s.rarely()
	if r.noResponse.Load() == nil {
		r.noResponse.CompareAndSwap(nil, new(latency.Histogram))
	}
	r.noResponse.Load().Observe(latency.Seconds, now, 0, 0)
}

// NoResponse returns how many connections of the endpoint ended as outcome.NoResponse, and how many of them in the
// last 5 to 10 minutes before now. They are no failures.
func (s *State) NoResponse(now time.Time) (ever, lately int64) {
	r := s.rare.Load()
	if r == nil || r.noResponse.Load() == nil {
		return 0, 0
	}
	var all latency.All
	var l latency.Lately
	all.Add(r.noResponse.Load())
	l.Add(&r.noResponse.Load().Recent, now)
	number, _ := all.Buckets(nil)
	return int64(number), int64(l.Number())
}

// FailedLately returns how much of State.Failed was in the last 5 to 10 minutes before now.
func (s *State) FailedLately(now time.Time) int64 {
	r := s.rare.Load()
	if r == nil || r.failures.Load() == nil {
		return 0
	}
	var l latency.Lately
	l.Add(r.failures.Load(), now)
	return int64(l.Number())
}

// Take counts a connection, from when the attempt begins: those who choose next reckon
// with it. Release is to be called when the attempt has failed or the connection has ended.
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

// Release ends what Take, or Set.Take, began. Clients that wait for a free slot may take it. An attempt that has
// failed is reported before.
func (e *Endpoint) Release() {
	e.Active.Add(-1)
	if e.pool.waiting.Load() > 0 {
		e.pool.wake(e)
	}
}

// Moved adds the bytes of a connection that has ended.
func (s *State) Moved(toEndpoint, toClient int64) {
	s.ToEndpoint.Add(toEndpoint)
	s.ToClient.Add(toClient)
}

// Drained returns by when a connection that is established now has to end; false if it
// may go on.
func (s *State) Drained() (by time.Time, ok bool) {
	r := s.rare.Load()
	if r == nil {
		return time.Time{}, false
	}
	ns := r.drained.Load()
	return time.Unix(0, ns), ns != 0
}

// lately is how many of the connections that ended last count for State.Suspicious, and
// fewest with how few it begins to count.
const (
	lately = 16
	fewest = 4
)

// ended notes that a connection which the endpoint had answered is over; broken, that this was the
// endpoint's fault.
func (s *State) ended(broken bool) {
	for {
		was := s.ends.Load()
		now := max(was, 1) << 1
		if now >= 2<<lately { // the first one of more than that is forgotten
			now = now&(1<<lately-1) | 1<<lately
		}
		if broken {
			now |= 1
		}
		if s.ends.CompareAndSwap(was, now) {
			return
		}
	}
}

// counted returns how many ends there are in what State.ends has, and broke how many of them were broken.
func counted(ends uint32) int { return max(0, bits.Len32(ends)-1) }
func broke(ends uint32) int   { return max(0, bits.OnesCount32(ends)-1) }

// Suspicious reports whether most of the connections that ended lately were broken by the
// endpoint.
func (s *State) Suspicious() bool {
	ends := s.ends.Load()
	return counted(ends) >= fewest && 2*broke(ends) > counted(ends)
}
