package balance

// RoundRobin gives one connection to each endpoint, one after the other.
var RoundRobin = &Scheduler{
	reason: ByTurn,
	first:  func(turn, n uint32) uint32 { return turn % n },
}
