package balance

import (
	"net/netip"
	"slices"
	"sync/atomic"
	"time"
)

// Reason says why an endpoint was chosen.
type Reason string

// The reasons.
const (
	ByTurn     Reason = "round robin"                         // it was its turn
	Affinity   Reason = "affinity"                            // the client had it before
	Probe      Reason = "probe after quarantine"              // it failed before; this connection finds out whether it still does
	OnlyOne    Reason = "only one left"                       // there is no other that was not tried
	LastResort Reason = "all that are left are in quarantine" // better than nobody
)

// Choice is an endpoint to try and why.
type Choice struct {
	Endpoint *Endpoint
	Reason   Reason
	// PassedOver is how many endpoints would have been next but are in
	// quarantine.
	PassedOver int
}

// Set is a list of endpoints that connections are spread over. It never
// changes; it may be used from any goroutine.
type Set struct {
	endpoints []*Endpoint
	scheduler *Scheduler
	cursor    atomic.Uint32 // the next turn
}

// Len returns the number of endpoints.
func (s *Set) Len() int { return len(s.endpoints) }

// Endpoints returns the endpoints. The caller must not change the slice.
func (s *Set) Endpoints() []*Endpoint { return s.endpoints }

// Find returns the endpoint with address addr, or nil.
func (s *Set) Find(addr netip.AddrPort) *Endpoint {
	for _, e := range s.endpoints {
		if e.Addr == addr {
			return e
		}
	}
	return nil
}

// Pick returns the endpoint to try next at now: the one that the scheduler prefers of
// those that are not among tried and not in quarantine; if there is none, of those that
// are not among tried. It returns false if all have been tried.
func (s *Set) Pick(now time.Time, tried []netip.AddrPort) (Choice, bool) {
	choice, skipped, ok := s.pick(s.cursor.Add(1)-1, now, tried, true)
	// An endpoint that is passed over uses up its turn; otherwise the one
	// behind it would get that share on top of its own.
	if skipped > 0 {
		s.cursor.Add(skipped)
	}
	return choice, ok
}

// Peek is Pick, for the turn-th caller from now on (0 for the next one), without
// using up a turn or claiming a probe. It returns which turn would be the next
// one's.
func (s *Set) Peek(turn uint32, now time.Time, tried []netip.AddrPort) (c Choice, next uint32, ok bool) {
	c, skipped, ok := s.pick(s.cursor.Load()+turn, now, tried, false)
	return c, turn + 1 + skipped, ok
}

// pick is Pick for the turn given, and returns how many endpoints it skipped that would
// have been next.
func (s *Set) pick(turn uint32, now time.Time, tried []netip.AddrPort, claim bool) (c Choice, skipped uint32, ok bool) {
	n := uint32(len(s.endpoints))
	if n == 0 {
		return Choice{}, 0, false
	}
	first := s.scheduler.first(turn, n)
	var best, resort *Endpoint // resort: of those in quarantine
	var resortSkipped uint32
	for i := range n {
		e := s.endpoints[(first+i)%n] // both less than n
		if slices.Contains(tried, e.Addr) {
			continue
		}
		switch e.stand(now, claim) {
		case healthy:
			if best == nil || s.scheduler.better(e, best) {
				best, skipped = e, i
			}
			if s.scheduler.better == nil {
				return s.healthy(best, c.PassedOver, tried), skipped, true
			}
		case probing:
			return Choice{Endpoint: e, Reason: Probe, PassedOver: c.PassedOver}, i, true
		case avoided:
			c.PassedOver++
			if resort == nil {
				resort, resortSkipped = e, i
			}
		}
	}
	switch {
	case best != nil:
		return s.healthy(best, c.PassedOver, tried), skipped, true
	case resort == nil:
		return Choice{}, 0, false
	}
	reason := LastResort
	if c.PassedOver == 1 {
		reason = OnlyOne
	}
	return Choice{Endpoint: resort, Reason: reason}, resortSkipped, true
}

// healthy returns the choice of an endpoint that is in no quarantine.
func (s *Set) healthy(e *Endpoint, passedOver int, tried []netip.AddrPort) Choice {
	c := Choice{Endpoint: e, Reason: s.scheduler.reason, PassedOver: passedOver}
	if !s.HasUntried(tried, 2) {
		c.Reason = OnlyOne
	}
	return c
}

// HasUntried reports whether at least so many endpoints are not among tried.
func (s *Set) HasUntried(tried []netip.AddrPort, atLeast int) bool {
	n := len(s.endpoints)
	if n-len(tried) >= atLeast { // without a look at each
		return true
	}
	for _, addr := range tried {
		if s.Find(addr) != nil {
			n--
		}
	}
	return n >= atLeast
}
