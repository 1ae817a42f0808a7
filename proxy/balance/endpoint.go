package balance

import (
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/proxy/latency"
)

// Quarantine says for how long an endpoint that failed is passed over.
type Quarantine struct {
	First time.Duration // after the first failure; 0 means never
	Max   time.Duration // it doubles with each further failure, up to this
	// Probed says that the caller probes the endpoint when that time is over, and
	// reports to State.Probed: the quarantine lasts until a probe is answered. Without
	// that it is over by itself, and one connection finds out.
	Probed bool
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
	Active    atomic.Int64 // connections open now, and attempts under way: see Endpoint.Take
	Connected atomic.Int64 // connections ever established
	Failed    atomic.Int64 // attempts that failed, and connections that the endpoint broke
	// Bytes of connections that have ended.
	ToEndpoint, ToClient atomic.Int64

	ends      atomic.Uint32 // of the last connections: a one, and for each a one if it was broken, the newest last
	remembers atomic.Bool   // failed is there, or it is convicted; readable without the lock
	rare      atomic.Pointer[rare]

	mu     sync.Mutex
	place  int32   // in the Pool's books, which guard it
	failed *failed // nil, as with most of a hundred thousand, if it did not fail since a client was connected to it
}

// rare is what is known of few endpoints, or of those that had clients; nil of all others.
type rare struct {
	cameAt   atomic.Int64 // see came; Unix time in ns
	drained  atomic.Int64 // see EndConnections; Unix time in ns, 0 for never
	tried    atomic.Bool  // trial is there
	times    atomic.Pointer[Times]
	failures atomic.Pointer[latency.Recent] // when; how long it took does not matter

	unanswered atomic.Int64 // see Unanswered
	trial      *trial       // nil if its last probe did not fail; see Judge. Guarded by State.mu
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
	r := s.rarely()
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

// CountUnanswered adds one to Unanswered.
func (s *State) CountUnanswered() { s.rarely().unanswered.Add(1) }

// Unanswered returns how many connections the endpoint ended first, without a byte for a client that had
// sent some. They are no failures: some protocols have no answers.
func (s *State) Unanswered() int64 {
	if r := s.rare.Load(); r != nil {
		return r.unanswered.Load()
	}
	return 0
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

// failed is what is known of an endpoint that failed.
type failed struct {
	times  int       // in a row
	until  time.Time // passed over until then
	probed bool      // and until a probe is answered
	// answered says that a probe was, at until. The endpoint has its turns again, but
	// what it failed is forgotten only when a client has been connected to it: one
	// that answers nobody but probes shall not be back each time after a second.
	answered bool
	claimed  time.Time // a client's connection finds out; passed over until then
	cause    error
	doubt    netip.Addr // see Doubt; not valid for a failure

	// For protocols in which silence is no answer: since when clients have found out
	// again, and how long that takes to be as good as one.
	since  time.Time
	enough time.Duration
}

// quarantined reports whether the endpoint was in quarantine at a time.
func (f *failed) quarantined(at time.Time) bool {
	return f.probed || at.Before(f.until) && !f.answered
}

// Period is a period that an endpoint spends in quarantine.
type Period struct {
	// Until is when it is over or, if it is Probed, when the next probe is due.
	Until    time.Time
	Probed   bool  // it lasts until a probe is answered
	Failures int   // that led to it, in a row; those of probes among them
	Cause    error // the last of them
	Doubt    bool  // see State.Doubt
	// Convicted says that it lasts until so many probes are answered in a row as the Service asks
	// for: see State.Judge. Failures are probes then, since the endpoint was last well.
	Convicted bool
}

// Take counts a connection, from when the attempt begins: those who choose next reckon
// with it. Release is to be called when the attempt has failed or the connection has ended.
func (e *Endpoint) Take() { e.count(1) }

// Release ends what Take began. The first in line may have the room. An attempt that has
// failed is told of before.
func (e *Endpoint) Release() {
	e.count(-1)
	if l := &e.pool.line; l.bound.Load() > 0 {
		l.freed()
	}
}

func (e *Endpoint) count(connections int64) {
	e.Active.Add(connections)
	if e.pool.books.kept.Load() {
		e.pool.books.changed(e.State)
	}
}

// Moved adds the bytes of a connection that has ended.
func (s *State) Moved(toEndpoint, toClient int64) {
	s.ToEndpoint.Add(toEndpoint)
	s.ToClient.Add(toClient)
}

// Judge is State.Judge.
func (e *Endpoint) Judge(now time.Time, err error, interval time.Duration, rise, fall int) (news bool) {
	news = e.State.Judge(now, err, interval, rise, fall)
	e.pool.line.look(now) // also if it is in quarantine all the same, and for how long is another matter
	return news
}

// Acquit is State.Acquit.
func (e *Endpoint) Acquit(now time.Time) (news bool) {
	news = e.State.Acquit(now)
	e.pool.line.look(now)
	return news
}

// Watcher is told when quarantine begins and ends. It must return quickly.
type Watcher interface {
	Quarantined(e *Endpoint, now time.Time, length time.Duration, cause error)
	Recovered(e *Endpoint)
}

// Fail is State.Fail, and tells the pool's watcher.
func (e *Endpoint) Fail(started, now time.Time, cause error, q Quarantine) {
	e.passOver(now, e.State.Fail(started, now, cause, q), cause)
}

// passOver tells of a quarantine that has begun, unless its length is 0.
func (e *Endpoint) passOver(now time.Time, length time.Duration, cause error) {
	if length == 0 {
		return
	}
	e.pool.line.look(now)
	if e.pool.Watcher != nil {
		e.pool.Watcher.Quarantined(e, now, length, cause)
	}
}

// Doubt is State.Doubt.
func (e *Endpoint) Doubt(client netip.Addr, now time.Time, cause error, q Quarantine) bool {
	doubted := e.State.Doubt(client, now, cause, q)
	if doubted {
		e.pool.line.look(now)
	}
	return doubted
}

// Probed is State.Probed.
func (e *Endpoint) Probed(now time.Time, err error, blame bool, q Quarantine) (next time.Duration, news bool) {
	next, news = e.State.Probed(now, err, blame, q)
	if news && next == 0 {
		e.pool.line.look(now)
	}
	return next, news
}

// Succeed is State.Succeed, and tells the pool's watcher.
func (e *Endpoint) Succeed(now time.Time) {
	if !e.State.Succeed(now) {
		return
	}
	e.pool.line.look(now)
	if e.pool.Watcher != nil {
		e.pool.Watcher.Recovered(e)
	}
}

// Doubt reports that an attempt from a client's own address had no answer at now, and returns
// false if that is a failure, for Fail: a second client had none. Of the first it may be
// that a NetworkPolicy keeps that client out. Then the endpoint is passed over for q.First
// only, however often that happens, and by those who have affinity to it not at all.
func (s *State) Doubt(client netip.Addr, now time.Time, cause error, q Quarantine) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.failed
	if f != nil && f.doubt != client || q.First <= 0 {
		return false
	}
	s.countFailure(now)
	if f == nil || !now.Before(f.until) {
		s.failed = &failed{times: 1, until: now.Add(q.First), cause: cause, doubt: client, enough: q.Max}
		s.remembers.Store(true)
	}
	return true
}

// Fail reports that an attempt, started at started, failed at now. Only a
// failure of an attempt that was started outside of a quarantine begins the
// next, longer one: neither a hundred connections that meet a dead endpoint at
// the same moment nor one that asks it again for want of another make it worse. Fail returns the length of the
// quarantine that begins, or 0.
func (s *State) Fail(started, now time.Time, cause error, q Quarantine) time.Duration {
	s.countFailure(now)
	if q.First <= 0 {
		return 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.convicted() {
		return 0
	}
	times := 1
	if f := s.failed; f != nil {
		if f.probed || started.Before(f.until) {
			return 0
		}
		if !f.answered || now.Sub(f.until) < q.Max { // it has not been well for long
			times += f.times
		}
	}
	length := q.length(times)
	s.failed = &failed{times: times, until: now.Add(length), probed: q.Probed, cause: cause, enough: q.Max}
	s.remembers.Store(true)
	return length
}

// Probed reports that a probe ended at now: answered, or with err, for which the
// endpoint is to blame or not. It returns after which time the next one is due, 0 for
// none; news says that the endpoint has recovered (and next is 0), or that it is left
// alone for longer than before.
func (s *State) Probed(now time.Time, err error, blame bool, q Quarantine) (next time.Duration, news bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.failed
	switch {
	case f == nil || !f.probed: // a client has been faster
		return 0, false
	case err == nil:
		f.probed, f.answered, f.until = false, true, now
		return 0, !s.convicted()
	case !blame:
		next = q.length(f.times)
	default:
		before := q.length(f.times)
		f.times++
		f.cause = err
		next = q.length(f.times)
		news = next > before
	}
	f.until = now.Add(next)
	return next, news
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

// Succeed reports that a connection was established at now: the past is forgotten. It
// returns whether that is how the endpoint has recovered.
func (s *State) Succeed(now time.Time) bool {
	s.Connected.Add(1)
	if !s.remembers.Load() {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	news := s.failed != nil && !s.failed.answered && !s.convicted()
	s.failed = nil
	s.remember()
	return news
}

// Quarantined tells of the quarantine in which the endpoint is at now; ok is false if
// it is in none.
func (s *State) Quarantined(now time.Time) (period Period, ok bool) {
	if !s.remembers.Load() {
		return Period{}, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.convicted() {
		return s.rare.Load().trial.period(), true
	}
	f := s.failed
	if f == nil || !f.quarantined(now) {
		return Period{}, false
	}
	return Period{Until: f.until, Probed: f.probed, Failures: f.times, Cause: f.cause, Doubt: f.doubt.IsValid()}, true
}

// standing is what the choice depends on.
type standing uint8

const (
	healthy standing = iota
	probing          // its quarantine is over by itself, and the caller is the one to find out
	avoided          // in quarantine, or another connection is finding out
)

// stand returns the endpoint's standing at now. If claim is set and the answer is probing,
// the caller has the probe: others see avoided until it has reported how that
// ended, or probeTime has passed. An endpoint of which nobody reports anything, since its
// protocol has no answers, is healthy when it has refused nobody for the longest
// quarantine.
func (s *State) stand(now time.Time, claim bool) standing {
	if !s.remembers.Load() {
		return healthy
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.failed
	switch {
	case s.convicted():
		return avoided
	case f == nil, f.answered, !f.since.IsZero() && now.Sub(f.since) >= f.enough:
		return healthy
	case f.quarantined(now), now.Before(f.claimed):
		return avoided
	}
	if claim {
		if f.since.IsZero() {
			f.since = now
		}
		f.claimed = now.Add(probeTime)
	}
	return probing
}
