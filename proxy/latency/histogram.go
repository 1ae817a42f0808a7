package latency

import (
	"math"
	"sync/atomic"
	"time"
)

// Histogram is what was seen since the start, and lately. The zero value has seen nothing.
type Histogram struct {
	Recent
	old      [buckets]atomic.Uint64 // of generations that are gone
	sum      atomic.Uint64          // bits of a float64
	examples atomic.Pointer[[buckets]atomic.Pointer[Example]]
}

// Example is what was seen of a connection that is worth a look.
type Example struct {
	Connection uint64
	Time       time.Time
	Value      float64
}

// Observe notes v at now. Unless it is 0, example is the number of a connection that is to be the
// example of its bucket.
func (h *Histogram) Observe(b Bounds, now time.Time, v float64, example uint64) {
	if now.UnixNano()-h.began.Load() >= int64(period) {
		h.turn(now, h.remember) // before that of the Recent, which would not remember
	}
	i := h.Recent.Observe(b, now, v)
	for {
		sum := h.sum.Load()
		if h.sum.CompareAndSwap(sum, math.Float64bits(math.Float64frombits(sum)+v)) {
			break
		}
	}
	if example == 0 {
		return
	}
	if h.examples.Load() == nil {
		h.examples.CompareAndSwap(nil, new([buckets]atomic.Pointer[Example]))
	}
	h.examples.Load()[i].Store(&Example{example, now, v})
}

// remember adds what goes of the Recent to what is gone.
func (h *Histogram) remember(bucket int, n uint32) { h.old[bucket].Add(uint64(n)) }

// All is what was seen since the start, perhaps in several places.
type All struct {
	counts   [buckets]uint64
	number   uint64
	Sum      float64
	Examples []Example // one of each bucket at the most, of each place
}

// Add adds what h has seen.
func (a *All) Add(h *Histogram) {
	h.mu.Lock()
	for i := range a.counts {
		n := h.old[i].Load() + uint64(h.seen[0].counts[i].Load()) + uint64(h.seen[1].counts[i].Load())
		a.counts[i] += n
		a.number += n
	}
	h.mu.Unlock()
	a.Sum += math.Float64frombits(h.sum.Load())
	if examples := h.examples.Load(); examples != nil {
		for i := range examples {
			if e := examples[i].Load(); e != nil {
				a.Examples = append(a.Examples, *e)
			}
		}
	}
}

// Buckets returns how many there were, and how many of them were no more than each bound.
func (a *All) Buckets(b Bounds) (number uint64, below map[float64]uint64) {
	below = make(map[float64]uint64, len(b))
	sum := uint64(0)
	for i, bound := range b {
		sum += a.counts[i]
		below[bound] = sum
	}
	return a.number, below
}
