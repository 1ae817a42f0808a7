package health_test

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	"github.com/sirupsen/logrus"

	"github.com/usherproxy/usher/affinity"
	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/portal/none"
	"github.com/usherproxy/usher/proxy/balance"
	"github.com/usherproxy/usher/proxy/budget"
	"github.com/usherproxy/usher/proxy/forward"
	"github.com/usherproxy/usher/proxy/frontend"
	"github.com/usherproxy/usher/proxy/health"
	"github.com/usherproxy/usher/proxy/trace"
)

// network is the network of a test's probes. Endpoints that are not listed as answering refuse.
type network struct {
	node   *frontend.Node
	prober *health.Prober
	start  time.Time
	silent bool // no endpoint answers or refuses

	mu             sync.Mutex
	answering      map[netip.AddrPort]bool
	probes         []string                           // "address@time"
	begun          map[netip.AddrPort][]time.Duration // start times of probes
	underWay, most int
}

// probing runs a test in a bubble, in which time advances when all goroutines wait.
func probing(t *testing.T, name string, test func(g Gomega, n *network)) {
	t.Run(name, func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { // fails if a goroutine is left
			pt, err := none.Mode.New(t.Context(), portal.Options{})
			if err != nil {
				t.Fatal(err)
			}
			n := &network{start: time.Now(), answering: map[netip.AddrPort]bool{}, begun: map[netip.AddrPort][]time.Duration{}}
			n.node = &frontend.Node{
				Settings: frontend.Settings{Portal: pt, Trace: trace.NewLog(10), Log: logrus.New(), Quarantine: policy(time.Second)},
				Budget:   budget.Of(1<<20, budget.Limits{}),
			}
			n.node.Init()
			n.prober = health.New(n.node, n.dial)
			defer n.prober.Stop()
			test(NewWithT(t), n)
		})
	})
}

func policy(first time.Duration) balance.Policy {
	return balance.Policy{First: first, Max: 1000 * time.Hour, UntilProbe: true}
}

// connection is the result of a successful probe.
type connection struct{ forward.Conn }

func (connection) Close() error { return nil }

func (n *network) dial(ctx context.Context, to *config.Endpoint) (forward.Conn, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	now := time.Since(n.start)
	n.probes = append(n.probes, fmt.Sprintf("%d@%s", to.Addr.Addr().As4()[3], now))
	n.begun[to.Addr] = append(n.begun[to.Addr], now)
	if n.silent {
		n.underWay++
		n.most = max(n.most, n.underWay)
		n.mu.Unlock()
		<-ctx.Done()
		n.mu.Lock()
		n.underWay--
		return nil, ctx.Err()
	}
	if !n.answering[to.Addr] {
		return nil, syscall.ECONNREFUSED
	}
	return connection{}, nil
}

// late returns the longest time between two probes of an endpoint, minus interval.
func (n *network) late(at netip.AddrPort, interval time.Duration) (late time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for i, begun := range n.begun[at][1:] {
		late = max(late, begun-n.begun[at][i]-interval)
	}
	return late
}

func addr(n int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)}), 80)
}

// service is a service port.
type service struct {
	*frontend.FrontEnd
	prober *health.Prober
	pool   balance.Pool
}

// service returns a service port with the endpoints addr(from) to addr(to-1).
func (n *network) service(namespace string, from, to int) *service {
	s := &service{prober: n.prober}
	s.pool.Watcher = s
	port := config.ServicePort{ID: config.PortID{Namespace: namespace, Service: "web"}, Protocol: config.TCP}
	for i := range to - from {
		port.Endpoints = append(port.Endpoints, config.Endpoint{Addr: addr(from + i), Ready: true})
	}
	port.Cluster, port.Internal, port.External = port.Endpoints, port.Endpoints, port.Endpoints
	s.FrontEnd = frontend.New(n.node, port, affinity.NewTable(new(affinity.Limits), 0))
	s.update(port)
	return s
}

