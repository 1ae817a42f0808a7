package balance_test

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/proxy/balance"
)

func TestBalance(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "balance")
}

var (
	start      = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	quarantine = balance.Quarantine{First: 10 * time.Second, Max: 2 * time.Minute}
	errRefused = errors.New("connection refused")
)

// endpoints returns endpoints 10.0.0.n:80.
func endpoints(ns ...int) []config.Endpoint {
	var list []config.Endpoint
	for _, n := range ns {
		list = append(list, config.Endpoint{Addr: addr(n), Ready: true, Serving: true})
	}
	return list
}

func addr(n int) netip.AddrPort { return netip.MustParseAddrPort(fmt.Sprintf("10.0.0.%d:80", n)) }

func port(list []config.Endpoint) config.ServicePort {
	return config.ServicePort{Endpoints: list, Cluster: list, Internal: list}
}

var _ = Describe("a Set", func() {
	var pool *balance.Pool
	BeforeEach(func() {
		pool = new(balance.Pool)
		pool.Update(port(endpoints(1, 2, 3)), start)
	})
	pick := func(after time.Duration, tried ...int) string {
		var done []netip.AddrPort
		for _, n := range tried {
			done = append(done, addr(n))
		}
		c, ok := pool.Cluster.Pick(balance.Ask{Now: start.Add(after), Tried: done})
		if !ok {
			return "nobody"
		}
		return fmt.Sprintf("%d, %s", c.Endpoint.Addr.Addr().As4()[3], c.Reason)
	}
	fail := func(n int, after time.Duration) {
		e := pool.Cluster.Find(addr(n))
		e.Fail(start.Add(after), start.Add(after), errRefused, quarantine)
	}

	It("goes round robin", func() {
		for range 2 {
			Expect(pick(0)).To(Equal("1, round robin"))
			Expect(pick(0)).To(Equal("2, round robin"))
			Expect(pick(0)).To(Equal("3, round robin"))
		}
	})

	It("begins with the turn that it is told, and goes on from there when endpoints change", func() {
		first := uint32(4)
		pool = &balance.Pool{FirstTurn: func() uint32 { first++; return first }}
		pool.Update(port(endpoints(1, 2, 3)), start)
		Expect(pick(0)).To(Equal("3, round robin"))
		pool.Update(port(endpoints(1, 2, 3)), start)
		Expect(pick(0)).To(Equal("1, round robin"))
		Expect(pick(0)).To(Equal("2, round robin"))
	})

	It("knows every endpoint, also in the last turn that can be counted", func() {
		pool = &balance.Pool{FirstTurn: func() uint32 { return math.MaxUint32 }}
		pool.Update(port(endpoints(1, 2, 3)), start)
		Expect(pick(0, 1, 2)).To(Equal("3, only one left"))
	})

	It("gives each endpoint the same share under concurrency", func() {
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for range 300 {
					c, _ := pool.Cluster.Pick(balance.Ask{Now: start})
					c.Endpoint.Connected.Add(1)
				}
			})
		}
		wg.Wait()
		for _, e := range pool.All {
			Expect(e.Connected.Load()).To(BeEquivalentTo(800))
		}
	})

	It("goes to an endpoint that was not tried while there is one", func() {
		Expect(pick(0, 1)).To(Equal("2, round robin"))
		Expect(pick(0, 2, 3)).To(Equal("1, only one left"))
		Expect(pick(0, 1, 2, 3)).To(Equal("nobody"))
	})

	It("picks nobody where there is nobody", func() {
		Expect(pool.External.Len()).To(BeZero())
		_, ok := pool.External.Pick(balance.Ask{Now: start})
		Expect(ok).To(BeFalse())
	})

	It("passes over an endpoint in quarantine, and shares its turns evenly", func() {
		fail(2, 0)
		counts := map[string]int{}
		for range 30 {
			counts[pick(9*time.Second)]++
		}
		Expect(counts).To(Equal(map[string]int{"1, round robin": 15, "3, round robin": 15}))
	})

	It("uses those in quarantine when there are no others", func() {
		fail(2, 0)
		fail(3, 0)
		Expect(pick(0, 1)).To(Equal("2, all that are left are in quarantine"))
		Expect(pick(0, 1, 2)).To(Equal("3, only one left"))
		fail(1, 0)
		seen := map[string]bool{}
		for range 3 {
			seen[pick(0)] = true
		}
		Expect(seen).To(HaveLen(3), "in turn")
	})

	It("says how many it passed over", func() {
		fail(1, 0)
		fail(2, 0)
		c, _ := pool.Cluster.Pick(balance.Ask{Now: start})
		Expect(c.Endpoint.Addr).To(Equal(addr(3)))
		Expect(c.PassedOver).To(Equal(2))
	})

	It("sends one connection to probe when a quarantine is over", func() {
		fail(1, 0)
		Expect(pick(10*time.Second, 2, 3)).To(Equal("1, probe after quarantine"))
		for range 6 {
			Expect(pick(10 * time.Second)).NotTo(HavePrefix("1,"))
		}
		By("letting the next one probe if nothing is heard of the first")
		Expect(pick(11*time.Second, 2, 3)).To(Equal("1, probe after quarantine"))
		By("making the quarantine longer if a probe fails")
		fail(1, 11*time.Second)
		Expect(pick(30*time.Second, 2, 3)).To(Equal("1, only one left"))
		period, _ := pool.Cluster.Find(addr(1)).Quarantined(start.Add(30 * time.Second))
		Expect(period.Failures).To(Equal(2))
		By("trusting it again once the probe has succeeded")
		pool.Cluster.Find(addr(1)).Succeed(start)
		c, _ := pool.Cluster.Pick(balance.Ask{Now: start.Add(30 * time.Second), Tried: []netip.AddrPort{addr(2), addr(3)}})
		Expect(c.Reason).To(Equal(balance.OnlyOne))
		Expect(pick(30*time.Second, 3)).NotTo(ContainSubstring("quarantine"))
	})

	It("trusts an endpoint of which nothing is heard any more, when it has refused nobody for the longest quarantine", func() {
		fail(1, 0)
		longest := int(quarantine.Max / time.Second)
		for s := range longest {
			Expect(pick(10*time.Second+time.Duration(s)*time.Second, 2, 3)).To(Equal("1, probe after quarantine"))
		}
		Expect(pick(10*time.Second+quarantine.Max, 2, 3)).To(Equal("1, only one left"))
		By("not one that nobody was sent to for so long")
		fail(2, 0)
		Expect(pick(time.Hour, 1, 3)).To(Equal("2, probe after quarantine"))
		By("beginning anew when it refuses somebody")
		fail(1, time.Hour)
		Expect(pick(time.Hour+20*time.Second, 2, 3)).To(Equal("1, probe after quarantine"))
	})

	DescribeTable("doubles the quarantine with each failure in a row, up to the maximum",
		func(failures int, length time.Duration) {
			e := pool.Cluster.Find(addr(1))
			now := start
			for i := range failures {
				now = now.Add(time.Duration(i) * time.Hour)
				e.Fail(now, now, errRefused, quarantine)
			}
			period, ok := e.Quarantined(now.Add(length - 1))
			Expect(ok).To(BeTrue())
			Expect(period).To(Equal(balance.Period{Until: now.Add(length), Failures: failures, Cause: errRefused}))
			_, ok = e.Quarantined(period.Until)
			Expect(ok).To(BeFalse())
		},
		Entry(nil, 1, 10*time.Second),
		Entry(nil, 2, 20*time.Second),
		Entry(nil, 3, 40*time.Second),
		Entry(nil, 4, 80*time.Second),
		Entry(nil, 5, 2*time.Minute),
		Entry(nil, 50, 2*time.Minute),
	)

	It("takes failures of attempts that began before the quarantine was over as one", func() {
		e := pool.Cluster.Find(addr(1))
		for i := range 100 {
			e.Fail(start.Add(time.Duration(i)*time.Millisecond), start.Add(250*time.Millisecond), errRefused, quarantine)
		}
		period, _ := e.Quarantined(start.Add(time.Second))
		Expect(period.Failures).To(Equal(1))
		Expect(period.Until).To(Equal(start.Add(10*time.Second + 250*time.Millisecond)))
		Expect(e.Failed.Load()).To(BeEquivalentTo(100))
	})

	Describe("whose endpoints are probed", func() {
		q := balance.Quarantine{First: time.Second, Max: 2 * time.Minute, Probed: true}
		var e *balance.Endpoint
		BeforeEach(func() { e = pool.Cluster.Find(addr(1)) })
		quarantined := func(after time.Duration) bool {
			_, ok := e.Quarantined(start.Add(after))
			return ok
		}

		It("passes one over until a probe is answered, and then at once no more", func() {
			e.Fail(start, start, errRefused, q)
			for range 6 {
				Expect(pick(time.Hour)).NotTo(HavePrefix("1,"), "no client has to find out")
			}
			period, _ := e.Quarantined(start.Add(time.Hour))
			Expect(period).To(Equal(balance.Period{Until: start.Add(time.Second), Probed: true, Failures: 1, Cause: errRefused}))

			next, news := e.Probed(start.Add(time.Hour), nil, false, q)
			Expect(next).To(BeZero())
			Expect(news).To(BeTrue())
			Expect(quarantined(time.Hour)).To(BeFalse())
			Expect(pick(time.Hour, 2, 3)).To(Equal("1, only one left"))
		})

		It("waits twice as long for each probe, up to the maximum", func() {
			e.Fail(start, start, errRefused, q)
			now, silent := start.Add(time.Second), errors.New("no answer")
			var waits []time.Duration
			for range 9 {
				next, news := e.Probed(now, silent, true, q)
				Expect(news).To(Equal(len(waits) < 7), "that it takes longer")
				now = now.Add(next)
				waits = append(waits, next/time.Second)
				period, _ := e.Quarantined(now)
				Expect(period).To(Equal(balance.Period{Until: now, Probed: true, Failures: 1 + len(waits), Cause: silent}))
			}
			Expect(waits).To(Equal([]time.Duration{2, 4, 8, 16, 32, 64, 120, 120, 120}))
			Expect(e.Failed.Load()).To(BeEquivalentTo(1), "clients' attempts")
		})

		It("does not hold it against the endpoint if the probe could not be made", func() {
			e.Fail(start, start, errRefused, q)
			next, news := e.Probed(start.Add(time.Second), errors.New("too many open files"), false, q)
			Expect(next).To(Equal(time.Second))
			Expect(news).To(BeFalse())
			period, _ := e.Quarantined(start)
			Expect(period).To(Equal(balance.Period{Until: start.Add(2 * time.Second), Probed: true, Failures: 1, Cause: errRefused}))
		})

		It("lets clients that have nobody else neither shorten nor prolong the time, but end it", func() {
			e.Fail(start, start, errRefused, q)
			e.Fail(start.Add(time.Minute), start.Add(time.Minute), errRefused, q)
			period, _ := e.Quarantined(start)
			Expect(period.Until).To(Equal(start.Add(time.Second)))
			Expect(period.Failures).To(Equal(1))

			Expect(e.State.Succeed(start)).To(BeTrue())
			Expect(quarantined(0)).To(BeFalse())
			next, news := e.Probed(start.Add(time.Minute), nil, false, q)
			Expect(next).To(BeZero())
			Expect(news).To(BeFalse(), "that is known already")
		})

		It("is not misled by an endpoint that answers probes only", func() {
			var waits []time.Duration
			now := start
			for range 4 {
				e.Fail(now, now, errRefused, q)
				period, _ := e.Quarantined(now)
				waits = append(waits, period.Until.Sub(now)/time.Second)
				now = period.Until
				e.Probed(now, nil, false, q)
			}
			Expect(waits).To(Equal([]time.Duration{1, 2, 4, 8}))

			By("forgetting it when a client has been connected")
			Expect(e.State.Succeed(start)).To(BeFalse(), "it had recovered")
			e.Fail(now, now, errRefused, q)
			period, _ := e.Quarantined(now)
			Expect(period.Until.Sub(now)).To(Equal(time.Second))

			By("and when it has been well for long")
			e.Probed(now, nil, false, q)
			now = now.Add(q.Max)
			e.Fail(now, now, errRefused, q)
			period, _ = e.Quarantined(now)
			Expect(period.Until.Sub(now)).To(Equal(time.Second))
		})

		It("takes no notice of an attempt that began before the probe was answered", func() {
			e.Fail(start, start, errRefused, q)
			e.Probed(start.Add(time.Second), nil, false, q)
			e.Fail(start.Add(900*time.Millisecond), start.Add(1150*time.Millisecond), errRefused, q)
			Expect(quarantined(1150 * time.Millisecond)).To(BeFalse())
		})
	})

	It("knows no quarantine if that is switched off", func() {
		e := pool.Cluster.Find(addr(1))
		e.Fail(start, start, errRefused, balance.Quarantine{})
		_, ok := e.Quarantined(start)
		Expect(ok).To(BeFalse())
	})
})

