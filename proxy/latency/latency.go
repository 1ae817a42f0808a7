// Package latency records durations or sizes in histograms: since the start, for Prometheus, and over the last minutes,
// for displays of the current state.
//
// A Recent holds the last five to ten minutes, and takes about 170 bytes; a Histogram holds the total since the
// start, and the last examples. Both are safe for concurrent use.
package latency

import (
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Bounds are the upper bounds of a histogram's buckets, ascending, at most mostBounds; values above the last
// one have a separate bucket.
type Bounds []float64

const (
	mostBounds = 15
	buckets    = mostBounds + 1
)

// Seconds and Lasting are the bounds for durations, Queued those for times in the queue, all in seconds, and
// Bytes those for sizes. Seconds contains 0.2, the default of --slow-threshold.
var (
	Seconds = Bounds{0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10}
	Lasting = Bounds{0.001, 0.005, 0.02, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 900, 3600, 21600, 86400}
	Queued  = Bounds{0.001, 0.01, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300}
	Bytes   = Bounds{100, 300, 1e3, 3e3, 1e4, 3e4, 1e5, 3e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12}
)

// period is how long a generation of a Recent is filled.
const period = 5 * time.Minute

// stepped is how far before the start of the current generation a time must be for the clock to count as set back. The
// observed values then have no known age, and are dropped. Callers may use clocks that differ by milliseconds.
const stepped = time.Minute

// generation holds the values observed in one period.
type generation struct {
	counts [buckets]atomic.Uint32
	most   atomic.Uint64 // bits of the largest
}

// Recent holds the values of the last five to ten minutes. The zero value is empty.
type Recent struct {
	began atomic.Int64 // start of the current generation, Unix time in nanoseconds
	seen  [2]generation
	now   atomic.Uint32 // index of the current one

	mu sync.Mutex // guards changes of now
}

// Observe records v at now.
func (r *Recent) Observe(b Bounds, now time.Time, v float64) {
	bucket, _ := slices.BinarySearch(b, v)
	if since := now.UnixNano() - r.began.Load(); since >= int64(period) || since < -int64(stepped) {
		r.turn(now)
	}
	g := &r.seen[r.now.Load()]
	g.counts[bucket].Add(1)
	for bits := math.Float64bits(v); ; { // bits of non-negative floats sort like the floats
		most := g.most.Load()
		if bits <= most || g.most.CompareAndSwap(most, bits) {
			return
		}
	}
}

// turn begins another generation, unless another caller did.
func (r *Recent) turn(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	since := now.UnixNano() - r.began.Load()
	switch {
	case since < -int64(stepped):
		since = int64(2 * period)
	case since < int64(period):
		return
	}
	for turns := min(2, since/int64(period)); turns > 0; turns-- {
		next := 1 - r.now.Load()
		for i := range r.seen[next].counts {
			r.seen[next].counts[i].Store(0)
		}
		r.seen[next].most.Store(0)
		r.now.Store(next)
	}
	if since < int64(2*period) {
		now = now.Add(-time.Duration(since) % period) // when it was due
	}
	r.began.Store(now.UnixNano())
}

// Sum holds recent values, of one or more Recents.
type Sum struct {
	counts [buckets]uint64
	number uint64
	most   float64
}

// Add adds the values of r in the five to ten minutes before now.
func (l *Sum) Add(r *Recent, now time.Time) {
	age := now.UnixNano() - r.began.Load()
	if age < -int64(stepped) {
		return
	}
	current := r.now.Load()
	for i := range r.seen {
		if uint32(i) == current && age >= int64(2*period) || uint32(i) != current && age >= int64(period) {
			continue // outdated; the next turn removes it
		}
		g := &r.seen[i]
		for n := range g.counts {
			count := uint64(g.counts[n].Load())
			l.counts[n] += count
			l.number += count
		}
		l.most = max(l.most, math.Float64frombits(g.most.Load()))
	}
}

// Number returns the number of values.
func (l *Sum) Number() uint64 { return l.number }

// Quantile returns an estimate, from the buckets, of the q-quantile: a share q of all values do not exceed it.
// It returns false if there are no values.
func (l *Sum) Quantile(b Bounds, q float64) (float64, bool) {
	if l.number == 0 {
		return 0, false
	}
	rank, before := q*float64(l.number), 0.0
	for i, n := range l.counts {
		count := float64(n)
		if before+count < rank || n == 0 {
			before += count
			continue
		}
		low, high := 0.0, l.most
		if i > 0 {
			low = b[i-1]
		}
		if i < len(b) {
			high = min(high, b[i])
		}
		return low + (high-low)*(rank-before)/count, true
	}
	return l.most, true
}

// Histogram holds the values since the start. The zero value is empty.
type Histogram struct {
	counts   [buckets]atomic.Uint64
	sum      atomic.Uint64 // bits of a float64
	examples atomic.Pointer[[buckets]atomic.Pointer[Example]]
}

// Example is a value of a notable connection.
type Example struct {
	Connection uint64
	Time       time.Time
	Value      float64
}

// Observe records v at now. example, unless 0, is the number of a connection that becomes the example of its
// bucket.
func (h *Histogram) Observe(b Bounds, now time.Time, v float64, example uint64) {
	bucket, _ := slices.BinarySearch(b, v)
	h.counts[bucket].Add(1)
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
	h.examples.Load()[bucket].Store(&Example{example, now, v})
}

// All holds the values since the start, of one or more Histograms.
type All struct {
	counts   [buckets]uint64
	number   uint64
	Sum      float64
	Examples []Example // at most one of each bucket, per Histogram
}

// Add adds the values of h.
func (a *All) Add(h *Histogram) {
	for i := range a.counts {
		n := h.counts[i].Load()
		a.counts[i] += n
		a.number += n
	}
	a.Sum += math.Float64frombits(h.sum.Load())
	if examples := h.examples.Load(); examples != nil {
		for i := range examples {
			if e := examples[i].Load(); e != nil {
				a.Examples = append(a.Examples, *e)
			}
		}
	}
}

// Buckets returns the number of values, and for each bound the number of values that do not exceed it.
func (a *All) Buckets(b Bounds) (number uint64, below map[float64]uint64) {
	below = make(map[float64]uint64, len(b))
	sum := uint64(0)
	for i, bound := range b {
		sum += a.counts[i]
		below[bound] = sum
	}
	return a.number, below
}
