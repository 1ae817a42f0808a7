package balance_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/proxy/balance"
)

// bounded is a Pool and its clients. The Pool has endpoints 10.0.0.n:80, each with a connection limit.
type bounded struct {
	balance.Pool
	port    config.ServicePort
	waiting []*waiter
	looks   int // number of looks by clients that were woken
}

func newBounded(limit int, ns ...int) *bounded {
	b := &bounded{}
	b.port.QueueTimeout = time.Minute
	b.update(limit, ns...)
	return b
}

func (b *bounded) update(limit int, ns ...int) {
	list := endpoints(ns...)
	b.port.EndpointLimit, b.port.Endpoints, b.port.Cluster, b.port.Internal, b.port.External = limit, list, list, list, list
	b.Update(b.port, time.Now())
}

// waiter is a client in the queue.
type waiter struct {
	balance.Waiter
	name string
	set  func() *balance.Set // its endpoints
	ask  balance.Request
	had  netip.AddrPort
	got  *balance.Endpoint
	why  balance.Reason
}

func (b *bounded) cluster() *balance.Set  { return b.Cluster }
func (b *bounded) internal() *balance.Set { return b.Internal }
func (b *bounded) external() *balance.Set { return b.External }

// comes adds a client that may use the endpoints of set.
func (b *bounded) comes(name string, set func() *balance.Set, had int, tried ...int) *waiter {
	w := &waiter{name: name, set: set}
	if had > 0 {
		w.had = addr(had)
	}
	for _, n := range tried {
		w.ask.Tried = append(w.ask.Tried, addr(n))
	}
	if w.looks(); w.Waits() {
		b.waiting = append(b.waiting, w)
	}
	return w
}

// looks lets the client take an available endpoint.
func (w *waiter) looks() {
	w.ask.Now = time.Now()
	c, ok := w.set().Take(w.ask, w.had, &w.Waiter)
	if ok {
		w.got, w.why = c.Endpoint, c.Reason
	}
}

// serve runs woken clients until none is woken. If fronts is true, the clients at the front of a queue run too. It
// returns the clients that no longer wait, in order, as "name:endpoint" or "name:none".
func (b *bounded) serve(fronts bool) string {
	var served []string
	for again := true; again; {
		again = false
		all := fronts
		fronts = false
		for _, w := range slices.Clone(b.waiting) {
			select {
			case <-w.Woken():
				b.looks++
				again = true
			default:
				if !all || !w.Front() {
					continue
				}
			}
			if w.looks(); w.Waits() {
				continue
			}
			again, fronts = true, fronts || w.why == balance.Probe // other clients now skip that endpoint, and may have to use any
			b.waiting = slices.DeleteFunc(b.waiting, func(o *waiter) bool { return o == w })
			at := "none"
			if w.got != nil {
				at = fmt.Sprint(w.got.Addr.Addr().As4()[3])
			}
			served = append(served, w.name+":"+at)
		}
	}
	return strings.Join(served, " ")
}

// leaves removes a waiting client.
func (b *bounded) leaves(w *waiter) {
	w.Leave()
	b.waiting = slices.DeleteFunc(b.waiting, func(o *waiter) bool { return o == w })
}

// inBubble runs f with a fake clock.
func inBubble(t *testing.T, f func(*GomegaWithT)) {
	synctest.Test(t, func(t *testing.T) { f(NewWithT(t)) })
}

func TestQueueIsServedInOrder(t *testing.T) {
	inBubble(t, func(g *GomegaWithT) {
		b := newBounded(1, 1, 2)
		one, two := b.comes("one", b.cluster, 0), b.comes("two", b.cluster, 0)
		g.Expect([]netip.AddrPort{one.got.Addr, two.got.Addr}).To(Equal([]netip.AddrPort{addr(1), addr(2)}))
		var queue []*waiter
		for i := range 4 {
			queue = append(queue, b.comes(fmt.Sprint(i), b.cluster, 0))
		}
		g.Expect(b.Cluster.Queued()).To(Equal(4))
		g.Expect(b.serve(true)).To(BeEmpty())
		two.got.Release()
		late := b.comes("late", b.cluster, 0)
		g.Expect(late.got).To(BeNil(), "the slot is reserved for waiting clients")
		g.Expect(b.serve(false)).To(Equal("0:2"))
		b.leaves(queue[1])
		one.got.Release()
		g.Expect(b.serve(false)).To(Equal("2:1"))
		queue[0].got.Release()
		queue[2].got.Release()
		g.Expect(b.serve(false)).To(Equal("3:1 late:2"), "the last client takes the remaining slot")
		g.Expect(b.Cluster.Queued()).To(BeZero())
	})
}

