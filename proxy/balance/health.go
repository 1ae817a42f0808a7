package balance

import (
	"fmt"
	"net/netip"
	"time"
)

// Kind is the kind of a Report.
type Kind uint8

// The kinds. A recheck is a probe of an endpoint that is Down because attempts failed. A check is a probe that the
// Service or --probe requests, whether the endpoint is Up or Down.
const (
	Connected           Kind = iota + 1 // an attempt succeeded
	ConnectFailed                       // an attempt failed, or a UDP endpoint refused after it had answered
	RecheckPassed                       // a recheck succeeded: it ends a quarantine that attempts began
	RecheckFailed                       // a recheck failed: the time until the next one doubles, up to Policy.Max
	RecheckInconclusive                 // the recheck was impossible for a reason on this node
	CheckPassed
	CheckFailed
	CheckOff // checks are no longer requested
	Closed   // a connection ended without a fault of the endpoint; see Outlier
	Broken   // the endpoint caused the end of a connection, for example by a reset
	claim    // one connection tries an endpoint that is HalfOpen
)

// Report is one observation of an endpoint.
type Report struct {
	Kind   Kind
	Start  time.Time  // start of the attempt; only for ConnectFailed
	Now    time.Time  // time of the observation
	Err    error      // of failures
	Client netip.Addr // the client, if usher connected from its address and got no answer; only for ConnectFailed
}

// Policy determines how reports change an endpoint's health.
type Policy struct {
	// First is how long an endpoint is Down after the first failure; 0 = no quarantine. For checks it is the interval.
	First time.Duration
	Max   time.Duration // limit of the time Down, which doubles with each further failure
	// UntilProbe decides what happens when the time Down (First, doubled up to Max) is over. If it is true, the caller
	// rechecks the endpoint, which stays Down until a recheck passes or a client connects. If it is false, or only one
	// client's attempts failed, the endpoint becomes HalfOpen, and one connection tests it.
	UntilProbe bool
	// Rise and Fall are the numbers of consecutive checks that must pass, or fail, to make an endpoint Up, or Down.
	Rise, Fall int32
}

// length returns how long an endpoint is Down after the given number of consecutive failures.
func (p *Policy) length(failures int32) time.Duration {
	d := p.First
	for range failures - 1 {
		if d >= p.Max/2 {
			return max(p.Max, p.First)
		}
		d *= 2
	}
	return d
}

// Change is the result of a Report. Blamed may be set even if the report changes nothing.
type Change struct {
	Blamed bool          // the endpoint is at fault, and not only the path from one client
	Notify bool          // the Watcher is notified
	Next   time.Duration // until the next recheck; only set for RecheckFailed and RecheckInconclusive
}

// Availability is whether an endpoint is offered to clients.
type Availability uint8

const (
	Up       Availability = iota
	HalfOpen              // the time in quarantine is over; one connection at a time tests the endpoint
	Down                  // in quarantine: skipped while there is another endpoint
)

// Health is an endpoint's health for display.
type Health struct {
	State Availability
	// By is the kind of report that made the endpoint Down: ConnectFailed or CheckFailed. In
	// Watcher.HealthChanged it is the kind of the current report.
	By         Kind
	Since      time.Time // when the endpoint ceased to be Up
	Until      time.Time // when it becomes HalfOpen or, if UntilProbe, when the next probe is due
	UntilProbe bool      // it is Down until a recheck passes or a client connects, or until Rise checks pass
	Failures   int       // consecutive; failed probes included
	Err        error     // the last failure
}

// Watcher is notified when an endpoint becomes Down, when a Report ends that, and when a failed recheck lengthens the
// time until the next. It is not notified when an endpoint becomes Down only because one client's attempts failed.
// Report calls HealthChanged without holding a lock of this package. HealthChanged must return quickly.
type Watcher interface {
	HealthChanged(e *Endpoint, h Health, now time.Time)
}

// claimTime is how long other connections skip a HalfOpen endpoint while one connection tries it, unless the result of
// that attempt comes earlier.
const claimTime = time.Second

// health is the health of an endpoint that failed. Nil and the zero value mean that no failure is known. A published
// health is immutable, so that readers need no lock: a report stores a new one.
type health struct {
	passive passive
	active  failureStreak // by checks
}

// failureStreak is a series of consecutive failures.
type failureStreak struct {
	down             bool
	failures, passes int32     // consecutive failures; checks that passed since the last failure
	since            time.Time // when the endpoint became Down
	until            time.Time // when the next probe is due, or HalfOpen begins; see also passive
	err              error     // the last
}

