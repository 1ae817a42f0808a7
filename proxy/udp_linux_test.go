package proxy_test

import (
	"context"
	"encoding/binary"
	"net"
	"net/netip"
	"runtime"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gleak"
	"github.com/sirupsen/logrus"
	"k8s.io/apimachinery/pkg/types"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/portal/none"
	"github.com/usherproxy/usher/proxy"
	"github.com/usherproxy/usher/proxy/outcome"
	"github.com/usherproxy/usher/proxy/proxyproto"
	"github.com/usherproxy/usher/proxy/trace"
	"github.com/usherproxy/usher/test/lab"
)

// serveUDP serves a Service with one echo server, with the portal none, and returns a client's socket.
func serveUDP(t testing.TB) (*proxy.Proxy, *net.UDPConn) {
	t.Helper()
	g := NewWithT(t)
	echo, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { echo.Close() })
	lab.Echo(echo)
	p := proxyOf(t, echo)
	client, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(p.Status()[0].Listeners[0]))
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { client.Close() })
	g.Expect(client.SetDeadline(time.Now().Add(10 * time.Minute))).To(Succeed())
	return p, client
}

// proxyOf serves a Service with this server until the test ends.
func proxyOf(t testing.TB, server *net.UDPConn) *proxy.Proxy {
	t.Helper()
	g := NewWithT(t)
	pt, err := none.Mode.New(context.Background(), portal.Options{})
	g.Expect(err).NotTo(HaveOccurred())
	o := proxy.Defaults()
	o.Portal, o.Log, o.Trace = pt, logrus.New(), trace.NewLog(100)
	p := proxy.New(o)
	t.Cleanup(p.Stop)
	p.Apply([]config.Service{echoService(server.LocalAddr().(*net.UDPAddr).AddrPort())})
	return p
}

func echoService(servers ...netip.AddrPort) config.Service {
	var endpoints []config.Endpoint
	for _, addr := range servers {
		endpoints = append(endpoints, config.Endpoint{Addr: addr, Ready: true})
	}
	return config.Service{Name: types.NamespacedName{Namespace: "default", Name: "echo"}, Ports: []config.ServicePort{{
		ID:        config.PortID{Namespace: "default", Service: "echo", Family: config.IPv4},
		Protocol:  config.UDP,
		Policy:    config.DefaultPolicy(),
		VIPs:      []config.VIP{{Kind: config.ClusterIP, Addr: netip.MustParseAddr("10.96.0.1"), Port: 53}},
		Endpoints: endpoints, Cluster: endpoints, Internal: endpoints, External: endpoints,
	}}}
}

func exchangeOnce(t testing.TB, client *net.UDPConn, buf []byte) {
	t.Helper()
	if _, err := client.Write(buf); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Read(buf); err != nil {
		t.Fatal(err)
	}
}

func TestUDPSessionsAndLoopsEndWhenTheProxyStops(t *testing.T) {
	g := NewWithT(t)
	before := gleak.Goroutines()
	p, client := serveUDP(t)
	exchangeOnce(t, client, make([]byte, 64))
	s := p.Stats().Sessions
	g.Expect(s.Open).To(BeEquivalentTo(1))
	g.Expect(s.Answered).To(BeEquivalentTo(1))
	p.Stop()
	s = p.Stats().Sessions
	g.Expect(s.Open).To(BeZero())
	g.Expect(s.Ends).To(Equal(map[outcome.Outcome]int64{outcome.Drained: 1}))
	client.Close()
	g.Eventually(gleak.Goroutines).ShouldNot(gleak.HaveLeaked(append(before, ownEcho()...)))
}

func TestUnansweredSessionEndsWithItsRemovedEndpoint(t *testing.T) {
	g := NewWithT(t)
	server, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	g.Expect(err).NotTo(HaveOccurred())
	defer server.Close()
	p := proxyOf(t, server)
	client, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(p.Status()[0].Listeners[0]))
	g.Expect(err).NotTo(HaveOccurred())
	defer client.Close()
	buf := make([]byte, 64)
	for i := range 2 { // only the first gets a response
		_, err = client.Write(buf)
		g.Expect(err).NotTo(HaveOccurred())
		_, from, err := server.ReadFromUDPAddrPort(buf)
		g.Expect(err).NotTo(HaveOccurred())
		if i == 0 {
			_, err = server.WriteToUDPAddrPort(buf, from)
			g.Expect(err).NotTo(HaveOccurred())
			_, err = client.Read(buf)
			g.Expect(err).NotTo(HaveOccurred())
		}
	}
	p.Apply([]config.Service{echoService()})
	p.Stop() // closes the listener, as removing the last endpoint does behind a redirect
	g.Expect(p.Stats().Sessions.Ends).To(Equal(map[outcome.Outcome]int64{outcome.EndpointRemoved: 1}))
}