// TestFreeSlotWakesFewClients expects that one slot wakes one client, and then the next in the queue, for any number of
// waiting clients and any order of their goroutines.
func TestFreeSlotWakesFewClients(t *testing.T) {
	inBubble(t, func(g *GomegaWithT) {
		b := newBounded(1, 1)
		has, want := b.comes("has", b.cluster, 0), ""
		for i := range balance.QueueLimit {
			b.comes(fmt.Sprint(i), b.cluster, 0)
		}
		g.Expect(b.comes("one more", b.cluster, 0).Waits()).To(BeFalse())
		b.serve(true)
		b.looks = 0
		queue := slices.Clone(b.waiting)
		for i := range balance.QueueLimit {
			rand.Shuffle(len(b.waiting), func(i, j int) { b.waiting[i], b.waiting[j] = b.waiting[j], b.waiting[i] })
			has.got.Release()
			want = fmt.Sprintf("%d:1", i)
			g.Expect(b.serve(false)).To(Equal(want))
			has = queue[i]
		}
		g.Expect(b.looks).To(BeNumerically("<", 2*balance.QueueLimit))
	})
}

// TestRetryingClientsAreServedFirst expects that clients whose attempt failed are ahead of those that wait, but
// only for endpoints that they have not tried.
func TestRetryingClientsAreServedFirst(t *testing.T) {
	inBubble(t, func(g *GomegaWithT) {
		b := newBounded(1, 1, 2)
		one, two := b.comes("one", b.cluster, 0), b.comes("two", b.cluster, 0)
		b.comes("early", b.cluster, 0)
		failed := b.comes("failed", b.cluster, 0, 1)
		b.comes("late", b.cluster, 0)
		b.serve(true)
		one.got.Release()
		g.Expect(b.serve(false)).To(Equal("early:1"), "the failed client has tried that endpoint")
		two.got.Release()
		g.Expect(b.serve(false)).To(Equal("failed:2"))
		failed.got.Release()
		g.Expect(b.serve(false)).To(Equal("late:2"))
	})
}

func TestSlotSkipsClientsThatCannotUseIt(t *testing.T) {
	inBubble(t, func(g *GomegaWithT) {
		b := newBounded(1, 1, 2)
		b.Update(config.ServicePort{Policy: config.Policy{EndpointLimit: 1, QueueTimeout: time.Minute},
			Endpoints: b.port.Endpoints, Cluster: b.port.Endpoints, Internal: b.port.Endpoints[:1], External: b.port.Endpoints[1:]}, time.Now())
		one, two := b.comes("one", b.internal, 0), b.comes("two", b.external, 0)
		b.comes("of 1", b.internal, 0)
		ofTwo := b.comes("of 2", b.external, 0)
		two.got.Release()
		g.Expect(b.serve(false)).To(Equal("of 2:2"))
		ofTwo.got.Release()
		g.Expect(b.comes("any", b.cluster, 0).got.Addr).To(Equal(addr(2)), "no waiting client can use it")
		one.got.Release()
		g.Expect(b.serve(false)).To(Equal("of 1:1"))
	})
}

func TestClientWaitsForItsPreviousEndpoint(t *testing.T) {
	inBubble(t, func(g *GomegaWithT) {
		b := newBounded(1, 1, 2)
		one := b.comes("one", b.cluster, 1)
		g.Expect(one.why).To(Equal(balance.Affinity))
		b.comes("had", b.cluster, 1)
		g.Expect(b.Cluster.Queued()).To(Equal(1))
		other := b.comes("other", b.cluster, 0)
		g.Expect(other.got.Addr).To(Equal(addr(2)))
		b.serve(true)
		other.got.Release()
		g.Expect(b.serve(false)).To(BeEmpty(), "the client waits for the other endpoint")
		fail(one.got, time.Now(), time.Now(), quarantine)
		g.Expect(b.serve(false)).To(Equal("had:2"))
	})
}

