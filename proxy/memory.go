package proxy

import (
	"runtime/debug"
	"time"
)

// ebb tells when a rush of connections and UDP sessions is over. Go's collector
// follows allocation: what the rush has left would stay for as long as nothing else
// comes.
type ebb struct {
	seen    int64     // how many had begun or ended at the last look
	last    int64     // and how many of them since the one before
	tidied  int64     // the same when memory was given back for the last time
	busiest int64     // most between two looks since then
	rest    time.Time // until when memory is not given back again
}

const (
	// ebbPeriod is the time between two looks, and calmPeriod while nobody comes: to wake
	// up for a look was half of what usher did at rest.
	ebbPeriod, calmPeriod = 500 * time.Millisecond, time.Second
	// rush is from how many on memory is given back: what they leave is about 1 MiB.
	rush = 1000
	// fallen is to what part of its height a rush has fallen when it is over.
	fallen = 16
	// restFor is for how many times as long as it took memory is not given back
	// again: it takes the longer, the more Services there are.
	restFor = 100
)

// over looks once, and reports whether a rush is over. count is how many have begun
// or ended since the start.
func (e *ebb) over(now time.Time, count int64) bool {
	n := count - e.seen
	e.seen, e.last = count, n
	e.busiest = max(e.busiest, n)
	return count-e.tidied >= rush && n <= e.busiest/fallen && !now.Before(e.rest)
}

// pause returns how long to wait until the next look.
func (e *ebb) pause() time.Duration {
	if e.last == 0 && e.seen-e.tidied < rush {
		return calmPeriod
	}
	return ebbPeriod
}

// tidy gives memory back to the system.
func (e *ebb) tidy() {
	began := time.Now()
	debug.FreeOSMemory()
	e.tidied, e.busiest = e.seen, 0
	e.rest = began.Add(restFor * time.Since(began))
}

// turnover returns how many connections and UDP sessions have begun or ended.
func (p *Proxy) turnover() int64 {
	begun := int64(p.node.LastID())
	return begun + begun - p.node.Budget.Connections.Load() - p.node.Budget.Sessions.Load()
}
