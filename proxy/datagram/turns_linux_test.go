package datagram

import (
	"net"
	"os"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/proxy/balance"
	"github.com/usherproxy/usher/proxy/frontend"
	"github.com/usherproxy/usher/proxy/outcome"
)

// TestManySessionsEndInTurns expects that the loop does other work while it ends many sessions.
func TestManySessionsEndInTurns(t *testing.T) {
	for name, ends := range map[string]func(*frontend.FrontEnd, *socket){
		"of a removed endpoint": func(f *frontend.FrontEnd, sk *socket) {
			v := *f.View()
			v.All = nil
			f.Swap(&v)
			sk.refresh()
		},
		"that are idle": func(_ *frontend.FrontEnd, sk *socket) {
			sk.idle = 0
			sk.expire()
		},
		"of a removed Service": func(_ *frontend.FrontEnd, sk *socket) { sk.close(outcome.VIPRemoved, func() {}) },
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			f, _, l := manySessions(t)
			defer l.Close(frontend.Stopped)
			sk := l.(*listener).socket
			had, left := make(chan int, 1), make(chan int, 1)
			g.Expect(sk.loop.poller.Do(func() {
				had <- sk.order.Len()
				ends(f, sk)
				left <- sk.order.Len()
			})).To(Succeed())
			g.Expect(<-had - <-left).To(BeNumerically("<=", 64))
			g.Eventually(f.Sessions.Load).WithTimeout(20 * time.Second).Should(BeZero())
		})
	}
}

// manyClients is the number of sessions of manySessions.
const manyClients = 600

// manySessions returns a listener with many sessions, its front end and its server.
func manySessions(t *testing.T) (*frontend.FrontEnd, *Server, frontend.Listener) {
	g := NewWithT(t)
	f, srv, _ := frontWithEndpoint(t)
	l := listenAt(t, f, srv, anyPort)
	for range manyClients {
		c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(l.Addr()))
		g.Expect(err).NotTo(HaveOccurred())
		t.Cleanup(func() { c.Close() })
		g.Expect(c.Write([]byte("x"))).Error().NotTo(HaveOccurred())
	}
	g.Eventually(f.Sessions.Load).WithTimeout(20 * time.Second).Should(BeEquivalentTo(manyClients))
	return f, srv, l
}

// TestManySessionsOfAPredecessorContinueInTurns expects that the loop does other work while it adopts many sessions.
func TestManySessionsOfAPredecessorContinueInTurns(t *testing.T) {
	g := NewWithT(t)
	f, srv, l := manySessions(t)
	sockets := map[string]*os.File{}
	for _, last := range []bool{false, true} {
		for s := range srv.Sessions(last) {
			sockets[s.Name] = s.File
		}
	}
	l.Close(frontend.Stopped)
	g.Expect(f.Sessions.Load()).To(BeZero())
	srv.Inherit(sockets)
	poller, listening, after := srv.loops[0].poller, make(chan struct{}), map[int64]bool{} // number of sessions after each round
	g.Expect(poller.Do(func() {
		poller.OnRoundEnd(func() { after[f.Sessions.Load()] = true })
		<-listening
	})).To(Succeed())
	next, err := srv.Listen(f, portal.Bind{Addr: l.Addr(), Targets: []portal.Target{frontend.Target(f.Protocol, f.View().Port.VIPs[0])}})
	close(listening) // even if it failed, since the loop waits
	g.Expect(err).NotTo(HaveOccurred())
	defer next.Close(frontend.Stopped)
	g.Eventually(f.Sessions.Load).WithTimeout(20 * time.Second).Should(BeEquivalentTo(manyClients))
	between := 0
	poller.Call(func() {
		delete(after, 0)
		delete(after, manyClients)
		between = len(after)
	})
	g.Expect(between).To(BeNumerically(">", 0))
}

