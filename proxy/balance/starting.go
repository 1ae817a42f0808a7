package balance

import (
	"time"

	"github.com/usherproxy/usher/config"
)

// starting is the slow start of a Set, some of whose endpoints are new: of their turns they
// leave to others what their age lacks of the length, as with HAProxy's slowstart and Envoy's slow
// start mode; or, where all are new, of the age of the oldest.
type starting struct {
	length time.Duration // for which an endpoint is new
	oldest time.Time     // when the first of all came
	over   time.Time     // when none is new any more
	// ordered says that the order itself passes over those who leave their turn.
	ordered bool
}

// leastShare is the share that an endpoint begins with, Envoy's min_weight_percent.
const leastShare = 0.1

// newStarting returns nil if no endpoint of s is new at now, or if that has no meaning:
// schedulers that hash would have clients move, and move back.
func newStarting(s *Set, port *config.ServicePort, now time.Time) *starting {
	switch port.Scheduler {
	case config.SourceHash, config.DestinationHash, config.Maglev:
		return nil
	}
	if port.SlowStart <= 0 {
		return nil
	}
	_, ordered := s.order.(*leastOrder)
	st := &starting{length: port.SlowStart, oldest: now, ordered: ordered}
	for _, e := range s.endpoints {
		came := e.came()
		if came.Before(st.oldest) {
			st.oldest = came
		}
		if over := came.Add(st.length); over.After(st.over) {
			st.over = over
		}
	}
	if !st.over.After(now) {
		return nil
	}
	return st
}

// came returns when the endpoint became ready; 1970 if that was before the Pool was filled.
func (s *State) came() time.Time {
	r := s.rare.Load()
	if r == nil {
		return time.Unix(0, 0)
	}
	return time.Unix(0, r.cameAt.Load())
}

// share returns which part of its turns an endpoint takes at now, up to 1.
func (st *starting) share(e *Endpoint, now time.Time) float64 {
	if st == nil || !now.Before(st.over) {
		return 1
	}
	age, whole := now.Sub(e.came()), min(st.length, now.Sub(st.oldest))
	if age >= whole {
		return 1
	}
	return max(leastShare, float64(age)/float64(whole))
}

// leaves reports whether an endpoint, before which so many were skipped, leaves its turn to
// others: but a part of its share. That depends on nothing but the turn.
func (st *starting) leaves(e *Endpoint, l *look, skipped uint32, part float64) bool {
	share := st.share(e, l.Now)
	return share < 1 && !l.nobodyLeaves && float64(mix(^uint64(l.turn+skipped))>>11)/(1<<53) >= share*part
}

// Share returns which part of its share of new connections an endpoint of s has at now: less
// than 1 while it is new.
func (s *Set) Share(e *Endpoint, now time.Time) float64 { return s.starting.share(e, now) }
