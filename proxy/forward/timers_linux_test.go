package forward_test

import (
	"sync"
	"sync/atomic"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/usherproxy/usher/proxy/forward"
	"github.com/usherproxy/usher/proxy/outcome"
)

var _ = Describe("many pairs of a loop, retired at the same time,", func() {
	// seenBetween retires many pairs, and returns how many had ended at each turn of another task in between.
	seenBetween := func() (between []int64) {
		const pairs = 300
		loop := newLoop(0)
		var ended atomic.Int64
		var all sync.WaitGroup
		for range pairs {
			all.Add(1)
			client, endpoint, _ := loopPair(loop, forward.Limits{}, forward.Done(func(r outcome.Result) {
				defer all.Done()
				defer GinkgoRecover()
				Expect(r.Outcome).To(Equal(outcome.EndpointDrained))
				ended.Add(1)
			}))
			DeferCleanup(client.Close)
			DeferCleanup(endpoint.Close)
		}
		on(loop, func() bool {
			loop.EachPair(func(p *forward.PairHere, _ forward.Owner) { p.Retire(time.Now().Add(time.Hour)) })
			return true
		})
		// A task that always resubmits itself runs once in each round.
		var task func()
		task = func() {
			if n := ended.Load(); n < pairs {
				if n > 0 {
					between = append(between, n)
				}
				_ = loop.Do(task)
			}
		}
		Expect(loop.Do(task)).To(Succeed())
		all.Wait()
		on(loop, func() bool { return true })
		return between
	}
	It("end in several turns, so that other tasks run in between", func() {
		// A turn may take as long as the loop was busy before. If the machine stopped the loop for that long, all
		// pairs may end in one turn.
		for range 4 {
			if len(seenBetween()) > 0 {
				return
			}
		}
		Fail("all pairs ended in one turn in each attempt")
	})
})
