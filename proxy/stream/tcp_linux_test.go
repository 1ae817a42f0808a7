package stream

import (
	"context"
	"io"
	"net"
	"net/netip"
	"testing"
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
	"github.com/usherproxy/usher/proxy/trace"
	"github.com/usherproxy/usher/test/lab"
)

func TestClientsThatWaitToBeAcceptedAreServedWhenUsherStops(t *testing.T) {
	const clients = 20
	g := NewWithT(t)
	pt, err := none.Mode.New(context.Background(), portal.Options{})
	g.Expect(err).NotTo(HaveOccurred())
	node := &frontend.Node{Settings: frontend.Settings{Portal: pt, Trace: trace.NewLog(100), Log: logrus.New(), Schedule: []time.Duration{30 * time.Second}}, Budget: budget.New(budget.Limits{})}
	node.Init()
	s := New(node, new(forward.Pollers), Options{})
	backend, err := net.Listen("tcp", "127.0.0.1:0")
	g.Expect(err).NotTo(HaveOccurred())
	defer backend.Close()
	lab.Serve(backend, func(c net.Conn) { _, _ = io.Copy(c, c) })
	endpoints := []config.Endpoint{{Ready: true, Addr: backend.Addr().(*net.TCPAddr).AddrPort()}}
	port := config.ServicePort{
		ID: config.PortID{Namespace: "default", Service: "web", Family: config.IPv4}, Protocol: config.TCP, Policy: config.DefaultPolicy(),
		VIPs:      []config.VIP{{Kind: config.ClusterIP, Addr: netip.MustParseAddr("127.77.0.8"), Port: 80}},
		Endpoints: endpoints, Cluster: endpoints, Internal: endpoints, External: endpoints,
	}
	f := frontend.New(node, port, affinity.NewTable(&affinity.Limits{}, 0))
	var pool balance.Pool
	pool.Update(port, time.Now())
	f.Swap(&frontend.View{Port: port, All: pool.All, Cluster: pool.Cluster, Internal: pool.Internal, External: pool.External, Limits: &forward.Limits{}})
	l, err := s.ListenTCP(f, portal.Bind{Addr: netip.MustParseAddrPort("127.77.0.8:0"), Targets: []portal.Target{frontend.Target(config.TCP, port.VIPs[0])}})
	g.Expect(err).NotTo(HaveOccurred())

	busy := make(chan struct{})
	for _, loop := range s.loops.list {
		g.Expect(loop.Do(func() { <-busy })).To(Succeed())
	}
	var waiting []net.Conn
	for range clients {
		c, err := net.Dial("tcp", l.Addr().String())
		g.Expect(err).NotTo(HaveOccurred())
		defer c.Close()
		waiting = append(waiting, c)
	}
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		l.Close(frontend.Stopped)
	}()
	time.Sleep(100 * time.Millisecond) // until Close has queued its tasks behind the busy ones
	close(busy)
	g.Eventually(closed).WithTimeout(30 * time.Second).Should(BeClosed())
	_, err = net.Dial("tcp", l.Addr().String())
	g.Expect(err).To(HaveOccurred())
	for _, c := range waiting {
		g.Expect(c.SetDeadline(time.Now().Add(30 * time.Second))).To(Succeed())
		_, err := io.WriteString(c, "hello")
		g.Expect(err).NotTo(HaveOccurred())
		answer := make([]byte, 5)
		_, err = io.ReadFull(c, answer)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(string(answer)).To(Equal("hello"))
		c.Close()
	}
	g.Expect(s.Drain(context.Background())).To(BeZero())
}
