package proxy

import (
	"runtime/debug"
	"time"
)

// burstEnd detects the end of a rush of connections and UDP sessions. Go's garbage collector follows allocation:
// without new clients, the memory of the rush would not be freed.
type burstEnd struct {
	seen    int64     // how many had begun or ended at the last look
	last    int64     // how many did between the last two looks
	tidied  int64     // seen when memory was last given back
	busiest int64     // most between two looks since then
	rest    time.Time // no memory is given back before
}

const (
	// burstPeriod is the time between two looks, calmPeriod the time while no client comes: waking up for a
	// look was half of usher's idle CPU use.
	burstPeriod, calmPeriod = 500 * time.Millisecond, time.Second
	// rush is the smallest number for which memory is given back: they leave about 1 MiB.
	rush = 1000
	// fallen divides the height of a rush: below that, the rush is over.
	fallen = 16
	// restFor is the shortest pause between two returns of memory, in multiples of the time that the last one
	// took. That time grows with the number of Services.
	restFor = 100
)

// over takes one look and reports whether a rush is over. count is the number of begun and ended connections
// and sessions since the start.
func (e *burstEnd) over(now time.Time, count int64) bool {
	n := count - e.seen
	e.seen, e.last = count, n
	e.busiest = max(e.busiest, n)
	return count-e.tidied >= rush && n <= e.busiest/fallen && !now.Before(e.rest)
}

// pause returns the time until the next look.
func (e *burstEnd) pause() time.Duration {
	if e.last == 0 && e.seen-e.tidied < rush {
		return calmPeriod
	}
	return burstPeriod
}

// tidy gives memory back to the system.
func (e *burstEnd) tidy() {
	began := time.Now()
	debug.FreeOSMemory()
	e.tidied, e.busiest = e.seen, 0
	e.rest = began.Add(restFor * time.Since(began))
}

// turnover returns the number of begun plus ended connections and UDP sessions.
func (p *Proxy) turnover() int64 {
	begun := int64(p.node.LastID())
	return begun + begun - p.node.Budget.Connections.Load() - p.node.Budget.Sessions.Load()
}
