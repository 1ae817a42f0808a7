package balance

import "math/bits"

// lately is how many of the connections that ended last count for State.Suspicious, and
// fewest with how few it begins to count.
const (
	lately = 16
	fewest = 4
)

// ended notes that a connection which the endpoint had answered is over; broken, that this was the
// endpoint's fault.
func (s *State) ended(broken bool) {
	for {
		was := s.ends.Load()
		now := max(was, 1) << 1
		if now >= 2<<lately { // the first one of more than that is forgotten
			now = now&(1<<lately-1) | 1<<lately
		}
		if broken {
			now |= 1
		}
		if s.ends.CompareAndSwap(was, now) {
			return
		}
	}
}

// counted returns how many ends there are in what State.ends has, and broke how many of them were broken.
func counted(ends uint32) int { return max(0, bits.Len32(ends)-1) }
func broke(ends uint32) int   { return max(0, bits.OnesCount32(ends)-1) }

// Suspicious reports whether most of the connections that ended lately were broken by the
// endpoint.
func (s *State) Suspicious() bool {
	ends := s.ends.Load()
	return counted(ends) >= fewest && 2*broke(ends) > counted(ends)
}
