package trace

import "sort"

// ring keeps the last events that were added to it, in the order of their numbers. Their
// places count from 1.
type ring[E interface{ number() uint64 }] struct {
	max    int
	added  uint64
	events []E // the one at place n is at (n-1) % max
}

// newRing returns a ring for max events. Its memory is taken at once, and used, as
// the system sees it, when events come.
func newRing[E interface{ number() uint64 }](max int) ring[E] {
	return ring[E]{max: max, events: make([]E, 0, max)}
}

// add appends events.
func (r *ring[E]) add(events ...E) {
	for _, e := range events {
		if r.added++; len(r.events) < r.max {
			r.events = append(r.events, e)
		} else {
			r.events[(r.added-1)%uint64(r.max)] = e
		}
	}
}

// at returns the event at a place that is kept.
func (r *ring[E]) at(place uint64) *E { return &r.events[(place-1)%uint64(r.max)] }

// oldest returns the place of the oldest event that is kept.
func (r *ring[E]) oldest() uint64 { return r.added - uint64(len(r.events)) + 1 }

// behind returns the place of the first event that is kept and has a number above
// seq.
func (r *ring[E]) behind(seq uint64) uint64 {
	oldest := r.oldest()
	n := sort.Search(len(r.events), func(i int) bool { return (*r.at(oldest + uint64(i))).number() > seq })
	return oldest + uint64(n)
}
