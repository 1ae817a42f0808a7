package proxy

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
)

// TestBurstEnd checks after which periods a burst of connections counts as over.
func TestBurstEnd(t *testing.T) {
	for _, c := range []struct {
		name   string
		counts []int64 // change of the connection count in each period
		over   []int   // periods after which memory is freed
	}{
		{"few connections", []int64{300, 300, 300, 0, 0}, nil},
		{"a burst", []int64{5000, 0, 0, 0}, []int{1}},
		{"a burst that fades", []int64{5000, 3000, 400, 300, 0}, []int{3}},
		{"many connections continuously", []int64{5000, 4000, 6000, 5000, 4500, 5500}, nil},
		{"few connections per period that add up", []int64{400, 400, 400, 0}, []int{3}},
		{"two bursts", []int64{5000, 0, 0, 5000, 0, 0}, []int{1, 4}},
		{"a burst after a take-over of many connections", []int64{-20000, 0, 5000, 0}, []int{3}},
		{"a start that is counted late", []int64{-1, 5001, -1, 1}, []int{2}},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := NewWithT(t)
			var e burstEnd
			var count int64
			var over []int
			for i, n := range c.counts {
				count += n
				if e.over(time.Now(), count) {
					over = append(over, i)
					e.tidy()
					now := e.rest.Add(-1)
					g.Expect(e.over(now, count+2*minBurst)).To(BeFalse(), "there are too many connections")
					g.Expect(e.over(now, count+2*minBurst)).To(BeFalse(), "memory was freed recently")
					g.Expect(e.over(e.rest, count+2*minBurst)).To(BeTrue())
					e = burstEnd{seen: count, tidied: count}
				}
			}
			g.Expect(over).To(Equal(c.over))
		})
	}
}

// TestBurstEndPause checks the time until the next look.
func TestBurstEndPause(t *testing.T) {
	g := NewWithT(t)
	var e burstEnd
	look := func(count int64) time.Duration {
		if e.over(time.Now(), count) {
			e.tidy()
		}
		return e.pause()
	}
	g.Expect(look(0)).To(Equal(calmPeriod), "no client has connected yet")
	g.Expect(look(5000)).To(Equal(burstPeriod), "a burst of connections")
	g.Expect(look(5000)).To(Equal(calmPeriod), "the burst is over and memory was freed")
	g.Expect(look(5400)).To(Equal(burstPeriod))
	g.Expect(look(5400)).To(Equal(calmPeriod), "there were few new connections")
	e.rest = time.Now().Add(time.Hour)
	g.Expect(look(8000)).To(Equal(burstPeriod))
	g.Expect(look(8000)).To(Equal(burstPeriod), "memory has yet to be freed")
}