// TestNoQueueStarves expects that some slots go to clients that wait for their previous endpoint, and some to clients
// that take any endpoint.
func TestNoQueueStarves(t *testing.T) {
	inBubble(t, func(g *GomegaWithT) {
		b := newBounded(1, 1)
		has := b.comes("has", b.cluster, 0)
		served := map[string]int{}
		for range 100 {
			if b.Cluster.Queued() < 4 {
				b.comes("had", b.cluster, 1)
				b.comes("any", b.cluster, 0)
			}
			b.serve(true)
			queue := slices.Clone(b.waiting)
			has.got.Release()
			// The client that was woken first runs first.
			slices.SortStableFunc(b.waiting, func(x, y *waiter) int { return len(y.Woken()) - len(x.Woken()) })
			got := b.serve(false)
			g.Expect(got).To(HaveSuffix(":1"))
			name, _, _ := strings.Cut(got, ":")
			served[name]++
			for _, w := range queue {
				if !w.Waits() {
					has = w
				}
			}
			slices.Reverse(b.waiting)
		}
		g.Expect(served["had"]).To(BeNumerically(">", 20), "%v", served)
		g.Expect(served["any"]).To(BeNumerically(">", 20), "%v", served)
	})
}

func TestWaitingClientIsServed(t *testing.T) {
	for name, change := range map[string]func(b *bounded, has *waiter) (fronts bool){
		"when an endpoint is added":              func(b *bounded, _ *waiter) bool { b.update(1, 1, 2); return true },
		"when the endpoint is replaced":          func(b *bounded, _ *waiter) bool { b.update(1, 2); return true },
		"when the limit is raised":               func(b *bounded, _ *waiter) bool { b.update(3, 1); return true },
		"when the limit is removed":              func(b *bounded, _ *waiter) bool { b.update(0, 1); return true },
		"when a connection ends":                 func(_ *bounded, has *waiter) bool { has.got.Release(); return false },
		"when the last endpoint is removed":      func(b *bounded, _ *waiter) bool { b.update(1); return true },
		"when a connection ends after an update": func(b *bounded, has *waiter) bool { b.update(1, 1); has.got.Release(); return false },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(g *GomegaWithT) {
				b := newBounded(1, 1)
				has, w := b.comes("has", b.cluster, 0), b.comes("waits", b.cluster, 0)
				g.Expect(b.serve(true)).To(BeEmpty())
				fronts := change(b, has)
				g.Expect(b.serve(fronts)).To(HavePrefix("waits:"))
				g.Expect(w.got != nil).To(Equal(len(b.port.Endpoints) > 0))
			})
		})
	}
}

// TestClientsMoveToTheQueueOfTheirEndpoints expects that clients move to other queues if an update gives them other
// endpoints.
func TestClientsMoveToTheQueueOfTheirEndpoints(t *testing.T) {
	inBubble(t, func(g *GomegaWithT) {
		b := newBounded(1, 1, 2)
		b.comes("one", b.cluster, 0)
		two := b.comes("two", b.cluster, 0)
		for i := range 3 {
			b.comes(fmt.Sprint(i), b.external, 0)
		}
		b.serve(true)
		port := b.port
		port.External = port.External[1:]
		b.Update(port, time.Now())
		b.serve(true)
		b.comes("any", b.cluster, 0)
		two.got.Release()
		b.leaves(b.waiting[3])
		g.Expect(b.serve(false)).To(Equal("0:2"))
		g.Expect(b.Cluster.Queued()).To(Equal(2))
		b.update(0, 1, 2)
		g.Expect(b.serve(true)).To(MatchRegexp("1:. 2:."))
		g.Expect(b.Cluster.Queued()).To(BeZero())
	})
}

