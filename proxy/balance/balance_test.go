package balance_test

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"runtime"
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
	quarantine = balance.Policy{First: 10 * time.Second, Max: 2 * time.Minute}
	errRefused = errors.New("connection refused")
)

func fail(e *balance.Endpoint, began, now time.Time, p balance.Policy) balance.Change {
	return e.Report(balance.Report{Kind: balance.ConnectFailed, Start: began, Now: now, Err: errRefused}, p)
}

func connected(e *balance.Endpoint, now time.Time) balance.Change {
	return e.Report(balance.Report{Kind: balance.Connected, Now: now}, quarantine)
}

func recheck(e *balance.Endpoint, kind balance.Kind, now time.Time, err error, p balance.Policy) balance.Change {
	return e.Report(balance.Report{Kind: kind, Now: now, Err: err}, p)
}

// check reports a check that passed (err is nil) or failed.
func check(e *balance.Endpoint, now time.Time, err error, interval time.Duration, rise, fall int) balance.Change {
	kind := balance.CheckPassed
	if err != nil {
		kind = balance.CheckFailed
	}
	return e.Report(balance.Report{Kind: kind, Now: now, Err: err}, balance.Policy{First: interval, Rise: int32(rise), Fall: int32(fall)})
}

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

var _ = Describe("an Endpoint of a connection", func() {
	It("does not keep the other endpoints in memory", func() {
		pool := new(balance.Pool)
		freed := make(chan struct{})
		list := endpoints(1, 2, 3)
		runtime.AddCleanup(&list[2], func(int) { close(freed) }, 0)
		pool.Update(port(list), start)
		own := pool.All[0].Own()
		Expect(pool.All[0].Own()).To(BeIdenticalTo(own))
		pool.Update(port(endpoints(1, 2, 3)), start)
		list = nil
		Eventually(func() any { runtime.GC(); return freed }).Should(BeClosed())
		Expect(own.Addr).To(Equal(addr(1)))
		Expect(own.State).To(BeIdenticalTo(pool.All[0].State))
		Expect(pool.All[0].Own()).To(BeIdenticalTo(own), "nothing has changed")
		changed := endpoints(1)
		changed[0].Ready = false
		pool.Update(port(changed), start)
		Expect(pool.All[0].Own().Ready).To(BeFalse())
		Expect(own.Ready).To(BeTrue())
	})
})

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
		c, ok := pool.Cluster.Pick(balance.Request{Now: start.Add(after), Tried: done})
		if !ok {
			return "nobody"
		}
		return fmt.Sprintf("%d, %s", c.Endpoint.Addr.Addr().As4()[3], c.Reason)
	}
	fails := func(n int, after time.Duration) {
		e := pool.Cluster.Find(addr(n))
		fail(e, start.Add(after), start.Add(after), quarantine)
	}

	It("selects endpoints in round-robin order", func() {
		for range 2 {
			Expect(pick(0)).To(Equal("1, round robin"))
			Expect(pick(0)).To(Equal("2, round robin"))
			Expect(pick(0)).To(Equal("3, round robin"))
		}
	})

	It("starts at the given turn and continues from there after an update", func() {
		first := uint32(4)
		pool = &balance.Pool{FirstTurn: func() uint32 { first++; return first }}
		pool.Update(port(endpoints(1, 2, 3)), start)
		Expect(pick(0)).To(Equal("3, round robin"))
		pool.Update(port(endpoints(1, 2, 3)), start)
		Expect(pick(0)).To(Equal("1, round robin"))
		Expect(pick(0)).To(Equal("2, round robin"))
	})

	It("finds every endpoint even if the turn counter is about to overflow", func() {
		pool = &balance.Pool{FirstTurn: func() uint32 { return math.MaxUint32 }}
		pool.Update(port(endpoints(1, 2, 3)), start)
		Expect(pick(0, 1, 2)).To(Equal("3, only one left"))
	})

	It("gives each endpoint the same share under concurrency", func() {
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for range 300 {
					c, _ := pool.Cluster.Pick(balance.Request{Now: start})
					c.Endpoint.Connected.Add(1)
				}
			})
		}
		wg.Wait()
		for _, e := range pool.All {
			Expect(e.Connected.Load()).To(BeEquivalentTo(800))
		}
	})

	It("selects an untried endpoint while there is one", func() {
		Expect(pick(0, 1)).To(Equal("2, round robin"))
		Expect(pick(0, 2, 3)).To(Equal("1, only one left"))
		Expect(pick(0, 1, 2, 3)).To(Equal("nobody"))
	})

	It("selects no endpoint if it is empty", func() {
		Expect(pool.External.Len()).To(BeZero())
		_, ok := pool.External.Pick(balance.Request{Now: start})
		Expect(ok).To(BeFalse())
	})

	It("skips a quarantined endpoint and distributes its turns evenly", func() {
		fails(2, 0)
		counts := map[string]int{}
		for range 30 {
			counts[pick(9*time.Second)]++
		}
		Expect(counts).To(Equal(map[string]int{"1, round robin": 15, "3, round robin": 15}))
	})

	It("uses quarantined endpoints if there are no others", func() {
		fails(2, 0)
		fails(3, 0)
		Expect(pick(0, 1)).To(Equal("2, all that are left are in quarantine"))
		Expect(pick(0, 1, 2)).To(Equal("3, only one left"))
		fails(1, 0)
		seen := map[string]bool{}
		for range 3 {
			seen[pick(0)] = true
		}
		Expect(seen).To(HaveLen(3), "in rotation")
	})

	It("reports how many endpoints it skipped", func() {
		fails(1, 0)
		fails(2, 0)
		c, _ := pool.Cluster.Pick(balance.Request{Now: start})
		Expect(c.Endpoint.Addr).To(Equal(addr(3)))
		Expect(c.Skipped).To(Equal(2))
	})

	It("sends one connection as a probe when a quarantine has expired", func() {
		fails(1, 0)
		Expect(pick(10*time.Second, 2, 3)).To(Equal("1, probe after quarantine"))
		for range 6 {
			Expect(pick(10 * time.Second)).NotTo(HavePrefix("1,"))
		}
		By("sending another probe if the first has no result")
		Expect(pick(11*time.Second, 2, 3)).To(Equal("1, probe after quarantine"))
		By("extending the quarantine if a probe fails")
		fails(1, 11*time.Second)
		Expect(pick(30*time.Second, 2, 3)).To(Equal("1, only one left"))
		period := pool.Cluster.Find(addr(1)).Health(start.Add(30 * time.Second))
		Expect(period.Failures).To(Equal(2))
		By("ending the quarantine when a probe succeeds")
		connected(pool.Cluster.Find(addr(1)), start)
		c, _ := pool.Cluster.Pick(balance.Request{Now: start.Add(30 * time.Second), Tried: []netip.AddrPort{addr(2), addr(3)}})
		Expect(c.Reason).To(Equal(balance.OnlyOne))
		Expect(pick(30*time.Second, 3)).NotTo(ContainSubstring("quarantine"))
	})

	It("ends a quarantine if probes have had no result for the maximum time", func() {
		fails(1, 0)
		longest := int(quarantine.Max / time.Second)
		for s := range longest {
			Expect(pick(10*time.Second+time.Duration(s)*time.Second, 2, 3)).To(Equal("1, probe after quarantine"))
		}
		Expect(pick(10*time.Second+quarantine.Max, 2, 3)).To(Equal("1, only one left"))
		By("keeping the quarantine of an endpoint that got no probes")
		fails(2, 0)
		Expect(pick(time.Hour, 1, 3)).To(Equal("2, probe after quarantine"))
		By("starting a new quarantine when the endpoint refuses a connection")
		fails(1, time.Hour)
		Expect(pick(time.Hour+20*time.Second, 2, 3)).To(Equal("1, probe after quarantine"))
	})

	DescribeTable("doubles the quarantine with each consecutive failure, up to the maximum",
		func(failures int, length time.Duration) {
			e := pool.Cluster.Find(addr(1))
			now := start
			for i := range failures {
				now = now.Add(time.Duration(i) * time.Hour)
				fail(e, now, now, quarantine)
			}
			period := e.Health(now.Add(length - 1))
			Expect(period).To(Equal(balance.Health{State: balance.Down, By: balance.ConnectFailed, Since: start, Until: now.Add(length), Failures: failures, Err: errRefused}))
			Expect(e.Health(period.Until).State).To(Equal(balance.HalfOpen))
		},
		Entry(nil, 1, 10*time.Second),
		Entry(nil, 2, 20*time.Second),
		Entry(nil, 3, 40*time.Second),
		Entry(nil, 4, 80*time.Second),
		Entry(nil, 5, 2*time.Minute),
		Entry(nil, 50, 2*time.Minute),
	)

	It("does not double the quarantine if no attempt has failed for the maximum, even without an answer", func() {
		e := pool.Cluster.Find(addr(1))
		fail(e, start, start, quarantine)
		Expect(pick(10*time.Second, 2, 3)).To(Equal("1, probe after quarantine"))
		later := start.Add(10*time.Second + quarantine.Max)
		Expect(e.Health(later).State).To(Equal(balance.Up))
		fail(e, later, later, quarantine)
		Expect(e.Health(later)).To(And(HaveField("Failures", 1), HaveField("Until", later.Add(quarantine.First))))
	})

	It("counts failures of concurrent attempts as one", func() {
		e := pool.Cluster.Find(addr(1))
		for i := range 100 {
			fail(e, start.Add(time.Duration(i)*time.Millisecond), start.Add(250*time.Millisecond), quarantine)
		}
		period := e.Health(start.Add(time.Second))
		Expect(period.Failures).To(Equal(1))
		Expect(period.Until).To(Equal(start.Add(10*time.Second + 250*time.Millisecond)))
		Expect(e.Failed.Load()).To(BeEquivalentTo(100))
	})

	Describe("whose endpoints are probed", func() {
		q := balance.Policy{First: time.Second, Max: 2 * time.Minute, UntilProbe: true}
		var e *balance.Endpoint
		BeforeEach(func() { e = pool.Cluster.Find(addr(1)) })
		quarantined := func(after time.Duration) bool {
			ok := e.Health(start.Add(after)).State == balance.Down
			return ok
		}

		It("skips a failed endpoint until a probe succeeds, and then uses it immediately", func() {
			fail(e, start, start, q)
			for range 6 {
				Expect(pick(time.Hour)).NotTo(HavePrefix("1,"), "no client serves as a probe")
			}
			period := e.Health(start.Add(time.Hour))
			Expect(period).To(Equal(balance.Health{State: balance.Down, By: balance.ConnectFailed, Since: start, Until: start.Add(time.Second), UntilProbe: true, Failures: 1, Err: errRefused}))

			c := recheck(e, balance.RecheckPassed, start.Add(time.Hour), nil, q)
			Expect(c.Next).To(BeZero())
			Expect(c.Notify).To(BeTrue())
			Expect(quarantined(time.Hour)).To(BeFalse())
			Expect(pick(time.Hour, 2, 3)).To(Equal("1, only one left"))
		})

		It("doubles the time to each probe, up to the maximum", func() {
			fail(e, start, start, q)
			now, silent := start.Add(time.Second), errors.New("no answer")
			var waits []time.Duration
			for range 9 {
				c := recheck(e, balance.RecheckFailed, now, silent, q)
				Expect(c.Notify).To(Equal(len(waits) < 7), "only a longer quarantine is reported")
				now = now.Add(c.Next)
				waits = append(waits, c.Next/time.Second)
				period := e.Health(now)
				Expect(period).To(Equal(balance.Health{State: balance.Down, By: balance.ConnectFailed, Since: start, Until: now, UntilProbe: true, Failures: 1 + len(waits), Err: silent}))
			}
			Expect(waits).To(Equal([]time.Duration{2, 4, 8, 16, 32, 64, 120, 120, 120}))
			Expect(e.Failed.Load()).To(BeEquivalentTo(1), "only clients' attempts count")
		})

		It("does not count a probe that could not be made as a failure", func() {
			fail(e, start, start, q)
			c := recheck(e, balance.RecheckInconclusive, start.Add(time.Second), errors.New("too many open files"), q)
			Expect(c.Next).To(Equal(time.Second))
			Expect(c.Notify).To(BeFalse())
			period := e.Health(start)
			Expect(period).To(Equal(balance.Health{State: balance.Down, By: balance.ConnectFailed, Since: start, Until: start.Add(2 * time.Second), UntilProbe: true, Failures: 1, Err: errRefused}))
		})

		It("keeps a quarantine when a client's attempt fails, and ends it when one succeeds", func() {
			fail(e, start, start, q)
			fail(e, start.Add(time.Minute), start.Add(time.Minute), q)
			period := e.Health(start)
			Expect(period.Until).To(Equal(start.Add(time.Second)))
			Expect(period.Failures).To(Equal(1))

			Expect(connected(e, start).Notify).To(BeTrue())
			Expect(quarantined(0)).To(BeFalse())
			c := recheck(e, balance.RecheckPassed, start.Add(time.Minute), nil, q)
			Expect(c.Next).To(BeZero())
			Expect(c.Notify).To(BeFalse(), "the recovery was already reported")
		})

		It("doubles the quarantine of an endpoint that answers only probes", func() {
			var waits []time.Duration
			now := start
			for range 4 {
				fail(e, now, now, q)
				period := e.Health(now)
				waits = append(waits, period.Until.Sub(now)/time.Second)
				now = period.Until
				recheck(e, balance.RecheckPassed, now, nil, q)
			}
			Expect(waits).To(Equal([]time.Duration{1, 2, 4, 8}))

			By("resetting the time when a client connects")
			Expect(connected(e, start).Notify).To(BeFalse(), "it had recovered")
			fail(e, now, now, q)
			period := e.Health(now)
			Expect(period.Until.Sub(now)).To(Equal(time.Second))

			By("resetting the time after a long period without failures")
			recheck(e, balance.RecheckPassed, now, nil, q)
			now = now.Add(q.Max)
			fail(e, now, now, q)
			period = e.Health(now)
			Expect(period.Until.Sub(now)).To(Equal(time.Second))
		})

		It("ignores failures of attempts that started before a successful probe", func() {
			fail(e, start, start, q)
			recheck(e, balance.RecheckPassed, start.Add(time.Second), nil, q)
			fail(e, start.Add(900*time.Millisecond), start.Add(1150*time.Millisecond), q)
			Expect(quarantined(1150 * time.Millisecond)).To(BeFalse())
		})
	})

	It("does not quarantine endpoints if quarantine is disabled", func() {
		e := pool.Cluster.Find(addr(1))
		fail(e, start, start, balance.Policy{})
		ok := e.Health(start).State == balance.Down
		Expect(ok).To(BeFalse())
	})
})

