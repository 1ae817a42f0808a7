package balance_test

import (
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/proxy/balance"
)

// crowd is a pool with endpoints 10.0.0.n:80, and its clients.
type crowd struct {
	*balance.Pool
	scheduler config.Scheduler
	open      []*balance.Endpoint // of each open connection
	after     time.Duration
}

func newCrowd(name string, list ...config.Endpoint) *crowd {
	c := &crowd{Pool: new(balance.Pool)}
	Expect(c.scheduler.UnmarshalText([]byte(name))).To(Succeed())
	c.update(list...)
	return c
}

func (c *crowd) update(list ...config.Endpoint) {
	p := port(list)
	p.Scheduler = c.scheduler
	c.Update(p, start)
}

// weighed returns endpoints 1, 2, … with these weights.
func weighed(weights ...int) (list []config.Endpoint) {
	for i, w := range weights {
		e := endpoints(i + 1)[0]
		e.Weight = config.WeightOf(w)
		list = append(list, e)
	}
	return list
}

func client(n int) netip.Addr { return netip.AddrFrom4([4]byte{192, 0, byte(n >> 8), byte(n)}) }

func number(e *balance.Endpoint) int { return int(e.Addr.Addr().As4()[3]) }

func (c *crowd) choose(n int, tried ...int) (balance.Choice, bool) {
	ask := balance.Request{Now: start.Add(c.after), Client: client(n), VIP: netip.MustParseAddr("10.96.0.1")}
	for _, t := range tried {
		ask.Tried = append(ask.Tried, addr(t))
	}
	peeked, _, _ := c.Cluster.Peek(0, ask)
	choice, ok := c.Cluster.Pick(ask)
	Expect(choice).To(Equal(peeked), "Peek predicts the choice of Pick")
	return choice, ok
}

// connect opens a connection of client n, keeps it open, and returns the number of its endpoint.
func (c *crowd) connect(n int, tried ...int) int {
	choice, ok := c.choose(n, tried...)
	Expect(ok).To(BeTrue())
	choice.Endpoint.Take()
	c.open = append(c.open, choice.Endpoint)
	return number(choice.Endpoint)
}

// end ends a connection to an endpoint.
func (c *crowd) end(n int) {
	i := slices.IndexFunc(c.open, func(e *balance.Endpoint) bool { return number(e) == n })
	c.open[i].Release()
	c.open = slices.Delete(c.open, i, i+1)
}

func (c *crowd) fail(n int) {
	now := start.Add(c.after)
	fail(c.Cluster.Find(addr(n)), now, now, quarantine)
}

// shares returns the number of clients that go to each endpoint. Their connections end at once.
func (c *crowd) shares(clients int) map[int]int {
	counts := map[int]int{}
	for n := range clients {
		choice, _ := c.choose(n)
		counts[number(choice.Endpoint)]++
	}
	return counts
}

