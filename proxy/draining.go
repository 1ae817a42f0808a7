package proxy

import (
	"time"

	"github.com/usherproxy/usher/proxy/balance"
)

// When the drain timeout has expired, each connection ends as soon as it is idle, at the latest after another eighth of
// the timeout. That eighth is at least minDrainGrace and at most maxDrainGrace.
const (
	minDrainGrace = time.Second
	maxDrainGrace = 30 * time.Second
)

// drain retires the connections to endpoints whose drain timeout has expired, and schedules the next call. The caller
// holds both locks of a change.
func (f *frontEnd) drain() {
	if f.draining != nil {
		f.draining.Stop()
		f.draining = nil
	}
	timeout := f.View().Port.DrainTimeout
	if timeout <= 0 || f.proxy.ctx.Err() != nil {
		return
	}
	now := time.Now()
	by := now.Add(min(max(timeout/8, minDrainGrace), maxDrainGrace))
	due := map[*balance.State]bool{}
	next := time.Duration(-1)
	for i := range f.pool.Leaving {
		e := &f.pool.Leaving[i]
		switch left := e.Since.Add(timeout).Sub(now); {
		case e.Ended:
		case left > 0:
			if next < 0 || left < next {
				next = left
			}
		default:
			e.Ended = true
			if e.Gone {
				e.EndConnections(by)
			}
			due[e.State] = true
		}
	}
	f.proxy.streams.Retire(due, by)
	if next > 0 {
		f.draining = time.AfterFunc(next, func() {
			defer f.proxy.lock()()
			f.drain()
		})
	}
}
