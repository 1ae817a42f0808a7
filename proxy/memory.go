package proxy

import (
	"runtime/debug"
	"time"
)

// burstEnd detects the end of a burst of connections and UDP sessions. Go's garbage collector follows allocation:
// without new clients, the memory of the burst would not be freed.
type burstEnd struct {
	seen    int64     // number of begun and ended connections at the last check
	last    int64     // the same between the last two checks
	tidied  int64     // seen when memory was last returned
	busiest int64     // maximum between two checks since then
	rest    time.Time // no memory is returned before
}

const (
	// burstPeriod is the interval between checks, calmPeriod the interval while no client connects. At 500 ms, the
	// checks took half of usher's idle CPU time.
	burstPeriod, calmPeriod = 500 * time.Millisecond, time.Second
	// minBurst is the smallest burst after which memory is returned; it leaves about 1 MiB.
	minBurst = 1000
	// A burst is over when the rate falls below its maximum divided by fallen.
	burstRatio = 16
	// pauseFactor is the shortest pause between two returns of memory, in multiples of the last one's duration, which grows
	// with the number of Services.
	pauseFactor = 100
)

// over makes one check and reports whether a burst is over. count is the number of begun and ended connections
// and sessions since the start.
func (e *burstEnd) over(now time.Time, count int64) bool {
	n := count - e.seen
	e.seen, e.last = count, n
	e.busiest = max(e.busiest, n)
	return count-e.tidied >= minBurst && n <= e.busiest/burstRatio && !now.Before(e.rest)
}

// pause returns the time until the next look.
func (e *burstEnd) pause() time.Duration {
	if e.last == 0 && e.seen-e.tidied < minBurst {
		return calmPeriod
	}
	return burstPeriod
}

// tidy gives memory back to the system.
func (e *burstEnd) tidy() {
	began := time.Now()
	debug.FreeOSMemory()
	e.tidied, e.busiest = e.seen, 0
	e.rest = began.Add(pauseFactor * time.Since(began))
}

// turnover returns the number of begun plus ended connections and UDP sessions.
func (p *Proxy) turnover() int64 {
	begun := int64(p.node.LastID())
	return begun + begun - p.node.Budget.Connections.Load() - p.node.Budget.Sessions.Load()
}
