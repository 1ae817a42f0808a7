package datagram

import (
	"context"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/sirupsen/logrus"

	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/portal/none"
	"github.com/usherproxy/usher/proxy/frontend"
	"github.com/usherproxy/usher/proxy/trace"
)

// TestManySessionsEndInTurns expects that others may use a loop between the ends of many sessions.
func TestManySessionsEndInTurns(t *testing.T) {
	for name, ends := range map[string]func(*frontend.FrontEnd, *socket){
		"of an endpoint that leaves": func(f *frontend.FrontEnd, sk *socket) {
			v := *f.View()
			v.All = nil
			f.Swap(&v)
			sk.refresh()
		},
		"that are idle": func(_ *frontend.FrontEnd, sk *socket) {
			sk.idle = 0
			sk.expire()
		},
		"of a Service that is removed": func(_ *frontend.FrontEnd, sk *socket) { sk.close(trace.Withdrawn, func() {}) },
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			log := logrus.New()
			log.SetOutput(io.Discard)
			f, srv := redirectedFront(t, log)
			var err error
			f.Portal, err = none.Mode.New(context.Background(), portal.Options{})
			g.Expect(err).NotTo(HaveOccurred())
			endpoint, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
			g.Expect(err).NotTo(HaveOccurred())
			f.View().All[0].Endpoint.Addr = endpoint.LocalAddr().(*net.UDPAddr).AddrPort()
			defer endpoint.Close()
			l, err := srv.Listen(f, portal.Bind{Addr: netip.MustParseAddrPort("127.0.0.1:0"), Targets: []portal.Target{frontend.Target(f.Protocol, f.View().Port.VIPs[0])}})
			g.Expect(err).NotTo(HaveOccurred())
			defer l.Close(frontend.Stopped)
			const clients = 600
			for range clients {
				c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(l.Addr()))
				g.Expect(err).NotTo(HaveOccurred())
				defer c.Close()
				g.Expect(c.Write([]byte("x"))).Error().NotTo(HaveOccurred())
			}
			g.Eventually(f.Sessions.Load).WithTimeout(20 * time.Second).Should(BeEquivalentTo(clients))
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
