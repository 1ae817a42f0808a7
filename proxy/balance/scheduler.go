package balance

import "github.com/usherproxy/usher/config"

// A scheduler returns the order for a new Set. A nil order means rotation through the Set's list. Each scheduler has an
// entry in schedulers; similar ones share a file.
type scheduler func(*Set) order

// order is the order in which a choice looks at a Set's endpoints. It is safe for concurrent use.
type order interface {
	// look returns the i-th endpoint to look at in one choice: i is 0 at first, and grows by one when the previous
	// endpoint was skipped. It may return an endpoint twice. After nil, or after maxLooks endpoints, the choice looks
	// at all endpoints again in the order of the Set, from the index l.turn, modulo their number.
	look(s *Set, l look, i uint32) *Endpoint
	reason() Reason
}

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
