package balance

import "github.com/usherproxy/usher/config"

// A scheduler makes the order for a new Set. A nil order means rotation through the Set's list. Each scheduler has an
// entry in schedulers, with the Reason of its choices; similar ones share a file.
type scheduler struct {
	order  func(*Set) order
	reason Reason
}

// order is the order in which a choice looks at a Set's endpoints. It is safe for concurrent use.
type order interface {
	// look returns the i-th endpoint to look at in one choice: i is 0 at first, and grows by one when the previous
	// endpoint was skipped. It may return an endpoint twice. After nil, or after maxLooks endpoints, the choice looks
	// at all endpoints again in the order of the Set. It begins at the index l.turn modulo their number.
	look(s *Set, l look, i uint32) *Endpoint
}

var schedulers = map[config.Scheduler]scheduler{
	config.RoundRobin:         {newRoundRobin, ByWeight},
	config.WeightedRoundRobin: {newRoundRobin, ByWeight},
	config.Random:             {newRandom, ByChance},
	config.PowerOfTwo:         {newPowerOfTwo, ByTwo},
	config.LeastConnections:   {leastConnections.new, ByLeast},
	config.WeightedLeast:      {leastConnections.new, ByLeast},
	config.ShortestDelay:      {shortestDelay.new, ByDelay},
	config.NeverQueue:         {neverQueue.new, ByNoQueue},
	config.SourceHash:         {newSourceHash, ByClient},
	config.DestinationHash:    {newDestinationHash, ByVIP},
	config.Maglev:             {newMaglev, ByMaglev},
}
