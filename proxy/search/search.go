package search

import (
	"net/netip"
	"slices"
	"time"

	"github.com/usherproxy/usher/affinity"
	"github.com/usherproxy/usher/proxy/balance"
	"github.com/usherproxy/usher/proxy/trace"
)

// DefaultSchedule is the one that kube-proxy's userspace mode had.
var DefaultSchedule = []time.Duration{250 * time.Millisecond, 500 * time.Millisecond, time.Second, 2 * time.Second}

// maxAttempts bounds what one search may try, so that a Service whose many
// endpoints all refuse at once costs little.
const maxAttempts = 32

// Reporter is told each attempt that has ended, and each wait that begins. It fills
// in what all events of the client have in common.
type Reporter interface{ Report(trace.Event) }

// Search is one client's search for an endpoint. The exported fields are set before
// the first Next, Quarantine and AsClient perhaps anew for each attempt. One goroutine at a time may call its methods.
type Search struct {
	Schedule   []time.Duration // none: each endpoint is tried once
	Quarantine balance.Quarantine
	AsClient   bool // attempts are made from the client's own address
	Affinity   *affinity.Table
	Client     netip.Addr
	VIP        netip.Addr // that the client came to, for schedulers that ask
	Reporter   Reporter

	tried   []netip.AddrPort  // since all were tried
	room    [2]netip.AddrPort // for tried; most searches need no more
	count   int               // attempts so far
	now     balance.Choice    // of the attempt that is under way
	started time.Time         // that attempt
	slot    int               // in Schedule; its length when the last one is over
	end     time.Time         // of the slot
	waited  bool              // what was last done was to wait
	over    error             // no further attempt is worth it
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
	Err      error             // why to GiveUp; see End
}

// Next returns what to do at now, with the endpoints of set. It is called first,
// when an attempt has failed or was left, and when there was a wait; the set may be
// another one each time.
func (s *Search) Next(set *balance.Set, now time.Time) Step {
	switch {
	case s.over != nil:
		return Step{Do: GiveUp, Err: s.over}
	case len(s.Schedule) == 0:
		return s.onceEach(set, now)
	case s.end.IsZero():
		s.end = now.Add(s.Schedule[0])
	}
	for s.slot < len(s.Schedule) {
		if left := s.end.Sub(now); left > 0 {
			if s.waited = set.Len() > 0 && !set.HasUntried(s.tried, 1); !s.waited {
				return s.begin(set, now, s.Schedule[s.slot])
			}
			s.Reporter.Report(trace.Event{Kind: trace.Waiting, Time: now, Attempt: s.count, Took: left})
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
	return Step{Do: GiveUp, Err: errAllFailed}
}

// onceEach is Next without a schedule.
func (s *Search) onceEach(set *balance.Set, now time.Time) Step {
	step := s.begin(set, now, 0)
	if step.Do == GiveUp && s.count > 0 {
		step.Err = errAllFailed
	}
	return step
}

// begin begins an attempt to the endpoint that is next.
func (s *Search) begin(set *balance.Set, now time.Time, limit time.Duration) Step {
	if s.count == maxAttempts {
		return Step{Do: GiveUp, Err: errAllFailed}
	}
	choice, ok := s.choose(set, now)
	if !ok {
		return Step{Do: GiveUp, Err: errNoEndpoint}
	}
	if s.count++; s.count == 1 {
		s.tried = s.room[:0]
	}
	s.tried = append(s.tried, choice.Endpoint.Addr)
	s.now, s.started = choice, now
	choice.Endpoint.Take()
	return Step{Do: Dial, Endpoint: choice.Endpoint, For: limit}
}

// Answered says that the endpoint has answered: the search is over.
func (s *Search) Answered(now time.Time) {
	s.report(now, nil)
	s.now.Endpoint.Succeed()
}

// Failed says that the attempt has failed. If it is the endpoint's fault, that goes
// into quarantine, and the client's affinity to it is forgotten. If no other endpoint
// would do either, the next step is to give up.
func (s *Search) Failed(now time.Time, err error) {
	if OutOfResources(err) || futile(err) {
		s.over = Plain(err)
	}
	blame := s.over == nil && Blames(err)
	err = Plain(err)
	s.report(now, err)
	if blame && s.AsClient && err == ErrNoAnswer && s.now.Endpoint.Doubt(s.Client, now, err, s.Quarantine) {
		return
	}
	if blame {
		s.now.Endpoint.Fail(s.started, now, err, s.Quarantine)
		s.Affinity.Forget(s.Client, s.now.Endpoint.Addr)
	}
}

// Left says that the attempt was given up, for a reason that is not the endpoint's
// fault: another endpoint may be tried.
func (s *Search) Left(now time.Time, why error) { s.report(now, Plain(why)) }

// report reports how the attempt ended.
func (s *Search) report(now time.Time, err error) {
	e := trace.Event{Kind: trace.Attempt, Time: now, Attempt: s.count, Endpoint: s.now.Endpoint.Addr, Pod: s.now.Endpoint.Pod,
		Reason: string(s.now.Reason), PassedOver: s.now.PassedOver, Took: now.Sub(s.started), Result: ResultOf(err)}
	if err != nil {
		e.Err = err.Error()
	}
	s.Reporter.Report(e)
}

// choose returns the endpoint that the client had, if there is affinity and the
// endpoint is as good as any, and otherwise the next in turn.
func (s *Search) choose(set *balance.Set, now time.Time) (balance.Choice, bool) {
	if had, ok := s.Affinity.Get(s.Client, now); ok {
		if choice, ok := s.sticky(set, had, now); ok {
			s.Affinity.Set(s.Client, had, now)
			return choice, true
		}
		s.Affinity.Forget(s.Client, had)
	}
	choice, ok := set.Pick(s.ask(now))
	if !ok {
		return choice, false
	}
	if had := s.Affinity.Claim(s.Client, choice.Endpoint.Addr, now); had != choice.Endpoint.Addr {
		if sticky, ok := s.sticky(set, had, now); ok {
			return sticky, true
		}
	}
	return choice, true
}

func (s *Search) ask(now time.Time) balance.Ask {
	return balance.Ask{Now: now, Client: s.Client, VIP: s.VIP, Tried: s.tried}
}

// sticky returns the choice of the endpoint that the client had, unless it is
// not usable any more, has failed lately, or has been tried.
func (s *Search) sticky(set *balance.Set, had netip.AddrPort, now time.Time) (balance.Choice, bool) {
	endpoint := set.Find(had)
	if endpoint == nil || slices.Contains(s.tried, had) {
		return balance.Choice{}, false
	}
	if period, quarantined := endpoint.Quarantined(now); quarantined && !period.Doubt {
		return balance.Choice{}, false
	}
	return balance.Choice{Endpoint: endpoint, Reason: balance.Affinity}, true
}

// Preview returns the endpoints of set in the order in which the search of a client of vip, who
// had the one in had if that is not nil, would try them at now if one after the other
// failed. It changes nothing: no turn is used up, no probe is claimed.
func Preview(set *balance.Set, client, vip netip.Addr, had *affinity.Entry, now time.Time) (order []balance.Choice) {
	s := Search{Client: client, VIP: vip}
	take := func(c balance.Choice) {
		order = append(order, c)
		s.tried = append(s.tried, c.Endpoint.Addr)
	}
	if had != nil {
		if c, ok := s.sticky(set, had.Endpoint, now); ok {
			take(c)
		}
	}
	for turn := uint32(0); len(order) < maxAttempts; {
		c, next, ok := set.Peek(turn, s.ask(now))
		if !ok {
			break
		}
		turn = next
		take(c)
	}
	return order
}