var _ = Describe("every scheduler", func() {
	for _, name := range config.SchedulerNames() {
		Describe(name, func() {
			It("distributes connections evenly among equal endpoints", func() {
				c := newCrowd(name, endpoints(1, 2, 3, 4)...)
				if name == "dh" {
					Expect(c.shares(100)).To(HaveLen(1), "there is one VIP")
					return
				}
				for n := range 4000 {
					c.connect(n)
				}
				for _, e := range c.All {
					Expect(e.Active.Load()).To(BeNumerically("~", 1000, 120))
				}
			})

			It("selects each untried endpoint once", func() {
				c := newCrowd(name, weighed(1, 5, 1, 9, 1)...)
				var tried []int
				for range 5 {
					choice, ok := c.choose(7, tried...)
					Expect(ok).To(BeTrue())
					Expect(tried).NotTo(ContainElement(number(choice.Endpoint)))
					if tried = append(tried, number(choice.Endpoint)); len(tried) == 5 {
						Expect(choice.Reason).To(Equal(balance.OnlyOne))
					}
				}
				_, ok := c.choose(7, tried...)
				Expect(ok).To(BeFalse())
			})

			It("skips quarantined endpoints, and sends a probe when the quarantine has expired", func() {
				c := newCrowd(name, endpoints(1, 2, 3)...)
				c.fail(1)
				c.fail(2)
				Expect(c.shares(30)).To(Equal(map[int]int{3: 30}))
				choice, _ := c.choose(1, 3)
				Expect(choice.Reason).To(Equal(balance.LastResort), "a quarantined endpoint is better than none")
				c.fail(3)
				choice, _ = c.choose(1)
				Expect(choice.Reason).To(Equal(balance.LastResort))
				c.after = quarantine.First
				choice, _ = c.choose(1)
				Expect(choice.Reason).To(Equal(balance.Probe))
				connected(choice.Endpoint, start)
				Expect(c.shares(20)).To(HaveKey(number(choice.Endpoint)))
			})

			It("works with one endpoint, with none, and with those added later", func() {
				c := newCrowd(name, endpoints(1)...)
				Expect(c.connect(1)).To(Equal(1))
				c.update()
				_, ok := c.choose(1)
				Expect(ok).To(BeFalse())
				c.end(1)
				c.update(endpoints(2, 3)...)
				Expect(c.shares(20)).NotTo(HaveKey(1))
			})

			It("finds the usable endpoint if all others are in quarantine", func() {
				var list []config.Endpoint
				for n := range 200 {
					list = append(list, endpoints(n+1)...)
				}
				c := newCrowd(name, list...)
				for n := range 199 {
					c.fail(n + 1)
				}
				Expect(c.shares(50)).To(Equal(map[int]int{200: 50}))
			})

			It("is safe for use while endpoints change", func() {
				c := newCrowd(name, endpoints(1, 2, 3)...)
				var sets sync.Map
				sets.Store(0, c.Cluster)
				var wg sync.WaitGroup
				for worker := range 4 {
					wg.Go(func() {
						for n := range 500 {
							set, _ := sets.Load(0)
							choice, _ := set.(*balance.Set).Pick(balance.Request{Now: start, Client: client(worker*500 + n)})
							choice.Endpoint.Take()
							choice.Endpoint.Release()
						}
					})
				}
				for i := range 50 {
					c.update(append(endpoints(1, 2, 3), endpoints(4+i%3)...)...)
					sets.Store(0, c.Cluster)
				}
				wg.Wait()
				for _, e := range c.All {
					Expect(e.Active.Load()).To(BeZero())
				}
			})
		})
	}

	DescribeTable("distributes connections by weight", func(name string) {
		c := newCrowd(name, weighed(1, 3, 2)...)
		for n := range 6000 {
			c.connect(n)
		}
		for i, e := range c.All {
			Expect(e.Active.Load()).To(BeNumerically("~", []int{1000, 3000, 2000}[i], 200))
		}
	}, Entry(nil, "rr"), Entry(nil, "wrr"), Entry(nil, "random"), Entry(nil, "lc"), Entry(nil, "wlc"), Entry(nil, "p2c"),
		Entry(nil, "sed"), Entry(nil, "nq"), Entry(nil, "sh"), Entry(nil, "maglev"))
})

var _ = Describe("rr", func() {
	It("interleaves the turns of weighted endpoints, and gives each its exact share", func() {
		c := newCrowd("rr", weighed(1, 4, 2)...)
		for range 3 {
			var turns []int
			for range 7 {
				turns = append(turns, c.connect(1))
			}
			counts := map[int]int{}
			for i, n := range turns {
				counts[n]++
				if n != 2 {
					Expect(turns[(i+1)%7]).NotTo(Equal(n))
				}
			}
			Expect(counts).To(Equal(map[int]int{1: 1, 2: 4, 3: 2}))
		}
	})

	It("distributes the turns of a quarantined endpoint by weight", func() {
		c := newCrowd("rr", weighed(1, 5, 2)...)
		c.fail(2)
		Expect(c.shares(300)).To(Equal(map[int]int{1: 100, 3: 200}))
	})
})

