package probe_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"

	"github.com/usherproxy/usher/proxy/probe"
)

var errRefused = errors.New("connection refused")

// network is where the probes of a test go: who is not listed as answering refuses.
type network struct {
	prober *probe.Prober[netip.AddrPort]
	start  time.Time
	silent bool // nobody answers or refuses

	mu             sync.Mutex
	answering      map[netip.AddrPort]bool
	probes         []string        // "address@time"
	begun          []time.Duration // when each probe began
	underWay, most int
}

func newNetwork() *network {
	n := &network{start: time.Now(), answering: map[netip.AddrPort]bool{}}
	n.prober = probe.New(probe.Options[netip.AddrPort]{Dial: n.dial, Gap: 10 * time.Millisecond, AtOnce: 64})
	return n
}

func (n *network) dial(ctx context.Context, to netip.AddrPort) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	n.mu.Lock()
	defer n.mu.Unlock()
	n.probes = append(n.probes, fmt.Sprintf("%d@%s", to.Addr().As4()[3], time.Since(n.start)))
	n.begun = append(n.begun, time.Since(n.start))
	if n.silent {
		n.underWay++
		n.most = max(n.most, n.underWay)
		n.mu.Unlock()
		<-ctx.Done()
		n.mu.Lock()
		n.underWay--
		return ctx.Err()
	}
	if !n.answering[to] {
		return errRefused
	}
	return nil
}

func addr(n int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(n >> 8), byte(n)}), 80)
}

// pass lets time pass, and what is due happen.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// target doubles the time between probes.
type target struct {
	wait     time.Duration
	unwanted atomic.Bool
	told     []error
}

func (t *target) Wanted() bool { return !t.unwanted.Load() }

func (t *target) Probed(err error) time.Duration {
	t.told = append(t.told, err)
	if err == nil {
		return 0
	}
	t.wait *= 2
	return t.wait
}

// again is a Target that wants a probe each time after so long.
type again time.Duration

func (a again) Wanted() bool               { return true }
func (a again) Probed(error) time.Duration { return time.Duration(a) }

// probing runs a test in a bubble, in which time passes when all wait.
func probing(t *testing.T, name string, test func(g Gomega, n *network)) {
	t.Run(name, func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			n := newNetwork()
			defer n.prober.Stop()
			test(NewWithT(t), n)
		})
	})
}

func TestProber(t *testing.T) {
	probing(t, "probes when the target says so, until it is answered", func(g Gomega, n *network) {
		a := &target{wait: time.Second}
		n.prober.Add(addr(1), a, a.wait)
		pass(8 * time.Second)
		n.mu.Lock()
		n.answering[addr(1)] = true
		n.mu.Unlock()
		pass(time.Hour)
		g.Expect(n.probes).To(Equal([]string{"1@1s", "1@3s", "1@7s", "1@15s"}))
		g.Expect(a.told).To(Equal([]error{errRefused, errRefused, errRefused, nil}))

		n.prober.Add(addr(1), a, time.Second)
		pass(time.Hour)
		g.Expect(n.probes).To(HaveLen(5), "it goes to work again")
	})

	probing(t, "makes one probe for all who want to know about an address, when the first of them wants it", func(g Gomega, n *network) {
		a, b := &target{wait: 10 * time.Second}, &target{wait: time.Second}
		n.prober.Add(addr(1), a, a.wait)
		n.prober.Add(addr(1), b, b.wait)
		n.prober.Add(addr(1), b, b.wait)
		pass(5 * time.Second)
		g.Expect(n.probes).To(Equal([]string{"1@1s", "1@3s"}))
		g.Expect(a.told).To(HaveLen(2))
		g.Expect(b.told).To(HaveLen(2))
	})

	probing(t, "does not let one that is due soon wait for one that is due later", func(g Gomega, n *network) {
		n.prober.Add(addr(1), &target{wait: time.Minute}, time.Minute)
		synctest.Wait()
		n.prober.Add(addr(2), &target{wait: time.Second}, time.Second)
		pass(2 * time.Second)
		g.Expect(n.probes).To(Equal([]string{"2@1s"}))
	})

	probing(t, "makes no probe that nobody wants any more", func(g Gomega, n *network) {
		a, b := &target{wait: time.Second}, &target{wait: time.Second}
		n.prober.Add(addr(1), a, a.wait)
		n.prober.Add(addr(1), b, b.wait)
		n.prober.Add(addr(2), b, b.wait)
		b.unwanted.Store(true)
		pass(2 * time.Second)
		g.Expect(n.probes).To(Equal([]string{"1@1s"}))
		g.Expect(a.told).To(HaveLen(1))
		g.Expect(b.told).To(BeEmpty())
	})

	probing(t, "takes note of who fails again while the probe is under way", func(g Gomega, n *network) {
		n.silent = true
		a := &target{wait: time.Second}
		n.prober.Add(addr(1), a, a.wait)
		pass(2 * time.Second) // the probe began at 1 s and ends at 3 s
		b := &target{wait: 500 * time.Millisecond}
		n.prober.Add(addr(1), b, b.wait)
		pass(2100 * time.Millisecond)
		g.Expect(b.told).To(HaveLen(1))
		g.Expect(n.probes).To(Equal([]string{"1@1s", "1@4s"}))
	})

	probing(t, "does not let one that has just failed wait for thousands that are dead", func(g Gomega, n *network) {
		n.silent = true
		for i := range 10_000 {
			n.prober.Add(addr(i), &target{wait: time.Minute}, time.Minute)
		}
		pass(2 * time.Minute) // some 2,000 of them have been probed
		g.Expect(len(n.begun)).To(BeNumerically("<", 5000))
		a := &target{wait: time.Second}
		n.prober.Add(addr(20_000), a, a.wait)
		pass(6 * time.Second) // one second, then the next of 64 that end, and its own two
		g.Expect(a.told).To(HaveLen(1))
	})

	for _, silent := range []bool{false, true} {
		probing(t, fmt.Sprintf("makes few probes at a time when a thousand endpoints die, silent: %t", silent), func(g Gomega, n *network) {
			n.silent = silent
			for i := range 1000 {
				n.prober.Add(addr(i), &target{wait: time.Second}, time.Second)
			}
			pass(time.Hour)
			seconds := map[int]int{}
			for _, at := range n.begun {
				seconds[int(at/time.Second)]++
			}
			var most int
			for _, count := range seconds {
				most = max(most, count)
			}
			g.Expect(most).To(BeNumerically("<=", 100))
			g.Expect(n.most).To(BeNumerically("<=", 64))
			g.Expect(len(n.begun)).To(BeNumerically(">=", 8*1000), "and comes to all of them, again and again")
		})
	}

	t.Run("comes to all in turn if that is wanted, and says how late", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g := NewWithT(t)
			n := newNetwork()
			late := map[netip.AddrPort]time.Duration{}
			prober := probe.New(probe.Options[netip.AddrPort]{Dial: n.dial, Gap: 10 * time.Millisecond, AtOnce: 64, InTurn: true,
				Began: func(to netip.AddrPort, by time.Duration) { late[to] = max(late[to], by) }})
			defer prober.Stop()
			for i := range 200 { // twice as many as a second has room for
				prober.Add(addr(i), again(time.Second), time.Second)
			}
			prober.Add(addr(1000), again(10*time.Second), 10*time.Second)
			pass(5 * time.Minute)
			g.Expect(late).To(HaveLen(201))
			g.Expect(late).To(HaveEach(BeNumerically("<", 2100*time.Millisecond)), "one who is asked more seldom does not wait longer")
			g.Expect(late).To(HaveEach(BeNumerically(">=", 900*time.Millisecond)))
		})
	})

	t.Run("gives up what is under way when it is stopped", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { // which fails if a goroutine is left
			g := NewWithT(t)
			n := newNetwork()
			n.silent = true
			a := &target{wait: time.Second}
			n.prober.Add(addr(1), a, a.wait)
			pass(1500 * time.Millisecond)
			n.prober.Stop()
			g.Expect(time.Since(n.start)).To(Equal(1500 * time.Millisecond))
			n.prober.Add(addr(2), a, a.wait)
			pass(time.Minute)
			g.Expect(n.probes).To(Equal([]string{"1@1s"}))
			g.Expect(a.told).To(BeEmpty(), "it is nobody's fault")
		})
	})
}

func TestOneHasNoMoreThanAShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		n := newNetwork()
		var late time.Duration
		n.prober = probe.New(probe.Options[netip.AddrPort]{Dial: n.dial, Gap: time.Millisecond, AtOnce: 8, InTurn: true,
			Share: func(to netip.AddrPort) string { return fmt.Sprint(to.Addr().As4()[2]) },
			Began: func(_ netip.AddrPort, by time.Duration) { late = max(late, by) }})
		n.silent = true
		for i := range 6 {
			n.prober.Add(addr(i), &target{wait: time.Hour}, time.Second)
		}
		n.prober.Add(addr(256), &target{wait: time.Hour}, time.Second)
		pass(1500 * time.Millisecond)
		n.mu.Lock()
		g.Expect(n.underWay).To(Equal(3), "two of eight, and another's")
		n.mu.Unlock()
		pass(6 * time.Second)
		g.Expect(n.probes).To(HaveLen(7), "all have their turn")
		g.Expect(n.most).To(Equal(3))
		g.Expect(late).To(BeNumerically("~", 4*time.Second, 200*time.Millisecond))
		n.prober.Stop()
	})
}

func TestOneWithManyDoesNotMakeOthersLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		n := newNetwork()
		late := map[bool]time.Duration{}
		many := func(to netip.AddrPort) bool { return to.Addr().As4()[1] == 0 }
		n.prober = probe.New(probe.Options[netip.AddrPort]{Dial: n.dial, Gap: 10 * time.Millisecond, AtOnce: 64, InTurn: true,
			Share: func(to netip.AddrPort) string { return fmt.Sprint(many(to)) },
			Began: func(to netip.AddrPort, by time.Duration) { late[many(to)] = max(late[many(to)], by) }})
		defer n.prober.Stop()
		for i := range 1000 { // ten times what there is room for
			n.prober.Add(addr(i), again(time.Second), time.Second)
		}
		for i := range 10 {
			n.prober.Add(netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, 0, byte(i)}), 80), again(time.Second), time.Second)
		}
		pass(2 * time.Minute)
		g.Expect(late[false]).To(BeNumerically("<", 300*time.Millisecond))
		g.Expect(late[true]).To(BeNumerically(">", 5*time.Second))
	})
}

func TestWhoIsRemovedIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		n := newNetwork()
		n.silent = true
		one, other := &target{wait: time.Second}, &target{wait: time.Second}
		n.prober.Add(addr(1), one, time.Second)
		n.prober.Add(addr(1), other, time.Second)
		n.prober.Add(addr(2), one, time.Second)
		n.prober.Remove(addr(1), one)
		n.prober.Remove(addr(2), one)
		n.prober.Remove(addr(3), one)
		pass(1500 * time.Millisecond)
		g.Expect(n.probes).To(Equal([]string{"1@1s"}))
		n.prober.Remove(addr(1), other) // while it is under way
		pass(time.Minute)
		g.Expect(n.probes).To(HaveLen(1))
		g.Expect(one.told).To(BeEmpty())
		n.prober.Stop()
	})
}
