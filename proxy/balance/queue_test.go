package balance_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/proxy/balance"
)

// bounded is a Pool with endpoints 10.0.0.n:80, each of which may have so many connections.
type bounded struct {
	balance.Pool
	port config.ServicePort

	mu    sync.Mutex
	names []string // of clients, as they are called
}

func newBounded(limit int, ns ...int) *bounded {
	b := &bounded{}
	b.port.QueueTimeout = time.Minute
	b.update(limit, ns...)
	return b
}

// called returns the names of those who were called.
func (b *bounded) called() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.names
}

func (b *bounded) update(limit int, ns ...int) {
	list := endpoints(ns...)
	b.port.EndpointLimit, b.port.Endpoints, b.port.Cluster, b.port.Internal, b.port.External = limit, list, list, list, list
	b.Update(b.port, time.Now())
}

// waiter is a client.
type waiter struct {
	*balance.Place
	name string
	got  *balance.Endpoint
	why  balance.Reason
}

// comes lets a client come, who may go to the endpoints of set.
func (b *bounded) comes(name string, set *balance.Set, had int, tried ...int) *waiter {
	w := &waiter{name: name, Place: new(balance.Place)}
	b.takes(w, set, had, tried...)
	return w
}

// takes lets a client come again.
func (b *bounded) takes(w *waiter, set *balance.Set, had int, tried ...int) {
	a := balance.Ask{Now: time.Now()}
	var before netip.AddrPort
	if had > 0 {
		before = addr(had)
	}
	for _, n := range tried {
		a.Tried = append(a.Tried, addr(n))
	}
	c, ok := set.Take(a, before, w.Place)
	switch {
	case ok:
		w.got, w.why = c.Endpoint, c.Reason
	case c.Full():
		w.Called(func() {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.names = append(b.names, w.name)
		})
	}
}

// collects lets a client that was called have what it was given.
func (b *bounded) collects(w *waiter, set *balance.Set) string {
	if waits, given := w.InLine(); waits || !given {
		return fmt.Sprintf("waits: %t, given: %t", waits, given)
	}
	b.takes(w, set, 0)
	return fmt.Sprintf("%d, %s", w.got.Addr.Addr().As4()[3], w.why)
}

// inBubble runs f with a clock of its own.
func inBubble(t *testing.T, f func(*GomegaWithT)) {
	synctest.Test(t, func(t *testing.T) { f(NewWithT(t)) })
}

func TestLineIsServedInOrder(t *testing.T) {
	inBubble(t, func(g *GomegaWithT) {
		b := newBounded(1, 1, 2)
		first, second := b.comes("first", b.Cluster, 0), b.comes("second", b.Cluster, 0)
		g.Expect(first.got).NotTo(BeIdenticalTo(second.got))
		var line []*waiter
		for i := range 4 {
			line = append(line, b.comes(fmt.Sprint(i), b.Cluster, 0))
		}
		g.Expect(b.Cluster.InLine()).To(Equal(4))
		second.got.Release()
		g.Expect(b.called()).To(Equal([]string{"0"}))
		g.Expect(b.collects(line[0], b.Cluster)).To(Equal(fmt.Sprintf("%d, first in line", second.got.Addr.Addr().As4()[3])))
		g.Expect(line[1].Leave()).To(BeTrue())
		first.got.Release()
		g.Expect(b.called()).To(Equal([]string{"0", "2"}))

		late := b.comes("late", b.Cluster, 0)
		b.collects(line[2], b.Cluster)
		line[2].got.Release()
		g.Expect(b.called()).To(Equal([]string{"0", "2", "3"}))
		g.Expect(line[3].Leave()).To(BeFalse(), "it has been given an endpoint")
		line[3].Abandon()
		g.Expect(b.called()).To(Equal([]string{"0", "2", "3", "late"}))
		g.Expect(b.collects(late, b.Cluster)).To(HaveSuffix("first in line"))
		g.Expect(b.Cluster.InLine()).To(BeZero())
	})
}

func TestWhoComesAgainKeepsTheTurn(t *testing.T) {
	inBubble(t, func(g *GomegaWithT) {
		b := newBounded(1, 1)
		has := b.comes("has", b.Cluster, 0)
		early, late := b.comes("early", b.Cluster, 0), b.comes("late", b.Cluster, 0)
		g.Expect(early.Leave()).To(BeTrue())
		b.takes(early, b.Cluster, 0)
		has.got.Release()
		g.Expect(b.called()).To(Equal([]string{"early"}))
		g.Expect(late.Leave()).To(BeTrue())
	})
}

