package latency_test

import (
	"sync"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/usherproxy/usher/proxy/latency"
)

func TestLatency(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "latency")
}

var began = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// quantile returns the quantile q of r at a time, or -1.
func quantile(r *latency.Recent, at time.Time, q float64) float64 {
	var l latency.Sum
	l.Add(r, at)
	v, ok := l.Quantile(latency.Seconds, q)
	if !ok {
		return -1
	}
	return v
}

var _ = Describe("a Recent", func() {
	It("returns quantiles that never exceed the largest observation", func() {
		var r latency.Recent
		Expect(quantile(&r, began, 0.5)).To(BeEquivalentTo(-1))
		for range 980 {
			r.Observe(latency.Seconds, began, 0.0004)
		}
		for range 20 {
			r.Observe(latency.Seconds, began, 0.2503)
		}
		Expect(quantile(&r, began, 0.5)).To(BeNumerically("~", 0.00035, 0.0001))
		Expect(quantile(&r, began, 0.99)).To(And(BeNumerically(">", 0.2), BeNumerically("<=", 0.2503)))
		Expect(quantile(&r, began, 1)).To(Equal(0.2503))
	})

	It("keeps observations for at least five and at most ten minutes", func() {
		var r latency.Recent
		r.Observe(latency.Seconds, began, 3)
		Expect(quantile(&r, began.Add(9*time.Minute), 1)).To(BeEquivalentTo(3))
		Expect(quantile(&r, began.Add(10*time.Minute), 1)).To(BeEquivalentTo(-1))
		r.Observe(latency.Seconds, began.Add(6*time.Minute), 1)
		Expect(quantile(&r, began.Add(9*time.Minute), 1)).To(BeEquivalentTo(3))
		Expect(quantile(&r, began.Add(10*time.Minute), 1)).To(BeEquivalentTo(1))
		r.Observe(latency.Seconds, began.Add(14*time.Minute), 0.5)
		Expect(quantile(&r, began.Add(14*time.Minute), 1)).To(BeEquivalentTo(1))
		Expect(quantile(&r, began.Add(15*time.Minute+time.Second), 1)).To(Equal(0.5), "an observation is kept after one minute and dropped after nine")
		r.Observe(latency.Seconds, began.Add(time.Hour), 0.5)
		Expect(quantile(&r, began.Add(time.Hour), 1)).To(Equal(0.5))
	})

	It("drops observations when the clock is set back", func() {
		var r latency.Recent
		r.Observe(latency.Seconds, began, 3)
		Expect(quantile(&r, began.Add(-time.Second), 1)).To(BeEquivalentTo(3), "another clock may be a little behind")
		back := began.Add(-8 * time.Hour)
		Expect(quantile(&r, back, 1)).To(BeEquivalentTo(-1))
		r.Observe(latency.Seconds, back, 1)
		Expect(quantile(&r, back.Add(9*time.Minute), 1)).To(BeEquivalentTo(1))
		Expect(quantile(&r, back.Add(10*time.Minute), 1)).To(BeEquivalentTo(-1))
	})

	It("keeps a value above the last bound", func() {
		var r latency.Recent
		r.Observe(latency.Seconds, began, 301)
		Expect(quantile(&r, began, 1)).To(BeEquivalentTo(301))
	})

	It("keeps all values of a generation that several goroutines begin", func() {
		const goroutines, each = 4, 10000
		var r latency.Recent
		var done sync.WaitGroup
		for range goroutines {
			done.Go(func() {
				for i := range each {
					r.Observe(latency.Seconds, began.Add(time.Duration(i)*time.Second), 0.3) // more than thirty generations
				}
			})
		}
		done.Wait()
		var l latency.Sum
		last := began.Add(time.Hour * 24)
		for range goroutines {
			done.Go(func() { r.Observe(latency.Seconds, last, 0.4) })
		}
		done.Wait()
		l.Add(&r, last)
		Expect(l.Number()).To(BeEquivalentTo(goroutines))
	})
})

var _ = Describe("a Histogram", func() {
	It("has one bucket for each bound", func() {
		var h latency.Histogram
		for _, seconds := range []float64{0.001, 300, 301} {
			h.Observe(latency.Queued, began, seconds, 0)
		}
		var all latency.All
		all.Add(&h)
		number, below := all.Buckets(latency.Queued)
		Expect(number).To(BeEquivalentTo(3))
		Expect(all.Sum).To(BeNumerically("~", 601.001, 1e-9))
		Expect(below).To(Equal(map[float64]uint64{0.001: 1, 0.01: 1, 0.1: 1, 0.25: 1, 0.5: 1, 1: 1, 2.5: 1, 5: 1, 10: 1, 30: 1, 60: 1, 300: 2}))
	})

	It("contains all concurrent observations and the last example of each bucket", func() {
		var h latency.Histogram
		const goroutines, each = 4, 10000
		var done sync.WaitGroup
		for range goroutines {
			done.Go(func() {
				for i := range each {
					h.Observe(latency.Seconds, began.Add(time.Duration(i)*time.Second), 0.3, 0)
				}
			})
		}
		done.Wait()
		h.Observe(latency.Seconds, began, 0.0001, 7)
		h.Observe(latency.Seconds, began, 100, 8)
		h.Observe(latency.Seconds, began, 200, 9)
		var all latency.All
		all.Add(&h)
		number, below := all.Buckets(latency.Seconds)
		Expect(number).To(BeEquivalentTo(goroutines*each + 3))
		Expect(below[0.0002]).To(BeEquivalentTo(1))
		Expect(below[0.2]).To(BeEquivalentTo(1))
		Expect(below[0.5]).To(BeEquivalentTo(goroutines*each + 1))
		Expect(below[10]).To(BeEquivalentTo(goroutines*each + 1))
		Expect(all.Sum).To(BeNumerically("~", goroutines*each*0.3+300, 1))
		Expect(all.Examples).To(Equal([]latency.Example{{Connection: 7, Time: began, Value: 0.0001}, {Connection: 9, Time: began, Value: 200}}))
	})
})