func (s *service) update(port config.ServicePort) {
	s.pool.Update(port, time.Now())
	v := &frontend.View{Port: port, All: s.pool.All, Cluster: s.pool.Cluster, Internal: s.pool.Internal, External: s.pool.External}
	s.prober.Update(s.FrontEnd, s.Swap(v), v)
}

// check enables checks of the endpoints.
func (s *service) check(how config.Probe) *service {
	port := s.View().Port
	port.Probe = how
	s.update(port)
	return s
}

// checked returns TCP checks with this interval.
func checked(interval time.Duration) config.Probe {
	return config.Probe{Check: config.Check{Kind: config.CheckTCP}, Interval: interval, Timeout: 2 * time.Second, Rise: 1, Fall: 1}
}

// fail reports a client's failed attempt at each endpoint. The first recheck is due after wait.
func (s *service) fail(wait time.Duration) *service {
	for _, e := range s.View().All {
		e.Report(balance.Report{Kind: balance.ConnectFailed, Start: time.Now(), Now: time.Now(), Err: syscall.ECONNREFUSED}, policy(wait))
	}
	return s
}

// HealthChanged implements balance.Watcher, as package proxy does.
func (s *service) HealthChanged(e *balance.Endpoint, h balance.Health, now time.Time) {
	if h.By == balance.ConnectFailed {
		s.prober.Recheck(s.FrontEnd, e, h.Until.Sub(now))
	}
}

// health returns the health of the first endpoint.
func (s *service) health() balance.Health { return s.View().All[0].Health(time.Now()) }