func TestNobodyOvertakes(t *testing.T) {
	inBubble(t, func(g *GomegaWithT) {
		b := newBounded(1, 1, 2)
		b.Update(config.ServicePort{EndpointLimit: 1, QueueTimeout: time.Minute,
			Endpoints: b.port.Endpoints, Cluster: b.port.Endpoints, Internal: b.port.Endpoints[:1], External: b.port.Endpoints[1:]}, time.Now())
		one, two := b.comes("one", b.Internal, 0), b.comes("two", b.External, 0)
		ofOne, ofTwo := b.comes("of 1", b.Internal, 0), b.comes("of 2", b.External, 0)
		two.got.Release()
		g.Expect(b.called()).To(Equal([]string{"of 2"}), "who waits before it cannot use that one")
		b.collects(ofTwo, b.External)
		ofTwo.got.Release()
		g.Expect(b.comes("any", b.Cluster, 0).got.Addr).To(Equal(addr(2)), "nobody in line can use it")
		one.got.Release()
		g.Expect(b.collects(ofOne, b.Internal)).To(Equal("1, first in line"))
	})
}

func TestAClientWaitsForTheEndpointThatItHad(t *testing.T) {
	inBubble(t, func(g *GomegaWithT) {
		b := newBounded(1, 1, 2)
		one := b.comes("one", b.Cluster, 1)
		g.Expect(one.why).To(Equal(balance.Affinity))
		had := b.comes("had", b.Cluster, 1)
		g.Expect(b.Cluster.InLine()).To(Equal(1))
		other := b.comes("other", b.Cluster, 0)
		g.Expect(other.got.Addr).To(Equal(addr(2)))
		other.got.Release()
		g.Expect(b.called()).To(BeEmpty(), "that is another one")
		fail(one.got, time.Now(), time.Now(), quarantine)
		g.Expect(b.collects(had, b.Cluster)).To(Equal("2, first in line"))
	})
}

func TestNobodyIsForgotten(t *testing.T) {
	for name, change := range map[string]func(b *bounded, has *waiter){
		"when an endpoint comes":               func(b *bounded, _ *waiter) { b.update(1, 1, 2) },
		"when the endpoint is another":         func(b *bounded, _ *waiter) { b.update(1, 2) },
		"when the bound is raised":             func(b *bounded, _ *waiter) { b.update(2, 1) },
		"when the bound is taken away":         func(b *bounded, _ *waiter) { b.update(0, 1) },
		"when a connection ends":               func(_ *bounded, has *waiter) { has.got.Release() },
		"when there is no endpoint any more":   func(b *bounded, _ *waiter) { b.update(1) },
		"when a connection ends after a break": func(b *bounded, has *waiter) { b.update(1, 1); has.got.Release() },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(g *GomegaWithT) {
				b := newBounded(1, 1)
				has, w := b.comes("has", b.Cluster, 0), b.comes("waits", b.Cluster, 0)
				g.Expect(b.called()).To(BeEmpty())
				change(b, has)
				g.Expect(b.called()).To(Equal([]string{"waits"}))
				_, given := w.InLine()
				g.Expect(given).To(Equal(len(b.port.Endpoints) > 0))
			})
		})
	}
}

