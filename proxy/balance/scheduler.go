package balance

import (
	"slices"

	"github.com/usherproxy/usher/config"
)

// A scheduler makes the order of a Set, whenever that is made anew; nil is that of the list. Each scheduler is a
// file, and a line in schedulers.
type scheduler func(*Set) order

// order is the order in which a Set's endpoints are looked at. It may be used from any
// goroutine.
type order interface {
	// look returns the endpoint to look at, for the i-th time in one choice: i is 0 at first, and
	// one more when the endpoint before was passed over. It may return one twice. nil means that
	// the others are looked at in the order of the Set, beginning with the turn.
	look(s *Set, l look, i uint32) *Endpoint
	reason() Reason
}

// schedulers are all there are.
var schedulers = map[config.Scheduler]scheduler{
	config.RoundRobin:         newRoundRobin,
	config.WeightedRoundRobin: newRoundRobin,
	config.Random:             newRandom,
	config.PowerOfTwo:         newPowerOfTwo,
	config.LeastConnections:   leastConnections.new,
	config.WeightedLeast:      leastConnections.new,
	config.ShortestDelay:      shortestDelay.new,
	config.NeverQueue:         neverQueue.new,
	config.SourceHash:         newSourceHash,
	config.DestinationHash:    newDestinationHash,
	config.Maglev:             newMaglev,
}

// schedule gives sets the orders that a scheduler makes, and their groups: one for all that have the same
// endpoints.
func schedule(by scheduler, sets ...*Set) {
	for i, s := range sets {
		same := func(o *Set) bool { return slices.Equal(o.endpoints, s.endpoints) }
		if j := slices.IndexFunc(sets[:i], same); j >= 0 {
			s.order, s.group = sets[j].order, j
		} else {
			s.order, s.group = by(s), i
		}
	}
}