// ownEcho returns the goroutines of the test's echo servers.
func ownEcho() (list []gleak.Goroutine) {
	for _, g := range gleak.Goroutines() {
		if g.CreatorFunction == "github.com/usherproxy/usher/test/lab.ServeUDP" {
			list = append(list, g)
		}
	}
	return list
}

func TestDatagramsOfASessionDoNotAllocate(t *testing.T) {
	_, client := serveUDP(t)
	buf := make([]byte, 64)
	exchangeOnce(t, client, buf)
	var before, after runtime.MemStats
	const rounds = 5000
	runtime.ReadMemStats(&before)
	for range rounds {
		exchangeOnce(t, client, buf)
	}
	runtime.ReadMemStats(&after)
	if perRound := float64(after.Mallocs-before.Mallocs) / rounds; perRound > 0.1 {
		t.Errorf("%.2f allocations for a datagram out and back", perRound)
	}
}

func BenchmarkUDPOutAndBack(b *testing.B) {
	_, client := serveUDP(b)
	buf := make([]byte, 64)
	exchangeOnce(b, client, buf)
	b.ReportAllocs()
	for b.Loop() {
		exchangeOnce(b, client, buf)
	}
}

func TestDatagramsHaveAPROXYHeaderIfConfigured(t *testing.T) {
	g := NewWithT(t)
	got := make(chan string, 1000)
	servers := map[string]*net.UDPConn{}
	listen := func() netip.AddrPort {
		server, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
		g.Expect(err).NotTo(HaveOccurred())
		t.Cleanup(func() { server.Close() })
		at := server.LocalAddr().(*net.UDPAddr).AddrPort()
		servers[at.String()] = server
		lab.ServeUDP(server, func(datagram []byte, _ netip.AddrPort) []byte {
			got <- string(datagram)
			return []byte(at.String())
		})
		return at
	}
	one, two := listen(), listen()
	p := proxyOf(t, servers[one.String()])
	service := echoService(one, two)
	service.Ports[0].ProxyProtocol = config.ProxyV2
	p.Apply([]config.Service{service})
	client, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(p.Status()[0].Listeners[0]))
	g.Expect(err).NotTo(HaveOccurred())
	defer client.Close()
	g.Expect(client.SetDeadline(time.Now().Add(time.Minute))).To(Succeed())
	addr := func(a net.Addr) netip.AddrPort { return a.(*net.UDPAddr).AddrPort() }
	header := string(proxyproto.Header(config.ProxyV2, config.UDP, addr(client.LocalAddr()), addr(client.RemoteAddr())))
	send := func(text string) {
		_, err := client.Write([]byte(text))
		g.Expect(err).NotTo(HaveOccurred())
	}
	hear := func() string {
		buf := make([]byte, 100)
		n, err := client.Read(buf)
		g.Expect(err).NotTo(HaveOccurred())
		return string(buf[:n])
	}

	send("first")
	g.Eventually(got).Should(Receive(Equal(header + "first")))
	had := hear() // a datagram without a header
	g.Expect(servers).To(HaveKey(had))

	// The endpoint refuses from now on. The datagrams that it has not received go to the other one, with one header.
	servers[had].Close()
	for i := 0; ; i++ {
		send("second")
		select {
		case datagram := <-got:
			g.Expect(datagram).To(Equal(header + "second"))
		case <-time.After(50 * time.Millisecond):
			g.Expect(i).To(BeNumerically("<", 100))
			continue
		}
		break
	}
	g.Expect(hear()).NotTo(Equal(had))

	// Removing the annotation takes effect for existing sessions.
	service.Ports[0].ProxyProtocol = 0
	p.Apply([]config.Service{service})
	send("third")
	for datagram := range got {
		if datagram == "third" {
			break
		}
		g.Expect(datagram).To(Equal(header+"second"), "sent before the change")
	}
	p.Stop()
	var payload int64
	for _, e := range p.Trace.Ended(10, func(*trace.Event) bool { return true }) {
		payload += e.End.ToEndpoint
	}
	g.Expect(payload).To(BeNumerically(">=", len("firstsecondthird")))
	g.Expect((payload-int64(len("firstthird")))%int64(len("second"))).To(BeZero(), "headers of %d bytes are not counted", len(header))
}

