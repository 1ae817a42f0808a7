package datagram

import (
	"fmt"
	"net"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/sirupsen/logrus"

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
	g.Eventually(done).WithTimeout(30 * time.Second).Should(Receive(&turns))
	all := 0
	for i, n := range turns {
		if all += n; i > 1 { // turn 0 reads one datagram, turn 1 as many as there are
			g.Expect(n).To(BeNumerically("<=", 2*newcomersPerTurn), "%v", turns)
		}
	}
	g.Expect(all).To(Equal(clients))
}

// TestRepliesThatTheKernelDropsAreCounted sends more replies than the session's receive buffer holds.
func TestRepliesThatTheKernelDropsAreCounted(t *testing.T) {
	g := NewWithT(t)
	f, srv, endpoint := frontWithEndpoint(t)
	l := listenAt(t, f, srv, anyPort)
	client, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(l.Addr()))
	g.Expect(err).NotTo(HaveOccurred())
	defer client.Close()
	g.Expect(client.Write([]byte("x"))).Error().NotTo(HaveOccurred())
	reply := make([]byte, 1000)
	_, session, err := endpoint.ReadFromUDPAddrPort(reply)
	g.Expect(err).NotTo(HaveOccurred())

	const replies = 2000
	var errs []error
	l.(*listener).socket.loop.poller.Call(func() { // the loop reads none meanwhile
		for range replies {
			_, err := endpoint.WriteToUDPAddrPort(reply, session)
			errs = append(errs, err)
		}
	})
	g.Expect(errs).To(HaveEach(BeNil()))
	forwarded := func() int { return int(f.Counters.DatagramsToClient.Load()) }
	g.Eventually(forwarded).WithTimeout(30 * time.Second).Should(BeNumerically(">", 0))
	for before := 0; before < forwarded(); time.Sleep(100 * time.Millisecond) {
		before = forwarded()
	}
	l.Close(frontend.Stopped)
	lost := int(f.Stats().Sessions.Dropped[frontend.DropReceiveBuffer])
	g.Expect(lost).To(BeNumerically(">", 0))
	g.Expect(forwarded() + lost).To(Equal(replies))
}
