package balance_test

import (
	"errors"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/usherproxy/usher/proxy/balance"
)

var _ = Describe("an endpoint whose Service asks for probes", func() {
	const rise, fall, interval = 2, 3, 10 * time.Second
	var (
		pool     *balance.Pool
		bad      *balance.Endpoint
		errProbe = errors.New("HTTP status 503")
	)
	BeforeEach(func() {
		pool = new(balance.Pool)
		pool.Update(port(endpoints(1, 2)), start)
		bad = pool.All[0]
	})
	judge := func(errs ...error) (news []bool) {
		for _, err := range errs {
			news = append(news, bad.Judge(start, err, interval, rise, fall))
		}
		return news
	}
	convict := func() {
		GinkgoHelper()
		Expect(judge(errProbe, errProbe, errProbe)).To(Equal([]bool{false, false, true}))
	}
	picked := func() map[int]int {
		counts := map[int]int{}
		for range 10 {
			c, _ := pool.Cluster.Pick(balance.Ask{Now: start})
			counts[int(c.Endpoint.Addr.Addr().As4()[3])]++
		}
		return counts
	}

	It("is in quarantine after so many failures in a row, and out of it after so many successes in a row", func() {
		Expect(judge(errProbe, errProbe, nil, errProbe, errProbe)).To(HaveEach(false))
		Expect(picked()).To(Equal(map[int]int{1: 5, 2: 5}))
		Expect(judge(errProbe, errProbe)).To(Equal([]bool{true, false}))
		Expect(picked()).To(Equal(map[int]int{2: 10}))
		period, ok := bad.Quarantined(start.Add(time.Hour))
		Expect(ok).To(BeTrue())
		Expect(period.Cause).To(MatchError("4 probes failed: HTTP status 503"))
		Expect(errors.Is(period.Cause, errProbe)).To(BeTrue())
		period.Cause = nil
		Expect(period).To(Equal(balance.Period{Until: start.Add(interval), Probed: true, Convicted: true, Failures: 4}))

		Expect(judge(nil, errProbe, nil)).To(HaveEach(false))
		period, _ = bad.Quarantined(start)
		Expect(period.Cause).To(MatchError("5 probes failed: HTTP status 503"))
		Expect(picked()).To(Equal(map[int]int{2: 10}))
		Expect(judge(nil, nil)).To(Equal([]bool{true, false}))
		Expect(picked()).To(Equal(map[int]int{1: 5, 2: 5}))
	})

	It("stays in quarantine whoever has been connected to it, or failed", func() {
		convict()
		bad.Succeed(start)
		Expect(picked()).To(Equal(map[int]int{2: 10}))
		Expect(bad.State.Fail(start, start, errRefused, quarantine)).To(BeZero(), "it is in quarantine already")
		Expect(judge(nil, nil)).To(Equal([]bool{false, true}))
		Expect(picked()).To(Equal(map[int]int{1: 5, 2: 5}))
	})

	It("has to be well for clients too, if it failed them before", func() {
		bad.Fail(start, start, errRefused, balance.Quarantine{First: time.Second, Max: time.Minute, Probed: true})
		Expect(judge(errProbe, errProbe, errProbe)).To(HaveEach(false), "it is in quarantine already")
		next, news := bad.Probed(start, nil, false, quarantine)
		Expect(next).To(BeZero())
		Expect(news).To(BeFalse())
		Expect(picked()).To(Equal(map[int]int{2: 10}))
		Expect(judge(nil, nil)).To(Equal([]bool{false, true}))

		bad.Fail(start, start, errRefused, balance.Quarantine{First: time.Second, Max: time.Minute, Probed: true})
		convictedToo := judge(errProbe, errProbe, errProbe, nil, nil)
		Expect(convictedToo).To(HaveEach(false))
		Expect(picked()).To(Equal(map[int]int{2: 10}), "nobody has found out yet whether clients reach it")
	})

	It("is used if all are like that", func() {
		convict()
		other := pool.All[1]
		for range fall {
			other.Judge(start, errProbe, interval, rise, fall)
		}
		Expect(picked()).To(Equal(map[int]int{1: 5, 2: 5}))
		c, _ := pool.Cluster.Pick(balance.Ask{Now: start})
		Expect(c.Reason).To(Equal(balance.LastResort))
	})

	It("is out of quarantine when the Service asks no more", func() {
		Expect(bad.Acquit(start)).To(BeFalse())
		convict()
		Expect(bad.Acquit(start)).To(BeTrue())
		Expect(picked()).To(Equal(map[int]int{1: 5, 2: 5}))
		convict()
	})
})
