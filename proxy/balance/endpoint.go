package balance

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/usherproxy/usher/config"
)

// Quarantine says for how long an endpoint that failed is passed over.
type Quarantine struct {
	First time.Duration // after the first failure; 0 means never
	Max   time.Duration // it doubles with each further failure, up to this
}

// probeTime is how long the others wait for the outcome when one connection
// has been sent to an endpoint whose quarantine is over.
const probeTime = time.Second

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
	Active    atomic.Int64 // connections open now
	Connected atomic.Int64 // connections ever established
	Failed    atomic.Int64 // attempts that failed
	// Bytes of connections that have ended.
	ToEndpoint, ToClient atomic.Int64

	quarantined atomic.Bool // failed is there, readable without the lock

	mu     sync.Mutex
	failed *failed // nil, as with most of a hundred thousand, if the last attempt did not fail
}

// failed is what is known of an endpoint that failed.
type failed struct {
	times  int       // in a row
	until  time.Time // passed over until then
	probed time.Time // somebody is probing; passed over until then
	cause  error
}

// Moved adds the bytes of a connection that has ended.
func (s *State) Moved(toEndpoint, toClient int64) {
	s.ToEndpoint.Add(toEndpoint)
	s.ToClient.Add(toClient)
}

// Watcher is told when quarantine begins and ends. It must return quickly.
type Watcher interface {
	Quarantined(e *Endpoint, now time.Time, length time.Duration, cause error)
	Recovered(e *Endpoint)
}

// Fail is State.Fail, and tells the pool's watcher.
func (e *Endpoint) Fail(started, now time.Time, cause error, q Quarantine) {
	if length := e.State.Fail(started, now, cause, q); length > 0 && e.pool.Watcher != nil {
		e.pool.Watcher.Quarantined(e, now, length, cause)
	}
}

// Succeed is State.Succeed, and tells the pool's watcher.
func (e *Endpoint) Succeed() {
	if e.State.Succeed() && e.pool.Watcher != nil {
		e.pool.Watcher.Recovered(e)
	}
}

// Fail reports that an attempt, started at started, failed at now. Only a
// failure of an attempt that was started outside of a quarantine begins the
// next, longer one: neither a hundred connections that meet a dead endpoint at
// the same moment nor one that asks it again for want of another make it worse. Fail returns the length of the
// quarantine that begins, or 0.
func (s *State) Fail(started, now time.Time, cause error, q Quarantine) time.Duration {
	s.Failed.Add(1)
	if q.First <= 0 {
		return 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	times := 1
	if s.failed != nil {
		if started.Before(s.failed.until) {
			return 0
		}
		times += s.failed.times
	}
	length := q.length(times)
	s.failed = &failed{times: times, until: now.Add(length), cause: cause}
	s.quarantined.Store(true)
	return length
}

// length returns the length of the quarantine after so many failures in a row.
func (q Quarantine) length(failures int) time.Duration {
	d := q.First
	for range failures - 1 {
		if d >= q.Max/2 {
			return max(q.Max, q.First)
		}
		d *= 2
	}
	return d
}

// Succeed reports that a connection was established: the past is forgotten. It
// returns whether there was one.
func (s *State) Succeed() bool {
	s.Connected.Add(1)
	if !s.quarantined.Load() {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	failed := s.failed != nil
	s.failed = nil
	s.quarantined.Store(false)
	return failed
}

// Quarantined returns until when the endpoint is passed over, how many failures in a row
// led to that and what the last one was; ok is false if it is not in quarantine
// at now.
func (s *State) Quarantined(now time.Time) (until time.Time, failures int, cause error, ok bool) {
	if !s.quarantined.Load() {
		return time.Time{}, 0, nil, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.failed
	if f == nil {
		return time.Time{}, 0, nil, false
	}
	return f.until, f.times, f.cause, now.Before(f.until)
}

// standing is what the choice depends on.
type standing uint8

const (
	healthy standing = iota
	probing          // its quarantine is over and the caller is the one to probe it
	avoided          // in quarantine, or somebody else is probing it
)

// stand returns the endpoint's standing at now. If claim is set and the answer is probing,
// the caller has the probe: others see avoided until it has reported how that
// ended, or probeTime has passed.
func (s *State) stand(now time.Time, claim bool) standing {
	if !s.quarantined.Load() {
		return healthy
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.failed
	switch {
	case f == nil:
		return healthy
	case now.Before(f.until), now.Before(f.probed):
		return avoided
	}
	if claim {
		f.probed = now.Add(probeTime)
	}
	return probing
}