func TestWaitingClientGetsAQuarantinedEndpointWhenItIsUsable(t *testing.T) {
	// Endpoint 1 is full. Endpoint 2 has failed and has a free slot.
	begin := func(probed bool) *bounded {
		b := newBounded(1, 1, 2)
		q := quarantine
		q.UntilProbe = probed
		fail(b.All[1], time.Now(), time.Now(), q)
		b.comes("has", b.cluster, 0)
		b.comes("waits", b.cluster, 0)
		return b
	}
	inBubble(t, func(g *GomegaWithT) {
		b := begin(false)
		time.Sleep(quarantine.First - 1)
		g.Expect(b.serve(true)).To(BeEmpty())
		time.Sleep(time.Nanosecond)
		g.Expect(b.serve(true)).To(Equal("waits:2"), "its quarantine has expired")
	})
	for why, change := range map[string]func(b *bounded){
		"a probe succeeded":                func(b *bounded) { recheck(b.All[1], balance.RecheckPassed, time.Now(), nil, quarantine) },
		"both endpoints are in quarantine": func(b *bounded) { fail(b.All[0], time.Now(), time.Now(), quarantine) },
		"a client connected to it":         func(b *bounded) { connected(b.All[1], start) },
		"the other endpoint failed probes": func(b *bounded) { check(b.All[0], time.Now(), errRefused, time.Second, 1, 1) },
		"the other endpoint did not answer one client": func(b *bounded) {
			b.All[0].Report(balance.Report{Kind: balance.ConnectFailed, Now: time.Now(), Err: errRefused, Client: netip.MustParseAddr("192.0.2.1")}, quarantine)
		},
	} {
		inBubble(t, func(g *GomegaWithT) {
			b := begin(true)
			time.Sleep(time.Hour)
			g.Expect(b.serve(true)).To(BeEmpty())
			change(b)
			g.Expect(b.serve(false)).To(Equal("waits:2"), why)
		})
	}
	inBubble(t, func(g *GomegaWithT) {
		b := begin(true)
		check(b.All[1], time.Now(), errRefused, time.Second, 1, 1)
		connected(b.All[1], start)
		g.Expect(b.serve(true)).To(BeEmpty())
		b.All[1].Report(balance.Report{Kind: balance.CheckOff, Now: time.Now()}, balance.Policy{})
		g.Expect(b.serve(false)).To(Equal("waits:2"), "its probes are disabled")
	})
}

func TestSchedulersSkipFullEndpoints(t *testing.T) {
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
					last = b.comes("has", b.cluster, 0)
					g.Expect(last.got).NotTo(BeNil())
					has[last.got.Addr]++
				}
				g.Expect(has).To(Equal(map[netip.AddrPort]int{addr(1): 4, addr(2): 4, addr(3): 4}))
				c, ok := b.Cluster.Pick(balance.Request{Now: time.Now()})
				g.Expect(ok).To(BeFalse())
				g.Expect(c.Full()).To(BeTrue())
				b.comes("waits", b.cluster, 0)
				last.got.Release()
				g.Expect(b.serve(false)).To(HavePrefix("waits:"))
			})
		})
	}
}

// TestQueueInvariants checks three properties for any sequence of events. No endpoint exceeds its limit. No
// client waits that could be served. Clients that may use the same endpoints are served in order of arrival.
func TestQueueInvariants(t *testing.T) {
	for seed := range uint64(100) {
		inBubble(t, func(g *GomegaWithT) {
			r := rand.New(rand.NewPCG(seed, 18))
			b := newBounded(2, 1, 2, 3)
			b.port.Scheduler = config.Scheduler(1 + r.IntN(len(config.SchedulerNames())))
			var all, having []*waiter
			ns, limit := []int{1, 2, 3}, 2
			over := map[*balance.State]int64{} // those above the limit since it was lowered
			fronts := false
			update := func() {
				for _, e := range b.All {
					over[e.State] = e.Active.Load()
				}
				b.update(limit, ns...)
				fronts = true
			}
			serve := func() {
				before := slices.Clone(b.waiting)
				b.serve(fronts)
				fronts = false
				for _, w := range before {
					if !w.Waits() && w.got != nil {
						having = append(having, w)
					}
				}
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
					w := b.comes(fmt.Sprint(step), b.cluster, had, tried...)
					if all = append(all, w); w.got != nil {
						having, fronts = append(having, w), w.why == balance.Probe
					}
				case what < 14 && len(having) > 0:
					i := r.IntN(len(having))
					e := having[i].got
					having = slices.Delete(having, i, i+1)
					if r.IntN(3) == 0 {
						fail(e, time.Now(), time.Now(), balance.Policy{First: time.Second, Max: time.Minute, UntilProbe: r.IntN(2) == 0})
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
				case what < 17 && len(b.waiting) > 0:
					b.leaves(b.waiting[r.IntN(len(b.waiting))])
				case what < 18 && len(b.All) > 0:
					e := b.All[r.IntN(len(b.All))]
					recheck(e, balance.RecheckPassed, time.Now(), nil, quarantine)
				default:
					time.Sleep(time.Duration(r.IntN(1500)) * time.Millisecond)
					fronts = true
				}
				serve()
				g.Expect(b.Cluster.Queued()).To(Equal(len(b.waiting)), "seed %d, step %d", seed, step)
				for _, e := range b.All {
					now := e.Active.Load()
					over[e.State] = min(over[e.State], now)
					if limit > 0 {
						g.Expect(now).To(BeNumerically("<=", max(int64(limit), over[e.State])), "seed %d, step %d", seed, step)
					}
				}
				waits := false
				for _, w := range all {
					plain := !w.had.IsValid() && len(w.ask.Tried) == 0
					if w.Waits() && (plain || w.Front()) {
						g.Expect(w.set().CouldGoOn(w.ask, w.had, time.Now())).To(BeFalse(), "seed %d, step %d: %s waits although an endpoint is free", seed, step, w.name)
					}
					waits = waits || plain && w.Waits()
				}
				if !waits {
					all = nil
				}
			}
			for len(having) > 0 || len(b.waiting) > 0 {
				for _, w := range having {
					w.got.Release()
				}
				having, fronts = nil, true
				before := len(b.waiting)
				serve()
				g.Expect(len(b.waiting) < before || before == 0).To(BeTrue(), "seed %d: no client is served, and %d wait", seed, before)
			}
		})
	}
}

