package proxy_test

import (
	"io"
	"net"
	"net/netip"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/proxy"
	"github.com/usherproxy/usher/test/lab"
)

var _ = Describe("a Proxy with the least-connections scheduler", func() {
	var p *proxy.Proxy
	serve := func(protocol config.Protocol, schedule time.Duration, endpoints ...netip.AddrPort) string {
		GinkgoHelper()
		o := defaults()
		o.Schedule, o.Quarantine.First = []time.Duration{schedule}, 0
		p = proxy.New(o)
		DeferCleanup(func() { stop(p) })
		port := config.ServicePort{
			ID: config.PortID{Namespace: "of-schedulers", Service: "web", Family: config.IPv4}, Protocol: protocol, Policy: config.Policy{Scheduler: config.LeastConnections, UDPIdleTimeout: 200 * time.Millisecond, UnansweredTimeout: time.Minute},
			VIPs: []config.VIP{{Kind: config.ClusterIP, Addr: netip.MustParseAddr("10.96.0.10"), Port: 80}},
		}
		for _, e := range endpoints {
			port.Endpoints = append(port.Endpoints, config.Endpoint{Addr: e, Ready: true})
		}
		port.Cluster, port.Internal, port.External = port.Endpoints, port.Endpoints, port.Endpoints
		p.Apply([]config.Service{{Name: types.NamespacedName{Namespace: "of-schedulers", Name: "web"}, Ports: []config.ServicePort{port}}})
		return p.Status()[0].Listeners[0].String()
	}
	active := func() (counts []int64) {
		for _, e := range p.Status()[0].Endpoints {
			counts = append(counts, e.Active.Load())
		}
		return counts
	}
	connect := func(to string) net.Conn {
		GinkgoHelper()
		c, err := net.Dial("tcp", to)
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(func() { c.Close() })
		return c
	}
	alive := func() netip.AddrPort { return lab.Backend(func(c net.Conn) { _, _ = io.Copy(c, c) }) }

	It("counts attempts in progress, so that a burst avoids an unresponsive endpoint", func() {
		to := serve(config.TCP, time.Hour, lab.Silent(), alive())
		for range 20 {
			connect(to)
		}
		Eventually(active).WithTimeout(30 * time.Second).Should(Equal([]int64{10, 10}))
		stop(p)
		Eventually(active).WithTimeout(30 * time.Second).Should(Equal([]int64{0, 0}))
	})

	It("does not count failed attempts and ended connections", func() {
		to := serve(config.TCP, time.Minute, nobody(), alive(), nobody(), alive())
		var open []net.Conn
		for range 30 {
			open = append(open, connect(to))
		}
		total := func() (sum int64) {
			for _, n := range active() {
				sum += n
			}
			return sum
		}
		Eventually(func() int64 { return p.Stats().Established }).WithTimeout(30 * time.Second).Should(BeEquivalentTo(30))
		Eventually(total).WithTimeout(30 * time.Second).Should(BeEquivalentTo(30))
		for _, c := range open {
			c.Close()
		}
		Eventually(total).WithTimeout(30 * time.Second).Should(BeZero())
	})

	It("counts UDP sessions only until they end", func() {
		var servers []netip.AddrPort
		for range 2 {
			l, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
			Expect(err).NotTo(HaveOccurred())
			DeferCleanup(l.Close)
			servers = append(servers, l.LocalAddr().(*net.UDPAddr).AddrPort())
		}
		to := serve(config.UDP, 0, append(servers, nobody())...)
		for range 12 {
			c, err := net.Dial("udp", to)
			Expect(err).NotTo(HaveOccurred())
			DeferCleanup(func() { c.Close() })
			Expect(c.Write([]byte("hello"))).To(Equal(5))
		}
		Eventually(func() int64 { return p.Stats().Sessions.Begun }).WithTimeout(30 * time.Second).Should(BeEquivalentTo(12))
		Eventually(active).WithTimeout(30 * time.Second).Should(Equal([]int64{0, 0, 0}))
	})
})