// passive is the series of clients' failed attempts. After a passed recheck, down is false, and until is the time of
// that recheck. But the number of failures is kept until a client has connected, at most for Policy.Max. Otherwise each
// quarantine of an endpoint that answers only probes would take Policy.First.
type passive struct {
	failureStreak
	rechecked bool       // down until a recheck passes
	client    netip.Addr // valid if failures affected this client alone
	claimed   time.Time  // until when one connection tests the endpoint and others skip it

	// halfOpen is when the first client was admitted after the quarantine. If no failure follows within healthyAfter,
	// that counts as an answer. Protocols such as UDP need this, since their working endpoints may send nothing.
	halfOpen     time.Time
	healthyAfter time.Duration
}

// Report records an observation, and notifies the Pool's Watcher. It uses no Policy for the Kind Connected. It takes no
// lock of this package, except those of queues if clients wait and the health changed. Only two other events change the
// health: a choice claims a HalfOpen endpoint, or a removed endpoint returns.
//
// A failed attempt begins a new, longer quarantine only if it started after the previous quarantine had ended. So
// attempts that were in progress when the quarantine began, or that started during it, do not count. (A client tries an
// endpoint in quarantine if no other is left, or to keep its affinity.)
//
// An attempt that gets no answer may affect its client alone, for example because of a NetworkPolicy: see
// Report.Client. While only this client fails, each quarantine takes First, and clients with affinity keep using the
// endpoint. Such a failure counts if it ends after the previous quarantine.
//
// Checks and attempts cause separate quarantines: neither kind ends one that the other began. There is one exception:
// when checks make an endpoint Down, a quarantine that only one client's attempts caused is dropped.
func (e *Endpoint) Report(r Report, p Policy) Change {
	switch r.Kind {
	case Connected:
		if e.Connected.Add(1); e.health.Load() == nil {
			return Change{}
		}
	case ConnectFailed:
		e.countFailure(r.Now)
	case Broken:
		e.countBreak(r.Now)
		fallthrough
	case Closed:
		e.ended(r.Kind == Broken)
		return Change{}
	}
	next, c, changed := e.change(&r, &p)
	if changed && e.pool.waiting.Load() > 0 {
		e.pool.wake(e)
	}
	if c.Notify && e.pool.Watcher != nil {
		h := next.health(r.Now)
		if r.Kind == RecheckFailed { // also if it is Down by checks
			h = next.passive.health(r.Now)
		}
		h.By = r.Kind
		e.pool.Watcher.HealthChanged(e, h, r.Now)
	}
	return c
}

// change replaces the health according to a report.
func (s *State) change(r *Report, p *Policy) (next *health, c Change, changed bool) {
	for {
		was := s.health.Load()
		var h health
		if was != nil {
			h = *was
		}
		if c, changed = h.report(r, p); !changed {
			return was, c, false
		}
		if next = nil; h.passive.failures > 0 || h.active.failures > 0 {
			next = new(h)
		}
		if s.health.CompareAndSwap(was, next) {
			return next, c, true
		}
	}
}

// report applies a report to h, and returns whether h changed.
func (h *health) report(r *Report, p *Policy) (c Change, changed bool) {
	f, a, down := &h.passive, &h.active, h.state(r.Now) == Down
	switch r.Kind {
	case claim:
		if changed = h.offered(r.Now) == HalfOpen; changed {
			f.claimed = r.Now.Add(claimTime)
			if f.halfOpen.IsZero() {
				f.halfOpen = r.Now
			}
		}
	case Connected:
		// The Watcher is notified only if it was notified of the quarantine.
		changed, c.Notify = f.failures > 0, f.down && !a.down && !f.client.IsValid()
		*f = passive{}
	case ConnectFailed:
		return h.failed(r, p)
	case RecheckPassed, RecheckFailed, RecheckInconclusive:
		if !f.rechecked { // a client has connected since
			break
		}
		changed = true
		switch before := p.length(f.failures); r.Kind {
		case RecheckPassed:
			f.down, f.rechecked, f.until = false, false, r.Now
			c.Notify = !a.down
		case RecheckFailed:
			f.failures, f.err = f.failures+1, r.Err
			c.Next = p.length(f.failures)
			c.Notify = c.Next > before
			f.until = r.Now.Add(c.Next)
		case RecheckInconclusive:
			c.Next = before
			f.until = r.Now.Add(c.Next)
		}
	case CheckPassed:
		if changed = a.failures > 0; !changed {
			break
		}
		if a.passes++; !a.down || a.passes >= p.Rise {
			*a = failureStreak{}
		} else {
			a.until = r.Now.Add(p.First)
		}
		c.Notify = down && h.state(r.Now) != Down
	case CheckFailed:
		changed = true
		known := down && (a.down || !f.client.IsValid()) // the Watcher knows that the endpoint is Down
		a.failures, a.passes, a.err, a.until = a.failures+1, 0, r.Err, r.Now.Add(p.First)
		if !a.down && a.failures >= p.Fall {
			a.down, a.since = true, r.Now
			if f.state(r.Now) != Up {
				a.since = f.since
			}
			if f.client.IsValid() { // one client's failures must not keep the endpoint Down when the checks end
				*f = passive{}
			}
		}
		c.Notify = a.down && !known
	case CheckOff:
		changed = a.failures > 0
		*a = failureStreak{}
		c.Notify = down && h.state(r.Now) != Down
	}
	return c, changed
}

