package trace

import "sort"

// ring keeps the last events that were added to it. Their places count from 1.
type ring struct {
	max    int
	added  uint64
	events []Event // the one at place n is at (n-1) % max
}

// newRing returns a ring for max events. Its memory is taken at once, and used, as
// the system sees it, when events come.
func newRing(max int) ring { return ring{max: max, events: make([]Event, 0, max)} }

// add appends e.
func (r *ring) add(e *Event) {
	r.added++
	if len(r.events) < r.max {
		r.events = append(r.events, *e)
		return
	}
	r.events[(r.added-1)%uint64(r.max)] = *e
}

// at returns the event at a place that is kept.
func (r *ring) at(place uint64) *Event { return &r.events[(place-1)%uint64(r.max)] }

// oldest returns the place of the oldest event that is kept.
func (r *ring) oldest() uint64 { return r.added - uint64(len(r.events)) + 1 }

// behind returns the place of the first event that is kept and has a number above
// seq.
func (r *ring) behind(seq uint64) uint64 {
	oldest := r.oldest()
	n := sort.Search(len(r.events), func(i int) bool { return r.at(oldest+uint64(i)).Seq > seq })
	return oldest + uint64(n)
}