func TestEndpointsInQuarantine(t *testing.T) {
	// 1 is full, 2 has failed and has room.
	begin := func(probed bool) (*bounded, *waiter) {
		b := newBounded(1, 1, 2)
		q := quarantine
		q.Probed = probed
		fail(b.All[1], time.Now(), time.Now(), q)
		b.comes("has", b.Cluster, 0)
		return b, b.comes("waits", b.Cluster, 0)
	}
	inBubble(t, func(g *GomegaWithT) {
		b, w := begin(false)
		time.Sleep(quarantine.First - 1)
		synctest.Wait()
		g.Expect(b.called()).To(BeEmpty())
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		g.Expect(b.collects(w, b.Cluster)).To(Equal("2, first in line"), "its quarantine is over by itself")
	})
	inBubble(t, func(g *GomegaWithT) {
		b, w := begin(true)
		time.Sleep(time.Hour)
		g.Expect(b.called()).To(BeEmpty())
		recheck(b.All[1], balance.RecheckPassed, time.Now(), nil, quarantine)
		g.Expect(b.collects(w, b.Cluster)).To(Equal("2, first in line"), "a probe was answered")
	})
	inBubble(t, func(g *GomegaWithT) {
		b, w := begin(true)
		fail(b.All[0], time.Now(), time.Now(), quarantine)
		g.Expect(b.collects(w, b.Cluster)).To(Equal("2, first in line"), "all are in quarantine: it is as good as the other")
	})
	inBubble(t, func(g *GomegaWithT) {
		b, w := begin(true)
		connected(b.All[1], start)
		g.Expect(b.collects(w, b.Cluster)).To(Equal("2, first in line"), "a client was connected to it")
	})
	inBubble(t, func(g *GomegaWithT) {
		b, w := begin(true)
		check(b.All[0], time.Now(), errRefused, time.Second, 1, 1)
		g.Expect(b.collects(w, b.Cluster)).To(Equal("2, first in line"), "the other has failed probes")
	})
	inBubble(t, func(g *GomegaWithT) {
		b, _ := begin(true)
		check(b.All[1], time.Now(), errRefused, time.Second, 1, 1)
		connected(b.All[1], start)
		g.Expect(b.called()).To(BeEmpty())
		b.All[1].Report(balance.Report{Kind: balance.CheckOff, Now: time.Now()}, balance.Policy{})
		g.Expect(b.called()).To(Equal([]string{"waits"}), "it is not probed any more")
	})
	inBubble(t, func(g *GomegaWithT) {
		b, w := begin(true)
		b.All[0].Report(balance.Report{Kind: balance.ConnectFailed, Now: time.Now(), Err: errRefused, Client: netip.MustParseAddr("192.0.2.1")}, quarantine)
		g.Expect(b.collects(w, b.Cluster)).To(Equal("2, first in line"))
	})
}

func TestSchedulersPassOverEndpointsWithoutRoom(t *testing.T) {
	for _, name := range config.SchedulerNames() {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(g *GomegaWithT) {
				b := newBounded(0, 1, 2, 3)
				g.Expect(b.port.Scheduler.UnmarshalText([]byte(name))).To(Succeed())
				b.port.Endpoints[0].Weight = config.WeightOf(20)
				b.port.EndpointLimit = 4
				b.Update(b.port, time.Now())
				has := map[netip.AddrPort]int{}
				var last *waiter
				for range 12 {
					last = b.comes("has", b.Cluster, 0)
					g.Expect(last.got).NotTo(BeNil())
					has[last.got.Addr]++
				}
				g.Expect(has).To(Equal(map[netip.AddrPort]int{addr(1): 4, addr(2): 4, addr(3): 4}))
				c, ok := b.Cluster.Pick(balance.Ask{Now: time.Now()})
				g.Expect(ok).To(BeFalse())
				g.Expect(c.Full()).To(BeTrue())
				b.comes("waits", b.Cluster, 0)
				last.got.Release()
				g.Expect(b.called()).To(Equal([]string{"waits"}))
			})
		})
	}
}