var _ = Describe("a Pool", func() {
	It("keeps the health of remaining endpoints, and the turn", func() {
		var pool balance.Pool
		pool.Update(port(endpoints(1, 2, 3)), start)
		pool.Cluster.Pick(balance.Request{Now: start})
		fail(pool.Cluster.Find(addr(2)), start, start, quarantine)

		list := endpoints(2, 3, 4)
		list[0].Terminating = true
		gone := pool.Update(port(list), start)

		Expect(gone).To(HaveLen(1))
		Expect(gone[0].Addr).To(Equal(addr(1)))
		two := pool.Cluster.Find(addr(2))
		Expect(two.Terminating).To(BeTrue())
		ok := two.Health(start).State == balance.Down
		Expect(ok).To(BeTrue())
		c, _ := pool.Cluster.Pick(balance.Request{Now: start})
		Expect(c.Endpoint.Addr).To(Equal(addr(3)))
	})

	It("forgets the health of an endpoint whose Pod was replaced or that was removed", func() {
		var pool balance.Pool
		list := endpoints(1)
		list[0].Pod = "default/old"
		pool.Update(port(list), start)
		fail(pool.Cluster.Find(addr(1)), start, start, quarantine)

		list = endpoints(1)
		list[0].Pod = "default/new"
		Expect(pool.Update(port(list), start)).To(HaveLen(1))
		ok := pool.Cluster.Find(addr(1)).Health(start).State == balance.Down
		Expect(ok).To(BeFalse())

		fail(pool.Cluster.Find(addr(1)), start, start, quarantine)
		Expect(pool.Update(port(nil), start)).To(HaveLen(1))
		Expect(pool.Update(port(list), start)).To(BeEmpty())
		ok = pool.Cluster.Find(addr(1)).Health(start).State == balance.Down
		Expect(ok).To(BeFalse())
	})

	It("records since when endpoints are leaving, until they return or have no connections", func() {
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
		fail(one, start, start, quarantine)

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
		ok := back.Health(start).State == balance.Down
		Expect(ok).To(BeFalse())
		update(endpoints(4))
		Expect(leaving()).To(Equal(map[netip.AddrPort]time.Duration{addr(1): 4 * time.Second}))
	})
})