// busySession serves a UDP Service with one session that has had hundreds of replies. Then another loop forwards
// them, if there is one. The client is connected.
func busySession(t *testing.T, idle time.Duration) (p *proxy.Proxy, client, server *net.UDPConn, peer netip.AddrPort) {
	t.Helper()
	g := NewWithT(t)
	server, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { server.Close() })
	p = proxyOf(t, server)
	service := echoService(server.LocalAddr().(*net.UDPAddr).AddrPort())
	if idle > 0 {
		service.Ports[0].UDPIdleTimeout, service.Ports[0].UnansweredTimeout = idle, idle
	}
	p.Apply([]config.Service{service})
	client, err = net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(p.Status()[0].Listeners[0]))
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { client.Close() })
	g.Expect(client.SetDeadline(time.Now().Add(time.Minute))).To(Succeed())
	g.Expect(server.SetDeadline(time.Now().Add(time.Minute))).To(Succeed())
	for n := uint16(0); n < 1000; n++ { // in order, also when the other loop takes over
		const window = 4
		for i := range uint16(window) {
			g.Expect(client.Write(binary.BigEndian.AppendUint16(nil, n*window+i))).Error().NotTo(HaveOccurred())
		}
		buf := make([]byte, 2)
		for range window {
			_, peer, err = server.ReadFromUDPAddrPort(buf)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(server.WriteToUDPAddrPort(buf, peer)).Error().NotTo(HaveOccurred())
		}
		for i := range uint16(window) {
			g.Expect(client.Read(buf)).To(Equal(2))
			g.Expect(binary.BigEndian.Uint16(buf)).To(Equal(n*window + i))
		}
	}
	return p, client, server, peer
}

func TestBusySessionIsNotIdleWhileRepliesArrive(t *testing.T) {
	g := NewWithT(t)
	const idle = 5 * time.Second // a busy machine may stop the test for a while
	p, client, server, peer := busySession(t, idle)
	for began := time.Now(); time.Since(began) < idle*3/2; time.Sleep(50 * time.Millisecond) {
		g.Expect(server.WriteToUDPAddrPort([]byte("news"), peer)).Error().NotTo(HaveOccurred())
		g.Expect(client.Read(make([]byte, 8))).To(Equal(4))
	}
	g.Expect(p.Stats().Sessions.Open).To(BeEquivalentTo(1))
	g.Eventually(func() map[outcome.Outcome]int64 { return p.Stats().Sessions.Ends }).WithTimeout(30 * time.Second).Should(Equal(map[outcome.Outcome]int64{outcome.Idle: 1}))
}

func TestBusySessionEndsWhenItsEndpointRefuses(t *testing.T) {
	g := NewWithT(t)
	p, client, server, _ := busySession(t, 0)
	server.Close()
	g.Expect(client.Write([]byte("x"))).Error().NotTo(HaveOccurred())
	g.Eventually(func() map[outcome.Outcome]int64 { return p.Stats().Sessions.Ends }).WithTimeout(20 * time.Second).Should(Equal(map[outcome.Outcome]int64{outcome.EndpointReset: 1}))
}

func TestBusySessionEndsWithItsServiceAndIsCounted(t *testing.T) {
	g := NewWithT(t)
	p, client, _, _ := busySession(t, 0)
	p.Stop()
	s := p.Stats()
	g.Expect(s.Sessions.Ends).To(Equal(map[outcome.Outcome]int64{outcome.Drained: 1}))
	g.Expect(s.Sessions.ToClient).To(BeEquivalentTo(4000))
	again, err := net.ListenUDP("udp", client.RemoteAddr().(*net.UDPAddr)) // the listener's socket is closed
	g.Expect(err).NotTo(HaveOccurred())
	again.Close()
}
