package load

import (
	"math/bits"
	"time"
)

// latencies counts durations in buckets whose width grows with the duration: 128 for each power of two of nanoseconds,
// so that a quantile is off by less than one percent. It never allocates.
type latencies struct {
	buckets [64 << steps]int64
	count   int64
}

const steps = 7 // significant bits of a duration after its highest bit

func (l *latencies) add(d time.Duration) {
	l.buckets[bucket(d)]++
	l.count++
}

// merge adds the counts of other.
func (l *latencies) merge(other *latencies) {
	for i, n := range other.buckets {
		l.buckets[i] += n
	}
	l.count += other.count
}

// quantile returns the duration that the share q (0 to 1) of all durations do not exceed, or 0 if there are none.
func (l *latencies) quantile(q float64) time.Duration {
	rank := int64(q * float64(l.count))
	for i, n := range l.buckets {
		if rank -= n; rank < 0 {
			return middle(i)
		}
	}
	return 0
}

// percentile returns the quantile q, or 0 if fewer than ten durations exceed it.
func (l *latencies) percentile(q float64) time.Duration {
	if (1-q)*float64(l.count) < 10-1e-6 {
		return 0
	}
	return l.quantile(q)
}

// bucket returns the number of d's bucket: the position of the highest bit, and the bits after it.
func bucket(d time.Duration) int {
	n := uint64(max(d, 1))
	high := bits.Len64(n) - 1
	if high < steps {
		return int(n)
	}
	return (high-steps+1)<<steps | int(n>>(high-steps))&(1<<steps-1)
}

// middle returns the duration in the middle of bucket i.
func middle(i int) time.Duration {
	if i < 1<<steps {
		return time.Duration(i)
	}
	shift := i>>steps - 1
	low := uint64(1<<steps|i&(1<<steps-1)) << shift
	return time.Duration(low + uint64(1)<<shift/2)
}