// failed applies the report of a failed attempt.
func (h *health) failed(r *Report, p *Policy) (c Change, changed bool) {
	f := &h.passive
	var client netip.Addr
	if p.First > 0 && (f.failures == 0 || f.client == r.Client) {
		client = r.Client
	}
	began := r.Start
	if c.Blamed = !client.IsValid(); !c.Blamed {
		began = r.Now
	}
	if p.First <= 0 || f.rechecked || began.Before(f.until) || h.active.down {
		return c, false
	}
	failures, since := int32(1), r.Now
	// Failures add up if the endpoint is in quarantine, or recovered only recently.
	if c.Blamed && f.failures > 0 && (f.state(r.Now) != Up || r.Now.Sub(f.until) < p.Max) {
		failures += f.failures
	}
	if f.state(r.Now) != Up {
		since = f.since
	}
	*f = passive{
		failureStreak: failureStreak{down: true, failures: failures, since: since, until: r.Now.Add(p.length(failures)), err: r.Err},
		rechecked:     p.UntilProbe && c.Blamed, client: client, healthyAfter: p.Max,
	}
	c.Notify = c.Blamed
	return c, true
}

// state returns the availability that follows from attempts alone. See halfOpen.
func (f *passive) state(now time.Time) Availability {
	switch {
	case !f.down, !f.halfOpen.IsZero() && now.Sub(f.halfOpen) >= f.healthyAfter:
		return Up
	case f.rechecked, now.Before(f.until):
		return Down
	}
	return HalfOpen
}

// state returns the availability, regardless of claims; see offered.
func (h *health) state(now time.Time) Availability {
	switch {
	case h == nil:
		return Up
	case h.active.down:
		return Down
	}
	return h.passive.state(now)
}

// offered returns the availability for choices: a HalfOpen endpoint that a connection has claimed is Down for others.
func (h *health) offered(now time.Time) Availability {
	is := h.state(now)
	if is == HalfOpen && now.Before(h.passive.claimed) {
		return Down
	}
	return is
}

// keepsAffinity reports whether clients that have affinity to the endpoint keep it at now.
func (h *health) keepsAffinity(now time.Time) bool {
	return h.state(now) != Down || h.passive.client.IsValid() && !h.active.down
}

// available returns the endpoint's availability for a choice at now. If claims is set and the endpoint is HalfOpen, the
// caller claims it. Others see Down until the caller reports the result of its attempt, or claimTime has passed.
func (s *State) available(now time.Time, claims bool) Availability {
	h := s.health.Load()
	if h == nil {
		return Up
	}
	is := h.offered(now)
	if is == HalfOpen && claims {
		if _, _, claimed := s.change(&Report{Kind: claim, Now: now}, nil); !claimed { // another caller was faster
			return s.health.Load().offered(now)
		}
	}
	return is
}

// Health returns the endpoint's health at now.
func (s *State) Health(now time.Time) Health { return s.health.Load().health(now) }

func (h *health) health(now time.Time) Health {
	switch {
	case h.state(now) == Up:
		return Health{}
	case !h.active.down:
		return h.passive.health(now)
	}
	a, probes := &h.active, "probes"
	if a.failures == 1 {
		probes = "probe"
	}
	return Health{State: Down, By: CheckFailed, Since: a.since, Until: a.until, UntilProbe: true, Failures: int(a.failures),
		Err: fmt.Errorf("%d %s failed: %w", a.failures, probes, a.err)}
}

func (f *passive) health(now time.Time) Health {
	return Health{State: f.state(now), By: ConnectFailed, Since: f.since, Until: f.until, UntilProbe: f.rechecked, Failures: int(f.failures), Err: f.err}
}
