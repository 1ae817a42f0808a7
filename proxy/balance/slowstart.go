package balance

import (
	"time"

	"github.com/usherproxy/usher/config"
)

// slowStart is the slow start of a Set with new endpoints. A new endpoint takes the fraction age/length of its normal
// share (see part), at least leastShare, as with HAProxy's slowstart and Envoy's slow start mode. If all endpoints are
// new, the age of the oldest replaces length.
type slowStart struct {
	length time.Duration // how long an endpoint is new
	oldest time.Time     // when the first of all endpoints became ready
	over   time.Time     // when no endpoint is new any longer
	part   float64       // maximum share of its turns that a new endpoint takes
}

// leastShare is the initial share of an endpoint, Envoy's min_weight_percent.
const leastShare = 0.1

// newSlowStart returns nil if no endpoint of s is new at now, or if the scheduler hashes: clients would move to another
// endpoint and back.
func newSlowStart(s *Set, port *config.ServicePort, now time.Time) *slowStart {
	switch port.Scheduler {
	case config.SourceHash, config.DestinationHash, config.Maglev:
		return nil
	}
	if port.SlowStart <= 0 {
		return nil
	}
	st := &slowStart{length: port.SlowStart, oldest: now, part: 1}
	if _, ok := s.order.(*least); ok {
		st.part = 1 / float64(len(s.endpoints)) // a new endpoint has the least load, and would get all turns
	}
	for _, e := range s.endpoints {
		readySince := e.readySince()
		if readySince.Before(st.oldest) {
			st.oldest = readySince
		}
		if over := readySince.Add(st.length); over.After(st.over) {
			st.over = over
		}
	}
	if !st.over.After(now) {
		return nil
	}
	return st
}

// readySince returns when the endpoint became ready; the Unix epoch if it was ready at the first Update.
func (s *State) readySince() time.Time { return time.Unix(0, s.rare().readyAt.Load()) }

// share returns the fraction of st.part that e gets at the time now: from leastShare to 1.
func (st *slowStart) share(e *Endpoint, now time.Time) float64 {
	if !now.Before(st.over) {
		return 1
	}
	age, whole := now.Sub(e.readySince()), min(st.length, now.Sub(st.oldest))
	if age >= whole || age < 0 { // the clock has been set back
		return 1
	}
	return max(leastShare, float64(age)/float64(whole))
}

// skips reports whether a new endpoint leaves a turn to others, which depends on the turn's number and the endpoint's
// address. turn differs between choices. Within a choice, it grows with each endpoint that was skipped, but not while a
// scheduler in least.go compares endpoints.
func (st *slowStart) skips(e *Endpoint, now time.Time, turn uint32) bool {
	share := st.share(e, now)
	return share < 1 && float64(hash(e.Addr.Addr(), turn)>>11)/(1<<53) >= share*st.part
}

// Share returns the fraction of its normal number of new connections that e gets now: less than 1 if slow start reduces
// it.
func (s *Set) Share(e *Endpoint, now time.Time) float64 {
	if s.slow == nil {
		return 1
	}
	return s.slow.share(e, now)
}