var _ = Describe("lc", func() {
	It("selects the endpoint with the fewest open connections", func() {
		c := newCrowd("lc", endpoints(1, 2, 3)...)
		Expect([]int{c.connect(0), c.connect(0), c.connect(0)}).To(ConsistOf(1, 2, 3))
		c.end(2)
		Expect(c.connect(0)).To(Equal(2))
		c.connect(0, 1, 2)
		c.connect(0, 1, 3)
		Expect(c.connect(0)).To(Equal(1))
		c.end(3)
		c.end(3)
		Expect([]int{c.connect(0), c.connect(0)}).To(Equal([]int{3, 3}))
	})

	It("rotates among endpoints with the same number of connections", func() {
		c := newCrowd("lc", endpoints(1, 2, 3)...)
		var turns []int
		for range 6 {
			n := c.connect(0)
			turns = append(turns, n)
			c.end(n)
		}
		Expect(turns).To(Equal([]int{1, 2, 3, 1, 2, 3}))
	})

	It("counts connections from before it became the scheduler and from before an update", func() {
		c := newCrowd("rr", endpoints(1, 2)...)
		for range 4 {
			c.connect(0)
		}
		c.scheduler = config.LeastConnections
		c.update(endpoints(1, 2, 3)...)
		Expect([]int{c.connect(0), c.connect(0)}).To(Equal([]int{3, 3}))
		c.end(1)
		Expect(c.connect(0)).To(Equal(1))
		c.update(endpoints(2, 3)...)
		c.end(1) // its endpoint was removed
		c.update(endpoints(2, 3, 4)...)
		Expect([]int{c.connect(0), c.connect(0)}).To(Equal([]int{4, 4}))
	})

	It("counts all connections of an endpoint for each policy", func() {
		p := port(endpoints(1, 2, 3))
		p.Scheduler, p.External = config.LeastConnections, endpoints(2, 3)
		c := &crowd{Pool: new(balance.Pool)}
		c.Update(p, start)
		for range 3 {
			c.connect(0)
		}
		c.connect(0, 1, 3) // endpoint 2 has two connections
		choice, _ := c.External.Pick(balance.Request{Now: start})
		Expect(number(choice.Endpoint)).To(Equal(3))
	})

	It("compares 1,024 endpoints from the turn on, and all if none of these is usable", func() {
		list := make([]config.Endpoint, 1500)
		for i := range list {
			list[i].Addr = netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 80)
		}
		c := newCrowd("lc", list...)
		idle := c.All[1200]
		for _, e := range c.All {
			if e != idle {
				e.Take()
			}
		}
		chosen := func() int {
			choice, _ := c.choose(0)
			return slices.Index(c.All, choice.Endpoint)
		}
		for turn := range 200 {
			Expect(chosen()).To(Equal(map[bool]int{true: turn, false: 1200}[turn+1024 <= 1200]), "turn %d", turn)
		}
		for _, e := range append(c.All[:100:100], c.All[200:]...) {
			fail(e, start, start, quarantine)
		}
		for range 1300 { // the search window reaches all endpoints
			Expect(chosen()).To(BeNumerically("~", 150, 50))
		}
	})

	It("always selects an endpoint with the lowest load", func() {
		c := newCrowd("lc", weighed(1, 2, 3, 1, 2, 3, 7)...)
		for i := range 5000 {
			if i%3 == 2 {
				c.end(number(c.open[(i*7)%len(c.open)]))
				continue
			}
			least := math.Inf(1)
			load := func(e *balance.Endpoint) float64 { return float64(e.Active.Load()) / float64(e.Weight.Int()) }
			for _, e := range c.All {
				least = min(least, load(e))
			}
			choice, _ := c.choose(i)
			Expect(load(choice.Endpoint)).To(Equal(least))
			choice.Endpoint.Take()
			c.open = append(c.open, choice.Endpoint)
		}
	})
})

