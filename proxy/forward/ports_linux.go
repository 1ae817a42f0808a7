package forward

import (
	"math/rand/v2"
	"time"
)

// localPorts bounds how long a Loop looks for a port to connect from. When most of those are in use
// towards an endpoint, as they are for a minute after connections to it have been closed, connect(2)
// looks at one after the other: some milliseconds, in which everybody else on the loop waits. Once that
// was seen, it may look at a few only, which are others each time.
type localPorts struct {
	first, last uint16    // that there are; see Options
	until       time.Time // they are few
}

const (
	// slowConnect is how long connect(2) may take; a tenth of that is usual.
	slowConnect = 250 * time.Microsecond
	// fewPorts is how many are looked at. Of so many one is free in 99 cases of 100 while a hundredth
	// of all is.
	fewPorts = 512
	// fewFor is for how long.
	fewFor = 10 * time.Second
)

// took notes how long it took to connect.
func (p *localPorts) took(d time.Duration, now time.Time) {
	if d >= slowConnect && !now.Before(p.until) {
		p.until = now.Add(fewFor)
	}
}

// few returns the value of IP_LOCAL_PORT_RANGE (ip(7), Linux 6.3) by which connect(2) looks at a
// few ports, or 0 if it may look at all.
func (p *localPorts) few(now time.Time) int {
	others := int(p.last) - int(p.first) + 1 - fewPorts
	if !now.Before(p.until) || others <= 0 {
		return 0
	}
	first := int(p.first) + rand.N(others+1)
	return (first+fewPorts-1)<<16 | first
}
