package proxy

import (
	"runtime/debug"
	"time"
)

// burstEnd detects the end of a burst of connections and UDP sessions, so that its memory is freed soon. Without new
// clients there are few allocations, and Go then collects garbage only every two minutes.
type burstEnd struct {
	seen    int64     // turnover at the last check
	last    int64     // turnover between the last two checks
	tidied  int64     // seen when memory was last returned
	busiest int64     // maximum of last since then
	rest    time.Time // earliest time for the next return of memory
}

const (
	// burstPeriod is the interval between checks. It is calmPeriod while no client comes or goes and no burst awaits
	// its end. With 500 ms for both, the checks took half of usher's idle CPU time.
	burstPeriod, calmPeriod = 500 * time.Millisecond, time.Second
	// minBurst is the size of the smallest burst after which memory is returned. Such a burst leaves about 1 MiB.
	minBurst = 1000
	// A burst is over when the rate is at most its maximum divided by burstRatio.
	burstRatio = 16
	// pauseFactor is the minimum time between two returns of memory, in multiples of the duration of the last one. That
	// duration grows with the number of Services.
	pauseFactor = 100
)

// over makes one check and reports whether a burst is over. count is the result of Proxy.turnover.
func (e *burstEnd) over(now time.Time, count int64) bool {
	e.tidied = min(e.tidied, count) // below 0 while inherited connections are open: only their ends count
	n := count - e.seen
	e.seen, e.last = count, n
	e.busiest = max(e.busiest, n)
	return count-e.tidied >= minBurst && n <= e.busiest/burstRatio && !now.Before(e.rest)
}

// pause returns the time until the next check.
func (e *burstEnd) pause() time.Duration {
	if e.last == 0 && e.seen-e.tidied < minBurst {
		return calmPeriod
	}
	return burstPeriod
}

// tidy returns memory to the system.
func (e *burstEnd) tidy() {
	began := time.Now()
	debug.FreeOSMemory()
	e.tidied, e.busiest = e.seen, 0
	e.rest = began.Add(pauseFactor * time.Since(began))
}

// turnover returns the number of begun plus ended connections and UDP sessions since the start.
func (p *Proxy) turnover() int64 {
	begun := int64(p.node.Clients())
	return begun + begun - p.node.Budget.Connections.Load() - p.node.Budget.Sessions.Load()
}