// pass advances time by d and runs everything that is due.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func TestRechecks(t *testing.T) {
	probing(t, "are made at doubling intervals until one succeeds", func(g Gomega, n *network) {
		a := n.service("a", 1, 2).fail(time.Second)
		pass(8 * time.Second)
		g.Expect(a.health().Failures).To(Equal(4))
		n.mu.Lock()
		n.answering[addr(1)] = true
		n.mu.Unlock()
		pass(time.Hour)
		g.Expect(n.probes).To(Equal([]string{"1@1s", "1@3s", "1@7s", "1@15s"}))
		g.Expect(a.health().State).To(Equal(balance.Up))

		a.fail(time.Second)
		pass(time.Hour)
		g.Expect(n.probes).To(HaveLen(5), "the endpoint is probed again")
	})

	probing(t, "are shared by all service ports of a namespace, at the earliest due time", func(g Gomega, n *network) {
		a, b := n.service("a", 1, 2).fail(10*time.Second), n.service("a", 1, 2).fail(time.Second)
		pass(5 * time.Second)
		g.Expect(n.probes).To(Equal([]string{"1@1s", "1@3s"}))
		g.Expect(a.health().Failures).To(Equal(3))
		g.Expect(b.health().Failures).To(Equal(3))
	})

	probing(t, "are made separately for each namespace", func(g Gomega, n *network) {
		n.service("a", 1, 2).fail(time.Second)
		n.service("b", 1, 2).fail(time.Second)
		pass(2 * time.Second)
		g.Expect(n.probes).To(Equal([]string{"1@1s", "1@1.01s"}))
	})

	probing(t, "that are due soon do not wait for later ones", func(g Gomega, n *network) {
		n.service("a", 1, 2).fail(time.Minute)
		synctest.Wait()
		n.service("a", 2, 3).fail(time.Second)
		pass(2 * time.Second)
		g.Expect(n.probes).To(Equal([]string{"2@1s"}))
	})

	probing(t, "are not made of an endpoint that recovered or was removed", func(g Gomega, n *network) {
		a, b, gone := n.service("a", 1, 2).fail(time.Second), n.service("a", 1, 3).fail(time.Second), n.service("a", 3, 4).fail(time.Second)
		for _, e := range b.View().All {
			e.Report(balance.Report{Kind: balance.Connected, Now: time.Now()}, balance.Policy{})
		}
		gone.update(config.ServicePort{ID: gone.ID(), Protocol: config.TCP})
		pass(2 * time.Second)
		g.Expect(n.probes).To(Equal([]string{"1@1s"}))
		g.Expect(a.health().Failures).To(Equal(2))
		g.Expect(b.health().State).To(Equal(balance.Up))
	})

	probing(t, "take no memory once they are not wanted", func(g Gomega, n *network) {
		s := n.service("a", 1, 100)
		for i := range 100 {
			s.check(checked(time.Hour - time.Duration(i)*time.Second))
		}
		g.Expect(n.prober.Jobs()).To(Equal(99))
		s.check(config.Probe{})
		g.Expect(n.prober.Jobs()).To(BeZero())
	})

	probing(t, "take no memory once they are not wanted, even while they wait for others", func(g Gomega, n *network) {
		n.silent = true
		s := n.service("a", 0, 1000)
		for i := range 50 {
			how := checked(time.Second)
			how.Timeout = 2*time.Minute - time.Duration(i)*time.Millisecond
			s.check(how)
			pass(2 * time.Second) // all are due, and the first ones occupy the namespace for two minutes
		}
		g.Expect(n.prober.Jobs()).To(BeNumerically("<", 2000))
		s.check(config.Probe{})
		g.Expect(n.prober.Jobs()).To(BeNumerically("<=", 17), "those in progress, and the next one")
	})

	probing(t, "count for an endpoint that failed while they were in progress", func(g Gomega, n *network) {
		n.silent = true
		n.service("a", 1, 2).fail(time.Second)
		pass(2 * time.Second) // the probe began at 1 s and ends at 3 s
		b := n.service("a", 1, 2).fail(500 * time.Millisecond)
		pass(1100 * time.Millisecond)
		g.Expect(b.health().Failures).To(Equal(2))
		pass(2 * time.Second)
		g.Expect(n.probes).To(Equal([]string{"1@1s", "1@5s"}))
	})

	probing(t, "of a newly failed endpoint do not wait for those of thousands of dead ones", func(g Gomega, n *network) {
		n.silent = true
		n.node.Quarantine = policy(time.Minute)
		n.service("a", 0, 10_000).fail(time.Minute)
		pass(2 * time.Minute)
		g.Expect(len(n.probes)).To(BeNumerically("<", 5000))
		a := n.service("a", 20_000, 20_001).fail(time.Second)
		pass(6 * time.Second) // 1 s, then the next of 16 probes to end, and its own two
		g.Expect(a.health().Failures).To(Equal(2))
	})

	for _, silent := range []bool{false, true} {
		probing(t, fmt.Sprintf("are limited when 1,000 endpoints fail, without response: %t", silent), func(g Gomega, n *network) {
			n.silent = silent
			for i := range 10 {
				n.service(fmt.Sprint(i), 100*i, 100*i+100).fail(time.Second)
			}
			pass(time.Hour)
			seconds, all, most := map[int]int{}, 0, 0
			for _, begun := range n.begun {
				for _, at := range begun {
					all++
					seconds[int(at/time.Second)]++
				}
			}
			for _, count := range seconds {
				most = max(most, count)
			}
			g.Expect(most).To(BeNumerically("<=", 101))
			g.Expect(n.most).To(BeNumerically("<=", 64))
			g.Expect(all).To(BeNumerically(">=", 8*1000), "all endpoints are probed repeatedly")
		})
	}

	probing(t, "end with the Prober", func(g Gomega, n *network) {
		n.silent = true
		a := n.service("a", 1, 2).fail(time.Second)
		pass(1500 * time.Millisecond)
		n.prober.Stop()
		g.Expect(time.Since(n.start)).To(Equal(1500 * time.Millisecond))
		n.service("a", 2, 3).fail(time.Second)
		pass(time.Minute)
		g.Expect(n.probes).To(Equal([]string{"1@1s"}))
		g.Expect(a.health().Failures).To(Equal(1), "a canceled probe is not a failure")
	})
}

