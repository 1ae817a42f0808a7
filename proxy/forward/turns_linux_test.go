package forward

import (
	"context"
	"testing"
	"time"

	. "github.com/onsi/gomega"
)

// fake is a timed object.
type fake struct{ err error }

func (f *fake) over() bool          { return f.err != nil }
func (f *fake) deadline() time.Time { return time.Now().Add(time.Hour) }
func (f *fake) fail(err error)      { f.err = err }

func TestLoopProbesAndCancelsInTurns(t *testing.T) {
	g := NewWithT(t)
	p, _, _ := loopedPair(t)
	loop := p.loop
	const many = 3 * perTurn
	probed := make([]int, 0, 2)
	canceled := make([]int, 0, 2)
	var fakes []*fake
	var pairs []*pair
	var others int // slots in use before
	count := func() {
		n, have := 0, 0
		for _, p := range pairs {
			if p.probed {
				have++
			}
		}
		for _, f := range fakes {
			if f.over() {
				g.Expect(f.err).To(MatchError(context.Canceled))
				n++
			}
		}
		canceled, probed = append(canceled, n), append(probed, have)
	}
	p.onLoop(t, func() {
		others = len(loop.slots)
		for range many {
			pairs = append(pairs, &pair{endpoint: edge{fd: -1}})
			loop.slots = append(loop.slots, slot{handler: (*endpointEdge)(pairs[len(pairs)-1])})
			fakes = append(fakes, new(fake))
			loop.timedBy(time.Hour).add(fakes[len(fakes)-1])
		}
		loop.probe()
		loop.CancelDials()
		count()
	})
	g.Eventually(func() (n int) {
		p.onLoop(t, func() { n = len(loop.later) })
		return n
	}).WithTimeout(5 * time.Second).Should(BeZero())
	p.onLoop(t, count)
	g.Expect(probed).To(Equal([]int{perTurn - others, many}))
	g.Expect(canceled).To(Equal([]int{perTurn, many}))
}