// TestQueueUnderConcurrency lets goroutines on all CPUs arrive, wait, leave and end, while the limit changes.
func TestQueueUnderConcurrency(t *testing.T) {
	g := NewWithT(t)
	b := newBounded(3, 1, 2, 3)
	var most atomic.Int64
	var set atomic.Pointer[balance.Set]
	set.Store(b.Cluster)
	var clients, changes sync.WaitGroup
	stop := make(chan struct{})
	changes.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
				b.update(1+i%3, 1, 2, 3)
				set.Store(b.Cluster)
			}
		}
	})
	for i := range 16 {
		clients.Go(func() {
			for n := range 500 {
				w := new(balance.Waiter)
				for {
					var had netip.AddrPort
					if n%3 == 0 {
						had = addr(1 + n%2)
					}
					c, ok := set.Load().Take(balance.Request{Now: time.Now()}, had, w)
					if ok {
						for m := most.Load(); c.Endpoint.Active.Load() > m && !most.CompareAndSwap(m, c.Endpoint.Active.Load()); m = most.Load() {
						}
						c.Endpoint.Release()
						break
					}
					if (i+n)%7 == 0 {
						w.Leave()
						break
					}
					select {
					case <-w.Woken():
					case <-time.After(time.Minute):
						t.Error("a client was forgotten")
						return
					}
				}
			}
		})
	}
	clients.Wait()
	close(stop)
	changes.Wait()
	g.Expect(most.Load()).To(BeNumerically("<=", 3))
	g.Expect(b.Cluster.Queued()).To(BeZero())
	for _, e := range b.All {
		g.Expect(e.Active.Load()).To(BeZero())
	}
}

func TestTakeFromASetThatIsOlderThanTheLimit(t *testing.T) {
	g := NewWithT(t)
	b := newBounded(0, 1, 2)
	old := b.Cluster
	for _, e := range b.All {
		e.Take()
	}
	b.update(1, 1, 2)
	var w balance.Waiter
	for _, waiter := range []*balance.Waiter{nil, &w} {
		c, ok := old.Take(balance.Request{Now: time.Now()}, netip.AddrPort{}, waiter)
		g.Expect(ok).To(BeFalse())
		g.Expect(c.Full()).To(BeTrue())
	}
	g.Expect(w.Waits()).To(BeTrue())
	b.All[0].Release()
	c, ok := old.Take(balance.Request{Now: time.Now()}, netip.AddrPort{}, &w)
	g.Expect(ok).To(BeTrue())
	g.Expect(c.Endpoint.State).To(BeIdenticalTo(b.All[0].State))
}

func TestTakeFromAnOlderSetWaitsForTheHealthyEndpoint(t *testing.T) {
	g := NewWithT(t)
	b := newBounded(0, 1, 2)
	old, now := b.Cluster, time.Now()
	b.All[0].Take()
	b.All[1].Report(balance.Report{Kind: balance.ConnectFailed, Start: now, Now: now}, balance.Policy{First: time.Minute, Max: time.Minute})
	b.update(1, 1, 2)
	c, ok := old.Take(balance.Request{Now: now}, netip.AddrPort{}, nil)
	g.Expect(ok).To(BeFalse(), "an endpoint in quarantine is no substitute for a full one")
	g.Expect(c.Full()).To(BeTrue())
}
