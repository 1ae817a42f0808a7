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
