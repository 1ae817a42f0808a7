package search

import (
	"net/netip"
	"time"

	"github.com/usherproxy/usher/affinity"
	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/proxy/balance"
	"github.com/usherproxy/usher/proxy/conn"
	"github.com/usherproxy/usher/proxy/latency"
	"github.com/usherproxy/usher/proxy/outcome"
)

// DefaultSchedule is the one that kube-proxy's userspace mode had.
var DefaultSchedule = []time.Duration{250 * time.Millisecond, 500 * time.Millisecond, time.Second, 2 * time.Second}

// maxAttempts bounds what one search may try, so that a Service whose many
// endpoints all refuse at once costs little.
const maxAttempts = 32

// Search is one client's search for an endpoint. The exported fields are set before
// the first Next, Policy, Affinity and Seen perhaps again for each attempt. One goroutine at a time may call its methods.
type Search struct {
	Schedule []time.Duration // none: each endpoint is tried once
	Policy   balance.Policy
	Affinity *affinity.Table // nil for none
	Client   netip.Addr
	VIP      netip.Addr   // that the client came to, for schedulers that ask
	Record   *conn.Record // has the attempts, and when the client came
	Seen     portal.Seen  // by the endpoint of an attempt

	waited  bool              // what was last done was to wait; beside Seen, so that a Search is of 384 bytes
	tried   []netip.AddrPort  // since all were tried
	room    [2]netip.AddrPort // for tried; most searches need no more
	count   int               // attempts so far
	now     balance.Choice    // of the attempt that is under way
	waiter  *balance.Waiter   // nil while no endpoint was full
	started time.Time         // that attempt
	slot    int               // in Schedule; its length when the last one is over
	end     time.Time         // of the slot
	over    outcome.Result    // unless it is Open, no further attempt is worth it
	limit   time.Duration     // of the attempt for which an endpoint is waited for
	queued  time.Time         // since when it waits for a free slot; zero while it does not
	inQueue time.Duration     // for how long it did before that
}

// Action is what a driver has to do.
type Action uint8

// The actions.
const (
	Dial Action = iota
	Wait
	GiveUp
)

// Step is an action and what it needs.
type Step struct {
	Do       Action
	Endpoint *balance.Endpoint // to Dial, and to Release when that has failed or what it led to has ended
	For      time.Duration     // how long to Wait, or how long it may take to Dial: 0 is no bound
	Woken    <-chan struct{}   // ends the Wait, too; nil if a free slot is not what is waited for
	Behind   bool              // other endpoints do not end the Wait, since other clients wait in front
	Result   outcome.Result    // of the client, to GiveUp
}

// Next returns what to do at now, with the endpoints of set. It is called first,
// when an attempt has failed or was left, and when there was a wait; the set may be
// another one each time.
func (s *Search) Next(set *balance.Set, now time.Time) Step {
	if !s.queued.IsZero() {
		if set.HasUntried(s.tried, 1) {
			return s.begin(set, now, s.limit)
		}
		s.Abandon(now)
	}
	switch {
	case s.over.Outcome != outcome.Open:
		return Step{Do: GiveUp, Result: s.over}
	case len(s.Schedule) == 0:
		return s.onceEach(set, now)
	case s.end.IsZero():
		s.end = now.Add(s.Schedule[0])
	}
	for s.slot < len(s.Schedule) {
		if left := s.end.Sub(now); left > 0 {
			if s.waited = len(s.tried) > 0 && set.Len() > 0 && !set.HasUntried(s.tried, 1); !s.waited {
				return s.begin(set, now, s.Schedule[s.slot])
			}
			s.Record.Delayed(conn.Waiting, now, left)
			return Step{Do: Wait, For: left}
		}
		if !set.HasUntried(s.tried, 1) {
			s.tried = s.tried[:0]
		}
		if s.slot++; s.slot < len(s.Schedule) {
			s.end = now.Add(s.Schedule[s.slot])
		}
	}
	if s.waited {
		s.waited = false
		return s.begin(set, now, s.Schedule[0])
	}
	return Step{Do: GiveUp, Result: allFailed}
}

// onceEach is Next without a schedule.
func (s *Search) onceEach(set *balance.Set, now time.Time) Step {
	step := s.begin(set, now, 0)
	if step.Do == GiveUp && s.count > 0 {
		step.Result = allFailed
	}
	return step
}

// begin begins an attempt to the endpoint that is next.
func (s *Search) begin(set *balance.Set, now time.Time, limit time.Duration) Step {
	if s.count == maxAttempts {
		return Step{Do: GiveUp, Result: allFailed}
	}
	choice, ok := s.choose(set, now)
	if !ok && choice.Full() {
		return s.queue(set, now, limit)
	}
	if !s.queued.IsZero() {
		s.Abandon(now)
		choice.Reason = balance.FirstInLine
	}
	if !ok {
		return Step{Do: GiveUp, Result: noEndpoint}
	}
	if s.count++; s.count == 1 {
		s.tried = s.room[:0]
	}
	s.tried = append(s.tried, choice.Endpoint.Addr)
	s.now, s.started = choice, now
	return Step{Do: Dial, Endpoint: choice.Endpoint, For: limit}
}

// Answered says that the endpoint has answered: the search is over, and the connection is established.
func (s *Search) Answered(now time.Time) {
	s.report(now, nil)
	s.now.Endpoint.Times().Connect.Observe(latency.Seconds, now, now.Sub(s.Record.Began).Seconds())
	s.now.Endpoint.Report(balance.Report{Kind: balance.Connected, Now: now}, s.Policy)
}