// Whatever happens in whatever order, no endpoint has more than it may, nobody waits who could
// go on, and nobody goes before another who could have gone there.
func TestLineHoldsWhateverHappens(t *testing.T) {
	for seed := range uint64(100) {
		inBubble(t, func(g *GomegaWithT) {
			r := rand.New(rand.NewPCG(seed, 18))
			b := newBounded(2, 1, 2, 3)
			b.port.Scheduler = config.Scheduler(1 + r.IntN(len(config.SchedulerNames())))
			var waiting, having []*waiter
			ns, limit := []int{1, 2, 3}, 2
			over := map[*balance.State]int64{} // those that have more since before the bound was lowered
			update := func() {
				for _, e := range b.All {
					over[e.State] = e.Active.Load()
				}
				b.update(limit, ns...)
			}
			for step := range 300 {
				switch what := r.IntN(20); {
				case what < 8:
					had := 0
					if r.IntN(4) == 0 {
						had = 1 + r.IntN(5)
					}
					var tried []int
					if r.IntN(5) == 0 {
						tried = append(tried, 1+r.IntN(5))
					}
					w := b.comes(fmt.Sprint(step), b.Cluster, had, tried...)
					if w.got != nil {
						having = append(having, w)
					} else if in, _ := w.InLine(); in {
						waiting = append(waiting, w)
					}
				case what < 14 && len(having) > 0:
					i := r.IntN(len(having))
					e := having[i].got
					having = slices.Delete(having, i, i+1)
					if r.IntN(3) == 0 {
						fail(e, time.Now(), time.Now(), balance.Policy{First: time.Second, Max: time.Minute, Probed: r.IntN(2) == 0})
					} else if r.IntN(2) == 0 {
						connected(e, start)
					}
					e.Release()
				case what < 15:
					n := 1 + r.IntN(5)
					if i := slices.Index(ns, n); i >= 0 {
						ns = slices.Delete(ns, i, i+1)
					} else {
						ns = append(ns, n)
						slices.Sort(ns)
					}
					update()
				case what < 16:
					limit = r.IntN(4)
					update()
				case what < 17 && len(waiting) > 0:
					waiting[r.IntN(len(waiting))].Abandon()
				case what < 18 && len(b.All) > 0:
					e := b.All[r.IntN(len(b.All))]
					recheck(e, balance.RecheckPassed, time.Now(), nil, quarantine)
				default:
					time.Sleep(time.Duration(r.IntN(1500)) * time.Millisecond)
					synctest.Wait()
				}
				var still []*waiter
				for _, w := range waiting {
					in, given := w.InLine()
					switch {
					case in:
						still = append(still, w)
					case given:
						b.takes(w, b.Cluster, 0)
						g.Expect(w.got).NotTo(BeNil())
						having = append(having, w)
					}
				}
				waiting = still
				g.Expect(b.Cluster.InLine()).To(Equal(len(waiting)), "seed %d, step %d", seed, step)
				for _, e := range b.All {
					now := e.Active.Load()
					over[e.State] = min(over[e.State], now)
					if limit > 0 {
						g.Expect(now).To(BeNumerically("<=", max(int64(limit), over[e.State])), "seed %d, step %d", seed, step)
					}
				}
				for _, w := range waiting {
					g.Expect(w.CouldGoOn(time.Now())).To(BeFalse(), "seed %d, step %d: %s waits and need not", seed, step, w.name)
				}
			}
			for len(having) > 0 || len(waiting) > 0 {
				for _, w := range having {
					w.got.Release()
				}
				having = nil
				for _, w := range waiting {
					if in, given := w.InLine(); given {
						b.takes(w, b.Cluster, 0)
						having = append(having, w)
					} else {
						g.Expect(in && len(ns) > 0 && limit > 0).To(BeTrue(), "seed %d", seed)
					}
				}
				waiting = slices.DeleteFunc(waiting, func(w *waiter) bool { return w.got != nil })
				g.Expect(len(having)+len(waiting) == 0 || len(having) > 0).To(BeTrue(), "seed %d: nobody goes on, and %d wait", seed, len(waiting))
			}
		})
	}
}

// Goroutines on all processors come, wait, leave and end, while the bound changes.
func TestLineUnderConcurrency(t *testing.T) {
	g := NewWithT(t)
	b := newBounded(3, 1, 2, 3)
	var most atomic.Int64
	var clients, changes sync.WaitGroup
	stop := make(chan struct{})
	set := b.Cluster // leads to those that take its place
	changes.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
				b.update(1+i%3, 1, 2, 3)
			}
		}
	})
	for i := range 16 {
		clients.Go(func() {
			for n := range 500 {
				p := new(balance.Place)
				for {
					c, ok := set.Take(balance.Ask{Now: time.Now()}, netip.AddrPort{}, p)
					if ok {
						for m := most.Load(); c.Endpoint.Active.Load() > m && !most.CompareAndSwap(m, c.Endpoint.Active.Load()); m = most.Load() {
						}
						c.Endpoint.Release()
						break
					}
					called := make(chan struct{})
					p.Called(func() { close(called) })
					if (i+n)%7 == 0 {
						p.Abandon()
						break
					}
					<-called
				}
			}
		})
	}
	clients.Wait()
	close(stop)
	changes.Wait()
	g.Expect(most.Load()).To(BeNumerically("<=", 3))
	g.Expect(b.Cluster.InLine()).To(BeZero())
	for _, e := range b.All {
		g.Expect(e.Active.Load()).To(BeZero())
	}
}