// TestUnansweredSessionEndsBeforeAnsweredOne expects separate timeouts for unanswered and answered sessions, as
// in the kernel's connection tracking.
func TestUnansweredSessionEndsBeforeAnsweredOne(t *testing.T) {
	for _, c := range []struct {
		silent, ofService time.Duration
		left              int64
	}{
		{90 * time.Second, 0, 1},
		{121 * time.Second, 0, 0},
		{90 * time.Second, time.Hour, 2},
		{4 * time.Second, 3 * time.Second, 0},
	} {
		t.Run(c.silent.String(), func(t *testing.T) {
			g := NewWithT(t)
			f, srv, endpoint := frontWithEndpoint(t)
			v := *f.View()
			if c.ofService > 0 {
				v.Port.UDPIdleTimeout, v.Port.UnansweredTimeout = c.ofService, c.ofService
			}
			f.Swap(&v)
			l := listenAt(t, f, srv, anyPort)
			defer l.Close(frontend.Stopped)
			buf := make([]byte, 8)
			for _, answered := range []bool{true, false} {
				client, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(l.Addr()))
				g.Expect(err).NotTo(HaveOccurred())
				defer client.Close()
				g.Expect(client.Write([]byte("x"))).Error().NotTo(HaveOccurred())
				_, from, err := endpoint.ReadFromUDPAddrPort(buf)
				g.Expect(err).NotTo(HaveOccurred())
				if answered {
					g.Expect(endpoint.WriteToUDPAddrPort(buf[:1], from)).Error().NotTo(HaveOccurred())
					g.Expect(client.Read(buf)).Error().NotTo(HaveOccurred())
				}
			}
			g.Eventually(f.Sessions.Load).Should(BeEquivalentTo(2))
			sk := l.(*listener).socket
			left := make(chan int64, 1)
			g.Expect(sk.loop.poller.Do(func() {
				for e := sk.order.Front(); e != nil; e = e.Next() {
					s := e.Value.(*session)
					s.last = s.last.Add(-c.silent)
				}
				sk.expire()
				left <- f.Sessions.Load()
			})).To(Succeed())
			g.Expect(<-left).To(Equal(c.left))
		})
	}
}

// TestRefusalsCostLittleDespiteManySessions expects that the sessions of other endpoints, and those that an earlier
// refusal has handled, take no time from other clients of the loop.
func TestRefusalsCostLittleDespiteManySessions(t *testing.T) {
	g := NewWithT(t)
	f, _, l := manySessions(t)
	defer l.Close(frontend.Stopped)
	sk := l.(*listener).socket
	shortest := func(refused *balance.State) (shortest time.Duration) {
		shortest = time.Hour
		sk.loop.poller.Call(func() {
			for range 10 {
				start := time.Now()
				for range 1000 {
					sk.abandon(refused)
				}
				shortest = min(shortest, time.Since(start))
			}
		})
		return shortest
	}
	g.Expect(shortest(new(balance.State))).To(BeNumerically("<", time.Millisecond))
	g.Expect(f.Sessions.Load()).To(BeEquivalentTo(manyClients))
	sk.loop.poller.Call(func() {
		for _, s := range sk.sessions {
			s.last = s.last.Add(-2 * keptTime) // too long ago for this session to move
		}
	})
	g.Expect(shortest(f.View().All[0].State)).To(BeNumerically("<", time.Millisecond))
	g.Expect(f.Sessions.Load()).To(BeEquivalentTo(manyClients))
	sk.loop.poller.Call(func() {
		for _, s := range sk.sessions {
			s.touch()
		}
	})
	g.Expect(shortest(f.View().All[0].State)).To(BeNumerically("<", time.Millisecond))
	g.Eventually(f.Sessions.Load).WithTimeout(20 * time.Second).Should(BeZero())
	left := 0
	sk.loop.poller.Call(func() {
		for _, l := range sk.waiting {
			left += l.Len()
		}
	})
	g.Expect(left).To(BeZero())
}