var _ = Describe("a Pool", func() {
	It("keeps what it knows of endpoints that stay, and the turn", func() {
		var pool balance.Pool
		pool.Update(port(endpoints(1, 2, 3)), start)
		pool.Cluster.Pick(balance.Ask{Now: start})
		pool.Cluster.Find(addr(2)).Fail(start, start, errRefused, quarantine)

		list := endpoints(2, 3, 4)
		list[0].Terminating = true
		gone := pool.Update(port(list), start)

		Expect(gone).To(HaveLen(1))
		Expect(gone[0].Addr).To(Equal(addr(1)))
		two := pool.Cluster.Find(addr(2))
		Expect(two.Terminating).To(BeTrue())
		_, ok := two.Quarantined(start)
		Expect(ok).To(BeTrue())
		c, _ := pool.Cluster.Pick(balance.Ask{Now: start})
		Expect(c.Endpoint.Addr).To(Equal(addr(3)))
	})

	It("forgets an endpoint that was replaced by another Pod or was away", func() {
		var pool balance.Pool
		list := endpoints(1)
		list[0].Pod = "default/old"
		pool.Update(port(list), start)
		pool.Cluster.Find(addr(1)).Fail(start, start, errRefused, quarantine)

		list = endpoints(1)
		list[0].Pod = "default/new"
		Expect(pool.Update(port(list), start)).To(HaveLen(1))
		_, ok := pool.Cluster.Find(addr(1)).Quarantined(start)
		Expect(ok).To(BeFalse())

		pool.Cluster.Find(addr(1)).Fail(start, start, errRefused, quarantine)
		Expect(pool.Update(port(nil), start)).To(HaveLen(1))
		Expect(pool.Update(port(list), start)).To(BeEmpty())
		_, ok = pool.Cluster.Find(addr(1)).Quarantined(start)
		Expect(ok).To(BeFalse())
	})

	It("knows since when endpoints are leaving, until they are back or have no connections", func() {
		now := start
		var pool balance.Pool
		leaving := func() map[netip.AddrPort]time.Duration {
			since := map[netip.AddrPort]time.Duration{}
			for _, l := range pool.Leaving {
				since[l.Addr] = l.Since.Sub(start)
			}
			return since
		}
		update := func(list []config.Endpoint) {
			now = now.Add(time.Second)
			pool.Update(port(list), now)
		}
		pool.Update(port(endpoints(1, 2, 3)), start)
		one, two := pool.Cluster.Find(addr(1)), pool.Cluster.Find(addr(2))
		one.Take()
		two.Take()
		one.Fail(start, start, errRefused, quarantine)

		list := endpoints(1, 3)
		list[0].Terminating = true
		update(list)
		Expect(leaving()).To(Equal(map[netip.AddrPort]time.Duration{addr(1): time.Second, addr(2): time.Second}))
		update(endpoints(4))
		Expect(leaving()).To(Equal(map[netip.AddrPort]time.Duration{addr(1): time.Second, addr(2): time.Second}))
		two.Release()
		update(endpoints(1, 4))
		Expect(leaving()).To(BeEmpty())
		back := pool.Cluster.Find(addr(1))
		Expect(back.Active.Load()).To(BeEquivalentTo(1))
		_, ok := back.Quarantined(start)
		Expect(ok).To(BeFalse())
		update(endpoints(4))
		Expect(leaving()).To(Equal(map[netip.AddrPort]time.Duration{addr(1): 4 * time.Second}))
	})
})
