package datagram

import (
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/sirupsen/logrus"

	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/portal/none"
	"github.com/usherproxy/usher/proxy/budget"
	"github.com/usherproxy/usher/proxy/forward"
	"github.com/usherproxy/usher/proxy/frontend"
)

// TestTurnReadsFewDatagramsWhileAllClientsAreNew sends each datagram from a new client that is not admitted, as in
// a flood.
func TestTurnReadsFewDatagramsWhileAllClientsAreNew(t *testing.T) {
	g := NewWithT(t)
	f, srv := redirectedFront(t, logrus.New())
	l, err := srv.Listen(f, anywhereRedirected)
	g.Expect(err).NotTo(HaveOccurred())
	defer l.Close(frontend.Stopped)

	held, begin, done := make(chan struct{}), make(chan struct{}), make(chan []int)
	dropped := func() int { return int(f.Stats().Sessions.Dropped[frontend.DropNotAdmitted]) }
	sk := l.(*listener).socket
	g.Expect(sk.loop.poller.Do(func() { // blocks the loop meanwhile
		held <- struct{}{}
		<-begin
		var turns []int
		for {
			before := dropped()
			sk.Ready(forward.Readable)
			sk.loop.endRound()
			if dropped() == before {
				break
			}
			turns = append(turns, dropped()-before)
		}
		done <- turns
	})).To(Succeed())
	<-held
	const clients = 200
	for n := range clients {
		c, err := net.DialUDP("udp", &net.UDPAddr{IP: net.ParseIP(fmt.Sprintf("127.1.0.%d", n+1))}, net.UDPAddrFromAddrPort(l.Addr()))
		g.Expect(err).NotTo(HaveOccurred())
		_, err = c.Write([]byte("x"))
		g.Expect(err).NotTo(HaveOccurred())
		c.Close()
	}
	close(begin)
	var turns []int
	g.Eventually(done).WithTimeout(10 * time.Second).Should(Receive(&turns))
	all := 0
	for i, n := range turns {
		if all += n; i > 1 { // turn 0 reads one datagram, turn 1 as many as there are
			g.Expect(n).To(BeNumerically("<=", 2*newcomersPerTurn), "%v", turns)
		}
	}
	g.Expect(all).To(Equal(clients))
}

// TestOneClientCannotTakeAllPorts floods from the ports of one address while nearly all ports for sessions are taken.
func TestOneClientCannotTakeAllPorts(t *testing.T) {
	g := NewWithT(t)
	log := logrus.New()
	log.SetOutput(t.Output())
	f, srv := redirectedFront(t, log)
	var err error
	f.Portal, err = none.Mode.New(t.Context(), portal.Options{})
	g.Expect(err).NotTo(HaveOccurred())
	endpoint, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	g.Expect(err).NotTo(HaveOccurred())
	defer endpoint.Close()
	f.View().All[0].Endpoint.Addr = endpoint.LocalAddr().(*net.UDPAddr).AddrPort()
	l, err := srv.Listen(f, portal.Bind{Addr: netip.MustParseAddrPort("127.0.0.1:0"), Targets: []portal.Target{frontend.Target(f.Protocol, f.View().Port.VIPs[0])}})
	g.Expect(err).NotTo(HaveOccurred())
	defer l.Close(frontend.Stopped)
	dial := func(from string) {
		c, err := net.DialUDP("udp", &net.UDPAddr{IP: net.ParseIP(from)}, net.UDPAddrFromAddrPort(l.Addr()))
		g.Expect(err).NotTo(HaveOccurred())
		defer c.Close()
		g.Expect(c.Write([]byte("x"))).Error().NotTo(HaveOccurred())
	}
	dial("127.0.0.2")
	g.Eventually(f.Sessions.Load).Should(BeEquivalentTo(1))
	share := int(f.Budget.PortsPerClient())
	g.Expect(share).To(BeNumerically(">", 0))
	sk := l.(*listener).socket
	others := func() (n int) {
		sk.loop.await(func() {
			if sessions := sk.loop.clients[netip.MustParseAddr("127.0.0.2")]; sessions != nil {
				n = sessions.Len()
			}
		})
		return n
	}
	for f.Budget.TakePort(0) == budget.Enough { // for other Services
	}
	f.Budget.Ports.Add(-int64(share))
	for i := range share + 300 {
		dial("127.0.0.1")
		if i%50 == 0 {
			g.Expect(others()).To(Equal(1), "after %d", i)
		}
	}
	g.Expect(others()).To(Equal(1))
}
