package forward_test

import (
	"encoding/json"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/usherproxy/usher/proxy/forward"
)

// systemMovers are the movers that exist only on Linux.
func systemMovers() []mover {
	return []mover{{"a loop", func(limits forward.Limits, owner forward.Owner) (*net.TCPConn, *net.TCPConn, forward.Flow) {
		GinkgoHelper()
		loop := newLoop(16)
		return loopPair(loop, limits, owner)
	}}, {"a loop without pipes", func(limits forward.Limits, owner forward.Owner) (*net.TCPConn, *net.TCPConn, forward.Flow) {
		GinkgoHelper()
		return loopPair(newLoop(0), limits, owner)
	}}, {"a loop that must not buffer", func(limits forward.Limits, owner forward.Owner) (*net.TCPConn, *net.TCPConn, forward.Flow) {
		GinkgoHelper()
		DeferCleanup(forward.KeepNothing())
		return loopPair(newLoop(0), limits, owner)
	}}, {"loops that continually hand it over", func(limits forward.Limits, owner forward.Owner) (*net.TCPConn, *net.TCPConn, forward.Flow) {
		GinkgoHelper()
		a, b := newLoop(16), newLoop(16)
		client, endpoint, flow := loopPair(a, limits, owner)
		w := &wanderer{pair: flow.(*forward.Pair), over: make(chan struct{})}
		var wandering sync.WaitGroup
		wandering.Go(func() { w.wander(a, b) })
		DeferCleanup(func() {
			close(w.over)
			wandering.Wait()
		})
		return client, endpoint, w
	}}}
}

// wanderer is a Flow that moves from loop to loop, as if handed over to another process.
type wanderer struct {
	over chan struct{}

	mu     sync.Mutex
	pair   *forward.Pair
	broken bool
	retire time.Time
}

func (w *wanderer) wander(from, to *forward.Loop) {
	defer GinkgoRecover()
	for {
		select {
		case <-w.over:
			return
		case <-time.After(time.Duration(rand.IntN(20_000)) * time.Microsecond):
		}
		var f *forward.Frozen
		on(from, func() bool {
			from.PairsFrom(0, func(p *forward.PairHere, _ forward.Owner) bool {
				f = p.Freeze()
				return false
			})
			return true
		})
		if f == nil {
			continue
		}
		text, err := json.Marshal(f.PairState)
		Expect(err).NotTo(HaveOccurred())
		var state forward.PairState
		Expect(json.Unmarshal(text, &state)).To(Succeed())
		Expect(state.Known()).To(BeTrue())
		state.ToEndpoint.Rest, state.ToClient.Rest = f.ToEndpoint.Rest, f.ToClient.Rest
		f.PairState = state
		next := new(forward.Pair)
		on(to, func() bool {
			to.Continue(next, f, &f.Limits)
			w.set(next, !f.Limits.Retire.IsZero())
			return true
		})
		from, to = to, from
	}
}

// set makes p the current pair of w; retired means that p already knows its retirement time.
func (w *wanderer) set(p *forward.Pair, retired bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pair = p
	if w.broken {
		p.Break()
	}
	if !retired && !w.retire.IsZero() {
		p.Retire(w.retire)
	}
}

func (w *wanderer) Bytes() (toEndpoint, toClient int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.pair.Bytes()
}

func (w *wanderer) Break() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.broken = true
	w.pair.Break()
}

func (w *wanderer) Retire(by time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.retire = by
	w.pair.Retire(by)
}

var keepalive = forward.Keepalive{Idle: time.Minute, Interval: time.Minute, Probes: 3}

func newLoop(pipes int) *forward.Loop {
	GinkgoHelper()
	poller, err := forward.NewPoller()
	Expect(err).NotTo(HaveOccurred())
	loop := forward.NewLoop(poller, forward.Options{Keepalive: keepalive, Pipes: pipes})
	DeferCleanup(poller.Close)
	DeferCleanup(loop.Close)
	return loop
}

// on calls f on the loop and returns the result.
func on[T any](loop *forward.Loop, f func() T) T {
	GinkgoHelper()
	result := make(chan T, 1)
	Expect(loop.Do(func() { result <- f() })).To(Succeed())
	// Not Eventually, which looks only every 10 ms: checks of a wandering pair, due at fixed times, could all miss it.
	select {
	case r := <-result:
		return r
	case <-time.After(10 * time.Second):
		Fail("the loop did not call the function")
		panic("unreachable")
	}
}

// dialed returns a connection that the loop has made to an endpoint, with opening, and its far end.
func dialed(loop *forward.Loop, opening []byte) (*forward.Dialed, *net.TCPConn) {
	GinkgoHelper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	Expect(err).NotTo(HaveOccurred())
	defer l.Close()
	to := l.Addr().(*net.TCPAddr).AddrPort()
	made := make(chan *forward.Dialed, 1)
	on(loop, func() bool {
		loop.Connect(netip.AddrPort{}, to, 0, opening, time.Second, func(d *forward.Dialed, err error) {
			defer GinkgoRecover()
			Expect(err).NotTo(HaveOccurred())
			made <- d
		})
		return true
	})
	far, err := l.Accept()
	Expect(err).NotTo(HaveOccurred())
	var d *forward.Dialed
	Eventually(made).Should(Receive(&d))
	return d, far.(*net.TCPConn)
}

// accepted returns an accepted client, and its far end.
func accepted() (*forward.Client, *net.TCPConn) {
	GinkgoHelper()
	fd, err := forward.Sockets(nil).ListenTCP(netip.MustParseAddrPort("127.0.0.1:0"), keepalive)
	Expect(err).NotTo(HaveOccurred())
	defer unix.Close(fd)
	at, err := forward.LocalAddr(fd)
	Expect(err).NotTo(HaveOccurred())
	far, err := net.Dial("tcp", at.String())
	Expect(err).NotTo(HaveOccurred())
	near, from, err := forward.Accept(fd)
	Expect(err).NotTo(HaveOccurred())
	Expect(from.String()).To(Equal(far.LocalAddr().String()))
	return &forward.Client{Socket: near}, far.(*net.TCPConn)
}

func loopPair(loop *forward.Loop, limits forward.Limits, owner forward.Owner) (client, endpoint *net.TCPConn, flow forward.Flow) {
	GinkgoHelper()
	near, client := accepted()
	d, endpoint := dialed(loop, nil)
	return client, endpoint, on(loop, func() forward.Flow {
		p := new(forward.Pair)
		loop.Forward(p, near, d, &limits, owner)
		return p
	})
}
