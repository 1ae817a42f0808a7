package balance

import "slices"

// least is a scheduler that takes the endpoint with the least load. Of several with that load it takes the first,
// counted from the index look.turn.
type least struct {
	extraLoad uint64 // added to the connections of each endpoint
	idleFirst bool   // an endpoint without connections comes before all others
}

var (
	leastConnections = &least{} // like IPVS's lc and wlc, but closed connections do not count
	shortestDelay    = &least{extraLoad: 1}
	neverQueue       = &least{extraLoad: 1, idleFirst: true}
)

// maxScanned is the number of endpoints that one choice compares, from the index look.turn; with more
// endpoints the choice is not exact.
const maxScanned = 1024

// new returns the order of a Set, which is the same for all.
func (o *least) new(*Set) order { return o }

// look returns the usable endpoint with the least load. If there is none, the choice looks at all in the order of the
// Set.
func (o *least) look(s *Set, l look, i uint32) *Endpoint {
	if i > 0 {
		return nil
	}
	var best *Endpoint
	var bestLoad, bestWeight uint64
	bestBusy := false
	n := len(s.endpoints)
	first := int(l.turn % uint32(max(n, 1)))
	for i := range min(n, maxScanned) {
		at := first + i
		if at >= n {
			at -= n
		}
		e := s.endpoints[at]
		load, weight := uint64(max(e.Active.Load(), 0)), weight(e.Endpoint)
		busy := o.idleFirst && load > 0
		load += o.extraLoad
		if best != nil && (busy && !bestBusy || busy == bestBusy && load*bestWeight >= bestLoad*weight) {
			continue
		}
		if slices.Contains(l.Tried, e.Addr) || s.slow != nil && s.leavesTurn(e, &l, 0) || s.limited && e.Full() || e.available(l.Now, false) == Down {
			continue
		}
		if load == 0 {
			return e // no endpoint has less load
		}
		best, bestLoad, bestWeight, bestBusy = e, load, weight, busy
	}
	return best
}
