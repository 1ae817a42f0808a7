package forward

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/usherproxy/usher/proxy/outcome"
)

// fixedQueue is a queue with these unsent bytes.
type fixedQueue int

func (fixedQueue) unread() int   { return 0 }
func (q fixedQueue) unsent() int { return int(q) }

// TestWatchFirstCheckLate checks that a pair is not ended at its first check since bytes moved, however late that is:
// a slow reader can have read in between, which only a comparison of two checks shows.
func TestWatchFirstCheckLate(t *testing.T) {
	g := NewWithT(t)
	limits := Limits{HalfClosed: time.Second}
	start := time.Now()
	w := watch{began: start, silent: start, unsent: -1}
	late := start.Add(3 * time.Second)
	g.Expect(w.verdict(limits, late, false, true, fixedQueue(1000))).To(Equal(outcome.Open))
	g.Expect(w.verdict(limits, late.Add(900*time.Millisecond), false, true, fixedQueue(1000))).To(Equal(outcome.Open))
	g.Expect(w.verdict(limits, late.Add(time.Second), false, true, fixedQueue(900))).To(Equal(outcome.Open), "the reader reads")
	g.Expect(w.verdict(limits, late.Add(1900*time.Millisecond), false, true, fixedQueue(900))).To(Equal(outcome.Open))
	g.Expect(w.verdict(limits, late.Add(2*time.Second), false, true, fixedQueue(900))).To(Equal(outcome.HalfClosed))
}
