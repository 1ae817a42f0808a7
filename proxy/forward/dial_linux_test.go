package forward_test

import (
	"context"
	"net/netip"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/usherproxy/usher/proxy/forward"
	"github.com/usherproxy/usher/test/lab"
)

var _ = Describe("a loop that connects to an unresponsive address", func() {
	It("ends each attempt at its own timeout, or when all are canceled", func() {
		loop, to := newLoop(0), lab.Silent()
		type end struct {
			limit time.Duration
			err   error
			took  time.Duration
		}
		ended := make(chan end, 10)
		began := time.Now()
		var connect func(limit time.Duration, then ...time.Duration)
		connect = func(limit time.Duration, then ...time.Duration) {
			loop.Connect(netip.AddrPort{}, to, 0, nil, limit, func(_ *forward.Dialed, err error) {
				ended <- end{limit, err, time.Since(began)}
				if len(then) > 0 {
					connect(then[0], then[1:]...)
				}
			})
		}
		const long, short, never = 2 * time.Second, 100 * time.Millisecond, time.Hour
		Expect(loop.Do(func() {
			connect(never)
			connect(long, never) // on expiry, its callback adds a dial with another limit
			connect(short, short)
		})).To(Succeed())
		for _, want := range []end{{limit: short, took: short}, {limit: short, took: 2 * short}, {limit: long, took: long}} {
			var got end
			Eventually(ended).WithTimeout(30 * time.Second).Should(Receive(&got))
			Expect(got.limit).To(Equal(want.limit))
			Expect(got.err).To(MatchError(context.DeadlineExceeded))
			Expect(got.took).To(BeNumerically(">=", want.took))
		}
		Consistently(ended).WithTimeout(short).ShouldNot(Receive())

		Expect(loop.Do(loop.CancelDials)).To(Succeed())
		for range 2 {
			var got end
			Eventually(ended).WithTimeout(30 * time.Second).Should(Receive(&got))
			Expect(got.limit).To(Equal(never))
			Expect(got.err).To(MatchError(context.Canceled))
		}
	})
})
