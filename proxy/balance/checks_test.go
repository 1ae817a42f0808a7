package balance_test

import (
	"errors"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/usherproxy/usher/proxy/balance"
)

var _ = Describe("an endpoint with probes configured by its Service", func() {
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
	checks := func(errs ...error) (news []bool) {
		for _, err := range errs {
			news = append(news, check(bad, start, err, interval, rise, fall).Notify)
		}
		return news
	}
	off := func() (news bool) {
		return bad.Report(balance.Report{Kind: balance.CheckOff, Now: start}, balance.Policy{}).Notify
	}
	makeDown := func() {
		GinkgoHelper()
		Expect(checks(errProbe, errProbe, errProbe)).To(Equal([]bool{false, false, true}))
	}
	picked := func() map[int]int {
		counts := map[int]int{}
		for range 10 {
			c, _ := pool.Cluster.Pick(balance.Request{Now: start})
			counts[int(c.Endpoint.Addr.Addr().As4()[3])]++
		}
		return counts
	}

	It("is quarantined after Fall consecutive failures, and released after Rise consecutive successes", func() {
		Expect(checks(errProbe, errProbe, nil, errProbe, errProbe)).To(HaveEach(false))
		Expect(picked()).To(Equal(map[int]int{1: 5, 2: 5}))
		Expect(checks(errProbe, errProbe)).To(Equal([]bool{true, false}))
		Expect(picked()).To(Equal(map[int]int{2: 10}))
		period := bad.Health(start.Add(time.Hour))
		Expect(period.Err).To(MatchError("4 probes failed: HTTP status 503"))
		Expect(errors.Is(period.Err, errProbe)).To(BeTrue())
		period.Err = nil
		Expect(period).To(Equal(balance.Health{State: balance.Down, By: balance.CheckFailed, Since: start, Until: start.Add(interval), UntilProbe: true, Failures: 4}))

		Expect(checks(nil, errProbe, nil)).To(HaveEach(false))
		period = bad.Health(start)
		Expect(period.Err).To(MatchError("5 probes failed: HTTP status 503"))
		Expect(picked()).To(Equal(map[int]int{2: 10}))
		Expect(checks(nil, nil)).To(Equal([]bool{true, false}))
		Expect(picked()).To(Equal(map[int]int{1: 5, 2: 5}))
	})

	It("stays in quarantine regardless of the results of client connections", func() {
		makeDown()
		connected(bad, start)
		Expect(picked()).To(Equal(map[int]int{2: 10}))
		Expect(fail(bad, start, start, quarantine).Notify).To(BeFalse(), "it is in quarantine already")
		Expect(checks(nil, nil)).To(Equal([]bool{false, true}))
		Expect(picked()).To(Equal(map[int]int{1: 5, 2: 5}))
	})

	It("must also recover for clients if their connections failed before", func() {
		fail(bad, start, start, balance.Policy{First: time.Second, Max: time.Minute, UntilProbe: true})
		Expect(checks(errProbe, errProbe, errProbe)).To(HaveEach(false), "it is in quarantine already")
		Expect(recheck(bad, balance.RecheckPassed, start, nil, quarantine)).To(Equal(balance.Change{}))
		Expect(picked()).To(Equal(map[int]int{2: 10}))
		Expect(checks(nil, nil)).To(Equal([]bool{false, true}))

		fail(bad, start, start, balance.Policy{First: time.Second, Max: time.Minute, UntilProbe: true})
		news := checks(errProbe, errProbe, errProbe, nil, nil)
		Expect(news).To(HaveEach(false))
		Expect(picked()).To(Equal(map[int]int{2: 10}), "no recheck has shown yet whether clients reach it")
	})

	It("is used if all endpoints are in quarantine", func() {
		makeDown()
		other := pool.All[1]
		for range fall {
			check(other, start, errProbe, interval, rise, fall)
		}
		Expect(picked()).To(Equal(map[int]int{1: 5, 2: 5}))
		c, _ := pool.Cluster.Pick(balance.Request{Now: start})
		Expect(c.Reason).To(Equal(balance.LastResort))
	})

	It("leaves quarantine when the Service disables probes", func() {
		Expect(off()).To(BeFalse())
		makeDown()
		Expect(off()).To(BeTrue())
		Expect(picked()).To(Equal(map[int]int{1: 5, 2: 5}))
		makeDown()
	})

	It("is in quarantine since its first, if attempts failed before", func() {
		fail(bad, start.Add(-time.Second), start.Add(-time.Second), quarantine)
		Expect(checks(errProbe, errProbe, errProbe)).To(HaveEach(false))
		Expect(bad.Health(start).Since).To(Equal(start.Add(-time.Second)))
	})
})