func TestChecks(t *testing.T) {
	probing(t, "are made in rotation, and late ones are counted", func(g Gomega, n *network) {
		n.service("a", 0, 1000).check(checked(time.Second)) // twice the maximum rate
		n.service("a", 1000, 1001).check(checked(10 * time.Second))
		pass(time.Minute)
		for i := range 1000 {
			g.Expect(n.late(addr(i), time.Second)).To(BeNumerically("~", 1500*time.Millisecond, 600*time.Millisecond))
		}
		g.Expect(n.late(addr(1000), 10*time.Second)).To(BeNumerically("<", 2100*time.Millisecond), "a longer interval does not increase the delay")
		g.Expect(n.node.Counters.LateProbes.Load()).To(BeNumerically(">", 1000))
	})

	probing(t, "that are disabled are not made, and their results are not reported", func(g Gomega, n *network) {
		n.silent = true
		a, b := n.service("a", 1, 3).check(checked(time.Second)), n.service("a", 1, 2).check(checked(time.Second))
		a.check(config.Probe{})
		pass(1500 * time.Millisecond)
		g.Expect(n.begun).To(HaveLen(1))
		g.Expect(n.begun[addr(1)]).To(HaveLen(1))
		b.check(config.Probe{}) // while the probe is in progress
		pass(time.Minute)
		g.Expect(n.probes).To(HaveLen(1))
		g.Expect([]balance.Availability{a.health().State, b.health().State}).To(HaveEach(balance.Up))
	})

	probing(t, "continue on schedule when endpoints are added", func(g Gomega, n *network) {
		a := n.service("a", 1, 2).check(checked(10 * time.Second))
		for range 100 {
			pass(time.Second)
			port := a.View().Port
			port.Endpoints = append(slices.Clone(port.Endpoints), config.Endpoint{Addr: addr(2 + len(port.Endpoints)), Ready: true})
			port.Cluster = port.Endpoints
			a.update(port)
		}
		pass(10 * time.Second)
		g.Expect(len(n.begun[addr(1)])).To(BeNumerically("~", 11, 1))
		g.Expect(len(n.begun)).To(Equal(101))
	})
}

// begin probes the endpoints of a service every second, by rechecks or by checks.
func (n *network) begin(s *service, checks bool) {
	if checks {
		s.check(checked(time.Second))
		return
	}
	n.node.Quarantine.Max = 0
	s.fail(time.Second)
}

func TestNamespacesShareTheProber(t *testing.T) {
	for name, checks := range map[string]bool{"rechecks": false, "checks": true} {
		probing(t, name+": a namespace has at most a quarter of the concurrent probes", func(g Gomega, n *network) {
			n.silent = true
			n.begin(n.service("a", 0, 20), checks)
			n.begin(n.service("b", 100, 101), checks)
			pass(8 * time.Second)
			g.Expect(n.most).To(Equal(17), "16 of 64, and one of the other namespace")
			g.Expect(n.begun).To(HaveLen(21), "all endpoints are probed")
			g.Expect(n.late(addr(100), 3*time.Second)).To(BeNumerically("<", 100*time.Millisecond))
		})

		probing(t, name+": a namespace with many endpoints does not delay the probes of others", func(g Gomega, n *network) {
			many := 1000 // ten times the maximum
			if checks {
				many = 5000
			}
			n.begin(n.service("a", 0, many), checks)
			n.begin(n.service("b", 10_000, 10_010), checks)
			pass(30 * time.Second)
			for i := range 10 {
				g.Expect(n.late(addr(10_000+i), time.Second)).To(BeNumerically("<", 300*time.Millisecond))
			}
			g.Expect(n.late(addr(0), time.Second)).To(BeNumerically(">", 5*time.Second))
		})
	}
}