var _ = Describe("an endpoint that is listed again while it has connections", func() {
	It("is in its state since then", func() {
		pool := new(balance.Pool)
		pool.Update(port(endpoints(1, 2)), start)
		pool.All[0].Take()
		Expect(pool.All[0].Since(1, start, false)).To(BeTemporally("==", start))
		pool.Update(port(endpoints(2)), start.Add(time.Minute))
		again := start.Add(time.Hour)
		pool.Update(port(endpoints(1, 2)), again)
		Expect(pool.All[0].Active.Load()).To(BeEquivalentTo(1))
		Expect(pool.All[0].Since(1, again, false)).To(BeTemporally("==", again))
	})
})

var _ = Describe("More than 1,024 endpoints", func() {
	list := make([]config.Endpoint, 10_000)
	for i := range list {
		list[i] = config.Endpoint{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 80), Ready: true, Serving: true}
	}
	var pool *balance.Pool
	pick := func(after time.Duration, tried ...netip.AddrPort) balance.Choice {
		GinkgoHelper()
		c, ok := pool.Cluster.Pick(balance.Request{Now: start.Add(after), Tried: tried})
		Expect(ok).To(BeTrue())
		return c
	}
	BeforeEach(func() { pool = new(balance.Pool) })

	It("are not each looked at for every choice if few are usable, but again after a microsecond for each", func() {
		pool.Update(port(list), start)
		for i, e := range pool.All {
			if i != 3000 && i != 7000 {
				fail(e, start, start, quarantine)
			}
		}
		Expect(pick(0).Endpoint).To(BeIdenticalTo(pool.All[3000]))
		Expect(pick(9*time.Millisecond).Endpoint).To(BeIdenticalTo(pool.All[3000]), "without another look at thousands")
		Expect(pick(9*time.Millisecond, list[3000].Addr).Endpoint).To(BeIdenticalTo(pool.All[7000]))
		Expect(pick(20 * time.Millisecond).Endpoint).To(BeIdenticalTo(pool.All[3000]))
		fail(pool.All[3000], start, start.Add(20*time.Millisecond), quarantine)
		Expect(pick(21 * time.Millisecond).Endpoint).To(BeIdenticalTo(pool.All[7000]))
	})

	It("get equal shares if only some neighbors are usable", func() {
		pool.Update(port(list), start)
		for i, e := range pool.All {
			if i < 5000 || i >= 5100 {
				fail(e, start, start, quarantine)
			}
		}
		shares := map[*balance.Endpoint]int{}
		for range 1000 {
			shares[pick(0).Endpoint]++
		}
		Expect(shares).To(HaveLen(100))
		Expect(shares).To(HaveEach(10))
	})

	It("are not each looked at for every choice if all are in quarantine, but again after a microsecond for each", func() {
		list := list[:2000]
		pool.Update(port(list), start)
		for _, e := range pool.All {
			fail(e, start, start, quarantine)
		}
		Expect(pick(0).Reason).To(Equal(balance.LastResort))
		connected(pool.All[1000], start.Add(time.Millisecond))
		first := pick(time.Millisecond)
		Expect(first.Reason).To(Equal(balance.LastResort))
		second := pick(time.Millisecond, first.Endpoint.Addr)
		Expect(second.Reason).To(Equal(balance.LastResort))
		Expect(second.Endpoint).NotTo(BeIdenticalTo(first.Endpoint))
		found := pick(2 * time.Millisecond)
		Expect(found.Endpoint).To(BeIdenticalTo(pool.All[1000]))
		Expect(found.Reason).To(Equal(balance.ByTurn))
	})
})
