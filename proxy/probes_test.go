package proxy_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gleak"
	"k8s.io/apimachinery/pkg/types"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/proxy"
	"github.com/usherproxy/usher/proxy/conn"
	"github.com/usherproxy/usher/test/lab"
)

var _ = Describe("a Proxy with an endpoint that refuses connections", func() {
	var (
		p         *proxy.Proxy
		options   proxy.Options
		good, bad netip.AddrPort
	)
	BeforeEach(func() {
		goroutines := gleak.Goroutines()
		options = defaults()
		options.Quarantine.First, options.Quarantine.Max = 10*time.Millisecond, 40*time.Millisecond
		DeferCleanup(func() {
			p.Stop()
			ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
			defer cancel()
			p.Drain(ctx)
			Eventually(gleak.Goroutines).WithTimeout(30 * time.Second).ShouldNot(gleak.HaveLeaked(goroutines))
		})
		hello := func(c net.Conn) {
			fmt.Fprint(c, "hello")
			_, _ = io.Copy(io.Discard, c)
		}
		good = lab.Backend(hello)
		// No other process uses this address, so the port stays free.
		l, err := net.Listen("tcp", "127.117.0.1:0")
		Expect(err).NotTo(HaveOccurred())
		bad = l.Addr().(*net.TCPAddr).AddrPort()
		l.Close()
	})
	service := func(name, vip string, endpoints ...netip.AddrPort) config.Service {
		id := types.NamespacedName{Namespace: "of-probes", Name: name}
		port := config.ServicePort{
			ID: config.PortID{Namespace: id.Namespace, Service: name, Family: config.IPv4}, Protocol: config.TCP, Policy: config.DefaultPolicy(),
			VIPs: []config.VIP{{Kind: config.ClusterIP, Addr: netip.MustParseAddr(vip), Port: 80}},
		}
		for _, e := range endpoints {
			port.Endpoints = append(port.Endpoints, config.Endpoint{Addr: e, Ready: true})
		}
		port.Cluster, port.Internal, port.External = port.Endpoints, port.Endpoints, port.Endpoints
		return config.Service{Name: id, Ports: []config.ServicePort{port}}
	}
	serve := func(services ...config.Service) {
		p = proxy.New(options)
		p.Apply(services)
	}
	// connect makes several connections to the n-th Service, one after the other.
	connect := func(n, times int) {
		GinkgoHelper()
		at := p.Status()[n].Listeners[0].String()
		for range times {
			c, err := net.Dial("tcp", at)
			Expect(err).NotTo(HaveOccurred())
			Expect(c.SetDeadline(time.Now().Add(10 * time.Second))).To(Succeed())
			Expect(c.Read(make([]byte, 5))).To(Equal(5))
			c.Close()
		}
	}
	refusedAttempts := func() int64 { return p.Stats().Attempts[conn.Refused] }
	refusedProbes := func() int64 { return p.Stats().Probes[conn.Refused] }
	back := func() {
		GinkgoHelper()
		l, err := net.Listen("tcp", bad.String())
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(func() { l.Close() })
		lab.Serve(l, func(c net.Conn) { fmt.Fprint(c, "hello") })
	}

	It("detects its recovery with probes; before that, only one client attempts to connect", func() {
		serve(service("web", "10.96.0.1", bad, good))
		connect(0, 2)
		Expect(refusedAttempts()).To(BeEquivalentTo(1))
		Eventually(func() int64 { connect(0, 5); return refusedProbes() }).WithTimeout(30 * time.Second).Should(BeNumerically(">=", 4))
		Expect(refusedAttempts()).To(BeEquivalentTo(1))

		back()
		Eventually(func() int64 { return p.Stats().Recoveries }).WithTimeout(30 * time.Second).Should(BeEquivalentTo(1))
		before := p.Stats()
		Expect(before.Probes[conn.Connected]).To(BeEquivalentTo(1))
		connect(0, 4)
		after := p.Stats()
		Expect(after.Attempts[conn.Connected] - before.Attempts[conn.Connected]).To(BeEquivalentTo(4))
		Expect(after.Accepted - before.Accepted).To(BeEquivalentTo(4))
		e := p.Status()[0].Endpoints[0]
		Expect(e.Connected.Load()).To(BeEquivalentTo(2), "the endpoint is in rotation, and probes do not count")
	})

	It("probes the endpoint once for all its Services", func() {
		options.Quarantine.First = time.Second // the first probe is later than the restart
		serve(service("a", "10.96.0.1", bad, good), service("b", "10.96.0.2", bad, good))
		connect(0, 2)
		connect(1, 2)
		back()
		Eventually(func() int64 { return p.Stats().Recoveries }).WithTimeout(30 * time.Second).Should(BeEquivalentTo(2))
		s := p.Stats()
		Expect(s.Quarantines).To(BeEquivalentTo(2))
		Expect(s.Probes[conn.Connected]).To(BeEquivalentTo(1))
	})

	It("does not probe a removed endpoint", func() {
		serve(service("web", "10.96.0.1", bad, good), service("other", "10.96.0.2", bad, good))
		connect(0, 2)
		connect(1, 2)
		Eventually(refusedProbes).WithTimeout(30 * time.Second).Should(BeNumerically(">=", 1))
		p.Apply([]config.Service{service("web", "10.96.0.1", good), {Name: types.NamespacedName{Namespace: "of-probes", Name: "other"}}})
		last := int64(-1)
		Eventually(func() bool { // one may be in progress; then none in ten times the longest wait
			before := last
			last = refusedProbes()
			return last == before
		}).WithTimeout(10 * time.Second).WithPolling(10 * options.Quarantine.Max).Should(BeTrue())
	})

	It("uses clients' connections as probes if probes are disabled", func() {
		options.Quarantine.UntilProbe = false
		serve(service("web", "10.96.0.1", bad, good))
		Eventually(func() int64 { connect(0, 2); return refusedAttempts() }).WithTimeout(30 * time.Second).Should(BeNumerically(">=", 3))
		Expect(p.Stats().Probes).To(HaveEach(BeZero()))
	})
})