var _ = Describe("sed and nq", func() {
	It("differ for an idle weak endpoint: nq selects it before a busy strong one", func() {
		sed, nq := newCrowd("sed", weighed(1, 4)...), newCrowd("nq", weighed(1, 4)...)
		var turns [2][]int
		for range 5 {
			turns[0], turns[1] = append(turns[0], sed.connect(0)), append(turns[1], nq.connect(0))
		}
		Expect(turns[0][:3]).To(Equal([]int{2, 2, 2}))
		Expect(turns[1][:2]).To(Equal([]int{2, 1}))
		for _, t := range turns {
			Expect(t).To(ContainElement(1))
		}
	})
})

var _ = Describe("p2c", func() {
	It("never selects the busiest endpoint", func() {
		c := newCrowd("p2c", endpoints(1, 2, 3)...)
		for range 50 {
			c.connect(0, 1, 3)
		}
		Expect(c.shares(40)).NotTo(HaveKey(2))
	})
})

// moved returns the share of 10,000 clients whose endpoint changes with change, and their previous endpoints.
func moved(c *crowd, change func()) (share float64, from map[int]bool) {
	const clients = 10000
	var before [clients]int
	for n := range clients {
		choice, _ := c.choose(n)
		before[n] = number(choice.Endpoint)
	}
	change()
	from = map[int]bool{}
	count := 0
	for n := range clients {
		if choice, _ := c.choose(n); number(choice.Endpoint) != before[n] {
			count++
			from[before[n]] = true
		}
	}
	return float64(count) / clients, from
}

var _ = Describe("hash schedulers", func() {
	ten := []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}
	for _, name := range []string{"sh", "maglev"} {
		Describe(name, func() {
			It("gives a client the same endpoint on each node", func() {
				a, b := newCrowd(name, endpoints(ten...)...), newCrowd(name, endpoints(ten...)...)
				b.FirstTurn = func() uint32 { return 12345 }
				for n := range 100 {
					Expect(a.connect(n)).To(Equal(b.connect(n)))
				}
			})

			It("moves only the clients of a quarantined endpoint, to all others, and back", func() {
				c := newCrowd(name, endpoints(ten...)...)
				share, from := moved(c, func() { c.fail(4) })
				Expect(share).To(BeNumerically("~", 0.1, 0.03))
				Expect(slices.Collect(maps.Keys(from))).To(Equal([]int{4}))
				Expect(c.shares(10000)).To(HaveLen(9))
				for n, count := range c.shares(10000) {
					Expect(count).To(BeNumerically("~", 1111, 150), fmt.Sprint(n))
				}
				share, _ = moved(c, func() { connected(c.Cluster.Find(addr(4)), start) })
				Expect(share).To(BeNumerically("~", 0.1, 0.03))
			})
		})
	}

	It("move few clients with maglev and many with sh when the endpoints change", func() {
		one, _ := moved(newCrowdThen("maglev", ten, append(ten[:10:10], 11)))
		Expect(one).To(BeNumerically("<", 0.13))
		one, _ = moved(newCrowdThen("maglev", ten, append(ten[:3:3], ten[4:]...)))
		Expect(one).To(BeNumerically("<", 0.15))
		one, _ = moved(newCrowdThen("sh", ten, append(ten[:10:10], 11)))
		Expect(one).To(BeNumerically(">", 0.4))
	})

	It("give the same result with maglev regardless of the order of updates", func() {
		a, b := newCrowd("maglev", endpoints(1, 2, 3)...), newCrowd("maglev", endpoints(2)...)
		b.update(endpoints(1, 2, 3)...)
		for n := range 100 {
			Expect(a.connect(n)).To(Equal(b.connect(n)))
		}
	})
})

func newCrowdThen(name string, before, after []int) (*crowd, func()) {
	c := newCrowd(name, endpoints(before...)...)
	return c, func() { c.update(endpoints(after...)...) }
}