// Failed says that the attempt has failed. If it is the endpoint's fault, that goes
// into quarantine, and the client's affinity to it is forgotten. If no other endpoint
// would do either, the next step is to give up.
func (s *Search) Failed(now time.Time, err error) {
	hopeless, blame := OutOfResources(err) || futile(err), Blames(err)
	if err = Plain(err); hopeless {
		s.over, blame = over(err), false
	}
	s.report(now, err)
	if !blame {
		return
	}
	failure := balance.Report{Kind: balance.ConnectFailed, Began: s.started, Now: now, Err: err}
	if s.Seen.Client() && err == ErrNoAnswer {
		failure.Client = s.Client
	}
	if s.now.Endpoint.Report(failure, s.Policy).Blamed && s.Affinity != nil {
		s.Affinity.Forget(s.Client, s.now.Endpoint.Addr)
	}
}

// Left says that the attempt was given up, for a reason that is not the endpoint's
// fault: another endpoint may be tried.
func (s *Search) Left(now time.Time, why error) { s.report(now, Plain(why)) }

// report reports how the attempt ended.
func (s *Search) report(now time.Time, err error) {
	a := conn.Attempt{Endpoint: s.now.Endpoint.Addr, Pod: s.now.Endpoint.Pod, Reason: s.now.Reason, PassedOver: s.now.PassedOver,
		Took: now.Sub(s.started), Seen: s.Seen, Queued: s.inQueue}
	if err != nil {
		a.Result, a.Err = ResultOf(err), err.Error()
	}
	s.Record.Attempted(now, a)
}

// choose takes the endpoint that the client had, if there is affinity and the
// endpoint is as good as any, and otherwise the next in turn. If none has a free slot, the client
// waits for one.
func (s *Search) choose(set *balance.Set, now time.Time) (balance.Choice, bool) {
	ask := balance.Ask{Now: now, Client: s.Client, VIP: s.VIP, Tried: s.tried}
	var before netip.AddrPort
	if s.Affinity != nil {
		before, _ = s.Affinity.Get(s.Client, now)
	}
	for {
		choice, ok := set.Take(ask, before, s.waiter)
		if !ok && s.waiter == nil && choice.Full() {
			s.waiter = new(balance.Waiter)
			continue
		}
		if !ok || s.Affinity == nil {
			return choice, ok
		}
		addr := choice.Endpoint.Addr
		if before == addr {
			s.Affinity.Set(s.Client, addr, now)
			return choice, true
		}
		if before.IsValid() {
			s.Affinity.Forget(s.Client, before)
		}
		had := s.Affinity.Claim(s.Client, addr, now)
		if had == addr || had == before {
			return choice, true
		}
		// Another connection of the client's was faster.
		choice.Endpoint.Release()
		before = had
	}
}

// lookAgain is after what time the client at the front of a queue looks again, though it was not woken: the time of
// a quarantine may be over.
const lookAgain = time.Second

// queue waits for a free slot, or gives up. The time of the schedule's slot stands still meanwhile.
func (s *Search) queue(set *balance.Set, now time.Time, limit time.Duration) Step {
	if !s.Queued() {
		s.queued, s.limit = now, limit
	}
	left := set.QueueTimeout() - s.inQueue - now.Sub(s.queued)
	switch {
	case !s.waiter.Waits():
		s.over = queueFull
	case left <= 0:
		s.over = queueTimeout
	case s.waiter.Front():
		return Step{Do: Wait, For: min(left, lookAgain), Woken: s.waiter.Woken()}
	default:
		return Step{Do: Wait, For: left, Woken: s.waiter.Woken(), Behind: true}
	}
	s.Abandon(now)
	return Step{Do: GiveUp, Result: s.over}
}

// Queued reports whether the client waits for a free slot.
func (s *Search) Queued() bool { return !s.queued.IsZero() }

// Abandon ends a wait for a free slot, if there is one: the client has an endpoint, is gone, or is given up.
func (s *Search) Abandon(now time.Time) {
	if !s.Queued() {
		return
	}
	s.waiter.Leave()
	waited := now.Sub(s.queued)
	s.queued, s.inQueue = time.Time{}, s.inQueue+waited
	if !s.end.IsZero() {
		s.end = s.end.Add(waited)
	}
	s.Record.Delayed(conn.Queued, now, waited)
}

// Preview returns the endpoints of set in the order in which the search of a client of vip, who
// had the one in had if that is not nil, would try them at now if one after the other
// failed. It changes nothing: no turn is used up, no probe is claimed.
func Preview(set *balance.Set, client, vip netip.Addr, had *affinity.Entry, now time.Time) (order []balance.Choice) {
	ask := balance.Ask{Now: now, Client: client, VIP: vip}
	take := func(c balance.Choice) {
		order = append(order, c)
		ask.Tried = append(ask.Tried, c.Endpoint.Addr)
	}
	if had != nil {
		switch c, ok := set.Again(had.Endpoint, ask); {
		case c.Full():
			return nil
		case ok:
			take(c)
		}
	}
	for turn := uint32(0); len(order) < maxAttempts; {
		c, next, ok := set.Peek(turn, ask)
		if !ok {
			break
		}
		turn = next
		take(c)
	}
	return order
}
