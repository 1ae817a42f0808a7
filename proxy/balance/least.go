package balance

// least is a scheduler that takes the endpoint with the least load. Of those with the same it
// is the one that was chosen longest ago.
type least struct {
	why Reason
	// load returns what counts: connections, those whose attempt is under way among them, and
	// weight are at most 2^32 and config.MaxWeight.
	load func(connections, weight uint64) uint64
}

// perConnection is the load of one connection at an endpoint with the weight 1.
const perConnection = 1 << 20

// leastConnections are IPVS' lc and wlc, but that a connection which is over does not count.
var leastConnections = &least{ByLeast, func(connections, weight uint64) uint64 {
	return connections * perConnection / weight
}}

// shortestDelay is IPVS' sed: it reckons with the new connection too.
var shortestDelay = &least{ByDelay, func(connections, weight uint64) uint64 {
	return (connections + 1) * perConnection / weight
}}

// neverQueue is IPVS' nq: as sed, but who has none comes before all who have some.
var neverQueue = &least{ByNoQueue, func(connections, weight uint64) uint64 {
	load := shortestDelay.load(connections, weight)
	if connections > 0 {
		load |= 1 << 60
	}
	return load
}}

func (how *least) new(p *Pool, s *Set) order { return p.books.open(how, p.All, s) }
