package balance_test

import (
	"net/netip"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/proxy/balance"
)

var _ = Describe("slow start", func() {
	const length = time.Minute
	var (
		pool *balance.Pool
		by   config.Scheduler
		now  time.Time
	)
	update := func(list []config.Endpoint) {
		p := port(list)
		p.Scheduler, p.SlowStart = by, length
		pool.Update(p, now)
	}
	begin := func(scheduler string, list []config.Endpoint) {
		Expect(by.UnmarshalText([]byte(scheduler))).To(Succeed())
		now = start
		pool = new(balance.Pool)
		update(list)
	}
	// shares returns each endpoint's share of many connections, a few of which are open at a time.
	shares := func(among ...int) (shares []float64) {
		const connections = 20000
		counts := map[netip.AddrPort]int{}
		var open []*balance.Endpoint
		for i := range connections {
			c, ok := pool.Cluster.Pick(balance.Request{Now: now, Client: client(i)})
			Expect(ok).To(BeTrue())
			counts[c.Endpoint.Addr]++
			c.Endpoint.Take()
			if open = append(open, c.Endpoint); len(open) > 30 {
				open[0].Release()
				open = open[1:]
			}
		}
		for _, e := range open {
			e.Release()
		}
		for _, n := range among {
			shares = append(shares, float64(counts[addr(n)])/connections)
		}
		return shares
	}
	about := func(share float64) any { return BeNumerically("~", share, 0.02) }
	after := func(d time.Duration) { now = start.Add(d) }

	for _, scheduler := range []string{"rr", "random", "lc", "sed", "nq"} {
		It("increases the share of a new endpoint: "+scheduler, func() {
			begin(scheduler, endpoints(1, 2, 3))
			update(endpoints(1, 2, 3, 4))
			Expect(shares(1, 4)).To(HaveExactElements(BeNumerically(">", 0.3), about(0.025)))
			after(length / 2)
			// The share is as if its weight were half of the others', and at most half of an even share.
			Expect(shares(4)).To(HaveExactElements(BeNumerically("~", 0.134, 0.025)))
			after(length)
			Expect(shares(1, 2, 3, 4)).To(HaveExactElements(about(0.25), about(0.25), about(0.25), about(0.25)))
		})
	}

	It("increases the share of a new endpoint: p2c, which compares two endpoints", func() {
		begin("p2c", endpoints(1, 2, 3))
		update(endpoints(1, 2, 3, 4))
		Expect(shares(4)[0]).To(BeNumerically("<", 0.07))
		after(length)
		Expect(shares(4)).To(HaveExactElements(about(0.25)))
	})

	It("starts when an endpoint becomes ready", func() {
		begin("rr", endpoints(1, 2))
		list := endpoints(1, 2)
		list[1].Ready = false
		p := port(list)
		p.Scheduler, p.SlowStart, p.Cluster = by, length, list[:1]
		pool.Update(p, now)
		after(time.Hour)
		update(endpoints(1, 2))
		Expect(shares(2)).To(HaveExactElements(BeNumerically("<", 0.15)))
		Expect(pool.Cluster.Share(pool.All[1], now)).To(Equal(0.1))
		Expect(pool.Cluster.Share(pool.All[1], now.Add(length/4))).To(Equal(0.25))
		Expect(pool.Cluster.Share(pool.All[0], now)).To(Equal(1.0))
	})

	It("does not apply to initial endpoints or if all endpoints are equally new", func() {
		begin("rr", endpoints(1, 2, 3))
		Expect(shares(1, 2, 3)).To(HaveExactElements(about(1.0/3), about(1.0/3), about(1.0/3)))
		update(endpoints(4, 5))
		Expect(shares(4, 5)).To(HaveExactElements(about(0.5), about(0.5)))
	})

	It("is relative to the oldest endpoint if all are new", func() {
		begin("rr", nil)
		update(endpoints(1))
		after(10 * time.Second)
		update(endpoints(1, 2))
		after(20 * time.Second)
		Expect(pool.Cluster.Share(pool.All[0], now)).To(Equal(1.0))
		Expect(pool.Cluster.Share(pool.All[1], now)).To(Equal(0.5))
	})

	DescribeTable("uses a new endpoint if the others failed",
		func(scheduler string) {
			begin(scheduler, endpoints(1))
			update(endpoints(1, 2))
			for range 100 {
				c, ok := pool.Cluster.Pick(balance.Request{Now: now, Client: client(1), Tried: []netip.AddrPort{addr(1)}})
				Expect(ok).To(BeTrue())
				Expect(number(c.Endpoint)).To(Equal(2))
				Expect(c.Reason).To(Equal(balance.OnlyOne))
			}
			fail(pool.All[0], now, now, quarantine)
			for range 100 {
				c, _ := pool.Cluster.Pick(balance.Request{Now: now, Client: client(1)})
				Expect(number(c.Endpoint)).To(Equal(2))
			}
		},
		Entry("rr", "rr"), Entry("random", "random"), Entry("p2c", "p2c"), Entry("lc", "lc"))

	DescribeTable("uses a new endpoint if the others are full",
		func(scheduler string) {
			begin(scheduler, endpoints(1))
			p := port(endpoints(1, 2))
			p.Scheduler, p.SlowStart, p.EndpointLimit = by, length, 5
			pool.Update(p, now)
			counts := map[int]int{}
			for range 10 {
				c, ok := pool.Cluster.Pick(balance.Request{Now: now, Client: client(1)})
				Expect(ok).To(BeTrue())
				c.Endpoint.Take()
				counts[number(c.Endpoint)]++
			}
			Expect(counts).To(Equal(map[int]int{1: 5, 2: 5}))
			c, ok := pool.Cluster.Pick(balance.Request{Now: now, Client: client(1)})
			Expect(ok).To(BeFalse())
			Expect(c.Full()).To(BeTrue())
		},
		Entry("rr", "rr"), Entry("random", "random"), Entry("p2c", "p2c"), Entry("lc", "lc"), Entry("nq", "nq"))

	It("does not affect hash schedulers", func() {
		begin("sh", endpoints(1, 2, 3))
		update(endpoints(1, 2, 3, 4))
		Expect(shares(4)).To(HaveExactElements(about(0.25)))
	})
})
