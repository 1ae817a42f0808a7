package proxy_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gleak"
	"github.com/sirupsen/logrus"
	"k8s.io/apimachinery/pkg/types"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/proxy"
	"github.com/usherproxy/usher/proxy/conn"
	"github.com/usherproxy/usher/proxy/outcome"
	"github.com/usherproxy/usher/proxy/stream"
	"github.com/usherproxy/usher/proxy/trace"
	"github.com/usherproxy/usher/test/lab"
)

func TestProxy(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "proxy")
}

// These specs run the proxy with the portal none. Tests that need the kernel are in folder test.
var _ = Describe("a Proxy", func() {
	var p *proxy.Proxy
	var problems []string

	BeforeEach(func() {
		goroutines := gleak.Goroutines()
		o := defaults()
		o.SCTP = stream.SCTPOff
		o.Schedule = []time.Duration{50 * time.Millisecond, time.Minute}
		o.MaxConnectionsPerPort = 3
		problems = nil
		o.OnProblem = func(id config.PortID, problem *proxy.Problem) {
			if problem == nil {
				problems = append(problems, fmt.Sprintf("%s: solved", id))
			} else {
				problems = append(problems, fmt.Sprintf("%s: %s: %v", id, problem.Reason, problem.Err))
			}
		}
		p = proxy.New(o)
		DeferCleanup(func() {
			p.Stop()
			ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
			defer cancel()
			p.Drain(ctx)
			Eventually(gleak.Goroutines).ShouldNot(gleak.HaveLeaked(goroutines))
		})
	})

	// service returns a Service with one port on a VIP. No other tests use its namespace: concurrent tests would take
	// the loopback address.
	service := func(name, vip string, endpoints ...netip.AddrPort) config.Service {
		port := config.ServicePort{
			ID:       config.PortID{Namespace: "of-proxy", Service: name, Port: "main", Family: config.IPv4},
			Protocol: config.TCP,
			Policy:   config.DefaultPolicy(),
			VIPs:     []config.VIP{{Kind: config.ClusterIP, Addr: netip.MustParseAddr(vip), Port: 80}},
		}
		for _, e := range endpoints {
			port.Endpoints = append(port.Endpoints, config.Endpoint{Addr: e, Ready: true})
		}
		port.Cluster, port.Internal, port.External = port.Endpoints, port.Endpoints, port.Endpoints
		return config.Service{Name: types.NamespacedName{Namespace: "of-proxy", Name: name}, Ports: []config.ServicePort{port}}
	}
	gone := func(name string) config.Service {
		return config.Service{Name: types.NamespacedName{Namespace: "of-proxy", Name: name}}
	}
	// backend starts a server that responds with its name.
	backend := func(name string) netip.AddrPort {
		GinkgoHelper()
		return lab.Backend(func(c net.Conn) {
			fmt.Fprint(c, name)
			_, _ = io.Copy(io.Discard, c)
		})
	}
	listener := func(service string) string {
		GinkgoHelper()
		for _, s := range p.Status() {
			if s.Port.ID.Service == service && len(s.Listeners) > 0 {
				return s.Listeners[0].String()
			}
		}
		return ""
	}
	dial := func(service string) net.Conn {
		GinkgoHelper()
		c, err := net.Dial("tcp", listener(service))
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(func() { c.Close() })
		Expect(c.SetDeadline(time.Now().Add(5 * time.Second))).To(Succeed())
		return c
	}
	answer := func(c net.Conn) string {
		GinkgoHelper()
		buf := make([]byte, 16)
		n, err := c.Read(buf)
		Expect(err).NotTo(HaveOccurred())
		return string(buf[:n])
	}

	It("keeps an open connection while a Service changes endpoints and is removed", func() {
		p.Apply([]config.Service{service("web", "10.96.0.1", backend("one"))})
		open := dial("web")
		Expect(answer(open)).To(Equal("one"))
		at := listener("web")

		p.Apply([]config.Service{service("web", "10.96.0.1", backend("two"))})
		Expect(listener("web")).To(Equal(at), "the listener stays")
		Expect(answer(dial("web"))).To(Equal("two"))

		p.Apply([]config.Service{gone("web")})
		Expect(p.Status()).To(BeEmpty())
		Expect(net.Dial("tcp", at)).Error().To(HaveOccurred())
		Expect(open.Write([]byte("still open"))).Error().NotTo(HaveOccurred())
		Expect(p.Connections()).To(BeEquivalentTo(2))
	})

	It("ends half-closed connections after the timeout of their Service", func() {
		release := make(chan struct{})
		DeferCleanup(func() { close(release) })
		holds := func(c net.Conn) { // keeps its side open
			fmt.Fprint(c, "held")
			<-release
		}
		hurried := service("hurried", "10.96.0.1", lab.Backend(holds))
		hurried.Ports[0].HalfClosedTimeout = 200 * time.Millisecond
		p.Apply([]config.Service{hurried, service("slow", "10.96.0.2", lab.Backend(holds))})
		for _, name := range []string{"slow", "hurried"} {
			c := dial(name)
			Expect(answer(c)).To(Equal("held"))
			Expect(c.(*net.TCPConn).CloseWrite()).To(Succeed())
		}
		Eventually(func() map[outcome.Outcome]int64 { return p.Stats().Ends }).WithTimeout(5 * time.Second).Should(HaveKeyWithValue(outcome.HalfClosed, BeEquivalentTo(1)))
		Expect(p.Connections()).To(BeEquivalentTo(1), "the other Service has the default")
	})

	It("marks only cluster IPs as exclusive to a Service for the portal", func() {
		svc := service("web", "10.96.0.1")
		svc.Ports[0].VIPs = append(svc.Ports[0].VIPs, config.VIP{Kind: config.ExternalIP, Addr: netip.MustParseAddr("192.0.2.1"), Port: 80})
		p.Apply([]config.Service{svc})
		sole := map[string]bool{}
		for _, r := range p.InspectService(svc.Name)[0].Rules {
			sole[r.Target.Addr.String()] = r.Sole
		}
		Expect(sole).To(Equal(map[string]bool{"10.96.0.1": true, "192.0.2.1": false}))
	})

	It("does not listen while there are no endpoints", func() {
		p.Apply([]config.Service{service("web", "10.96.0.1")})
		Expect(listener("web")).To(BeEmpty())
		p.Apply([]config.Service{service("web", "10.96.0.1", backend("one"))})
		at := listener("web")
		Expect(answer(dial("web"))).To(Equal("one"))
		p.Apply([]config.Service{service("web", "10.96.0.1")})
		Expect(listener("web")).To(BeEmpty())
		p.Apply([]config.Service{service("web", "10.96.0.1", backend("one"))})
		Expect(listener("web")).To(Equal(at), "the listener has the same port again")
	})

	It("serves a VIP for one Service, and for the next when the first is removed", func() {
		p.Apply([]config.Service{service("a", "10.96.0.1", backend("a"))})
		p.Apply([]config.Service{service("b", "10.96.0.1", backend("b"))})
		Expect(problems).To(Equal([]string{"of-proxy/b:main: AddressConflict: ClusterIP 10.96.0.1:80/tcp is already served for of-proxy/a:main"}))
		Expect(listener("b")).To(BeEmpty())
		Expect(p.Stats().Problems).To(Equal(map[proxy.Reason]int{proxy.ReasonConflict: 1}))

		p.Apply([]config.Service{gone("a")})
		Expect(problems[1:]).To(Equal([]string{"of-proxy/b:main: solved"}))
		Expect(answer(dial("b"))).To(Equal("b"))
	})

	It("does not report the problem of a removed Service as solved", func() {
		p.Apply([]config.Service{service("a", "10.96.0.1", backend("a")), service("b", "10.96.0.1", backend("b"))})
		p.Apply([]config.Service{gone("b")})
		Expect(problems).To(HaveLen(1))
		Expect(p.Stats().Problems).To(BeEmpty())
	})

	It("logs at most 200 problems of a namespace at once", func() {
		logged := new(strings.Builder)
		p.Log.(*logrus.Logger).SetOutput(logged)
		p.Apply([]config.Service{service("a", "10.96.0.1")})
		crowd := gone("b")
		for i := range 1000 {
			port := service("b", "10.96.0.1").Ports[0]
			port.ID.Port = fmt.Sprint(i)
			crowd.Ports = append(crowd.Ports, port)
		}
		p.Apply([]config.Service{crowd})
		Expect(problems).To(HaveLen(1000))
		Expect(strings.Count(logged.String(), "\n")).To(Equal(200))
	})

	It("gives a released VIP to the first by ID of those that claim it", func() {
		p.Apply([]config.Service{service("a", "10.96.0.1", backend("a"))})
		names := []string{"g", "c", "f", "b", "e", "d"}
		for _, name := range names {
			p.Apply([]config.Service{service(name, "10.96.0.1", backend(name))})
		}
		released := service("a", "10.96.0.2", backend("a"))
		p.Apply([]config.Service{released})
		for _, next := range slices.Sorted(slices.Values(names)) {
			Expect(answer(dial(next))).To(Equal(next))
			p.Apply([]config.Service{gone(next)})
		}
	})

	It("prefers a cluster IP to an earlier external IP with the same address", func() {
		external := service("a", "10.96.0.9", backend("a"))
		external.Ports[0].VIPs = append(external.Ports[0].VIPs, config.VIP{Kind: config.ExternalIP, Addr: netip.MustParseAddr("10.96.0.1"), Port: 80})
		vip := netip.MustParseAddrPort("10.96.0.1:80")
		serves := func() string {
			GinkgoHelper()
			l, err := net.Listen("tcp", "127.0.0.1:0")
			Expect(err).NotTo(HaveOccurred())
			defer l.Close()
			c, err := net.Dial("tcp", l.Addr().String())
			Expect(err).NotTo(HaveOccurred())
			DeferCleanup(func() { c.Close() })
			client, err := l.Accept()
			Expect(err).NotTo(HaveOccurred())
			p.Serve(client.(*net.TCPConn), netip.MustParseAddrPort("10.0.0.1:1"), vip)
			Expect(c.SetDeadline(time.Now().Add(5 * time.Second))).To(Succeed())
			return answer(c)
		}
		p.Apply([]config.Service{external})
		Expect(serves()).To(Equal("a"))
		p.Apply([]config.Service{service("b", "10.96.0.1", backend("b"))})
		Expect(problems).To(Equal([]string{"of-proxy/a:main: AddressConflict: ExternalIP 10.96.0.1:80/tcp is already served for of-proxy/b:main"}))
		Expect(serves()).To(Equal("b"))
		Expect(answer(dial("a"))).To(Equal("a"), "at its own cluster IP")
		p.Apply([]config.Service{external})
		Expect(serves()).To(Equal("b"))

		p.Apply([]config.Service{gone("b")})
		Expect(problems[1:]).To(Equal([]string{"of-proxy/a:main: solved"}))
		Expect(serves()).To(Equal("a"))
	})

	It("prefers a load balancer IP to an external IP with the same address, which any author may list", func() {
		with := func(name, clusterIP string, kind config.VIPKind) config.Service {
			s := service(name, clusterIP, backend(name))
			s.Ports[0].VIPs = append(s.Ports[0].VIPs, config.VIP{Kind: kind, Addr: netip.MustParseAddr("203.0.113.7"), Port: 80})
			return s
		}
		conflict := "of-proxy/a:main: AddressConflict: ExternalIP 203.0.113.7:80/tcp is already served for of-proxy/b:main"
		p.Apply([]config.Service{with("a", "10.96.0.1", config.ExternalIP)})
		p.Apply([]config.Service{with("b", "10.96.0.2", config.LoadBalancerIP)})
		Expect(problems).To(Equal([]string{conflict}))

		p.Apply([]config.Service{with("a", "10.96.0.1", config.LoadBalancerIP)})
		Expect(problems[1:]).To(ContainElement("of-proxy/a:main: AddressConflict: LoadBalancerIP 203.0.113.7:80/tcp is already served for of-proxy/b:main"), "of two equal ones, the first keeps it")
	})

	It("takes a cluster IP from a Service that loses another VIP in the same change", func() {
		external := func(name, vip string, more ...string) config.Service {
			s := service(name, vip, backend(name))
			for _, ip := range more {
				s.Ports[0].VIPs = append(s.Ports[0].VIPs, config.VIP{Kind: config.ExternalIP, Addr: netip.MustParseAddr(ip), Port: 80})
			}
			return s
		}
		p.Apply([]config.Service{external("a", "10.96.0.8"), external("b", "10.96.0.9", "10.96.0.1", "192.0.2.1")})
		now := external("b", "10.96.0.9", "10.96.0.1")
		now.Ports[0].ID.Port = "renamed"
		p.Apply([]config.Service{external("a", "10.96.0.1"), now})
		conflict := "of-proxy/b:renamed: AddressConflict: ExternalIP 10.96.0.1:80/tcp is already served for of-proxy/a:main"
		Expect(problems).To(Equal([]string{conflict}))
		By("serving the released VIP for another Service")
		p.Apply([]config.Service{external("c", "10.96.0.7", "192.0.2.1")})
		Expect(problems).To(Equal([]string{conflict}))
		known, usable := p.Serves(netip.MustParseAddrPort("192.0.2.1:80"))
		Expect(known && usable).To(BeTrue())
	})

	It("swaps the VIPs of two Services in one change", func() {
		p.Apply([]config.Service{service("a", "10.96.0.1", backend("a")), service("b", "10.96.0.2", backend("b"))})
		p.Apply([]config.Service{service("a", "10.96.0.2", backend("a")), service("b", "10.96.0.1", backend("b"))})
		Expect(problems).To(BeEmpty())
		Expect(answer(dial("a"))).To(Equal("a"))
		Expect(answer(dial("b"))).To(Equal("b"))
	})

	It("reports no problem if Services exchange the addresses at which usher listens", func() {
		p.Portal = exactPortal{p.Portal}
		at := func(name, vip string) config.Service {
			s := service(name, vip, backend(name))
			s.Ports[0].VIPs[0].Port = 27080
			return s
		}
		p.Apply([]config.Service{at("a", "127.77.0.1"), at("b", "127.77.0.2"), at("c", "127.77.0.3")})
		p.Apply([]config.Service{at("a", "127.77.0.2"), at("b", "127.77.0.3"), at("c", "127.77.0.1")})
		Expect(problems).To(BeEmpty())
		Expect(listener("b")).To(Equal("127.77.0.3:27080"))
		Expect(answer(dial("b"))).To(Equal("b"))
	})

	It("keeps the listener of a renamed port and reports the new name", func() {
		web := service("web", "10.96.0.1", backend("one"))
		more := web.Ports[0]
		more.ID.Port, more.VIPs = "more", []config.VIP{{Kind: config.ClusterIP, Addr: netip.MustParseAddr("10.96.0.1"), Port: 81}}
		web.Ports = append(web.Ports, more)
		p.Apply([]config.Service{web})
		at := map[uint16]netip.AddrPort{}
		for _, s := range p.Status() {
			at[s.Port.VIPs[0].Port] = s.Listeners[0]
		}
		open, err := net.Dial("tcp", at[80].String())
		Expect(err).NotTo(HaveOccurred())
		defer open.Close()
		Expect(answer(open)).To(Equal("one"))

		named := func(first, second string) {
			GinkgoHelper()
			web.Ports = slices.Clone(web.Ports)
			web.Ports[0].ID.Port, web.Ports[1].ID.Port = first, second
			p.Apply([]config.Service{web})
			now, names := map[uint16]netip.AddrPort{}, map[uint16]string{}
			for _, s := range p.Status() {
				now[s.Port.VIPs[0].Port], names[s.Port.VIPs[0].Port] = s.Listeners[0], s.Port.ID.Port
			}
			Expect(now).To(Equal(at), "the listeners stay")
			Expect(names).To(Equal(map[uint16]string{80: first, 81: second}))
		}
		named("http", "more")
		named("more", "http")
		named("main", "more")
		Expect(problems).To(BeEmpty())
		Expect(p.Connections()).To(BeEquivalentTo(1))
		Expect(p.InspectService(web.Name)).To(ContainElement(HaveField("Totals.Active", BeEquivalentTo(1))), "the connection is still counted")
	})

	It("reports unsupported protocols and serves the others", func() {
		dns := service("dns", "10.96.0.1", backend("dns"))
		sctp := dns.Ports[0]
		sctp.ID.Port, sctp.Protocol = "sctp", config.SCTP
		dns.Ports = append(dns.Ports, sctp)
		p.Apply([]config.Service{dns})
		Expect(problems).To(Equal([]string{"of-proxy/dns:sctp: SCTPOff: SCTP is not served: --sctp=off"}))
		Expect(answer(dial("dns"))).To(Equal("dns"))
		p.Apply([]config.Service{gone("dns")})
		Expect(p.Stats().Problems).To(BeEmpty())
	})

	It("rejects clients above the limit and counts the ends of connections", func() {
		p.Apply([]config.Service{service("web", "10.96.0.1", backend("one"))})
		var open []net.Conn
		for range 3 {
			c := dial("web")
			Expect(answer(c)).To(Equal("one"))
			open = append(open, c)
		}
		const tooMany = 100
		began := time.Now()
		for range tooMany {
			c, err := net.Dial("tcp", listener("web"))
			if err == nil {
				_, err = c.Read(make([]byte, 1))
				c.Close()
			}
			Expect(err).To(HaveOccurred())
		}
		for _, c := range open {
			c.Close()
		}
		Eventually(p.Connections).Should(BeZero())
		Expect(answer(dial("web"))).To(Equal("one"))
		s := p.Stats()
		Expect(s.Ends).To(Equal(map[outcome.Outcome]int64{outcome.Limit: tooMany, outcome.ClientClosed: 3}))
		Expect(s.Accepted).To(BeEquivalentTo(tooMany + 4))
		Expect(s.Unlogged).To(BeNumerically(">=", tooMany-10-int(10*time.Since(began).Seconds())-1), "the trace records ten rejections per second")
		Expect(s.Attempts[conn.Connected]).To(BeEquivalentTo(4))
		Expect(s.All.ToClient).To(BeEquivalentTo(9))
	})

	It("counts all rejected clients and records ten per second", func() {
		web := service("web", "10.96.0.1", backend("one"))
		web.Ports[0].VIPs[0].Sources = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}
		p.Apply([]config.Service{web})
		const clients = 200
		began := time.Now()
		for i := range clients {
			if c, err := net.Dial("tcp", listener("web")); err == nil { // the client may get the reset at once
				c.Close()
			}
			Eventually(func() int64 { return p.Stats().Ends[outcome.SourceDenied] }).WithPolling(time.Millisecond).WithTimeout(30 * time.Second).Should(BeEquivalentTo(i + 1))
			Eventually(p.Connections).WithPolling(time.Millisecond).Should(BeZero())
		}
		atMost := 10 + int(10*time.Since(began).Seconds()) + 1
		s := p.Stats()
		Expect(s.Accepted).To(BeEquivalentTo(clients))
		traced := len(p.Trace.Ended(clients, func(*trace.Event) bool { return true }))
		Expect(traced).To(And(BeNumerically(">", 0), BeNumerically("<=", atMost)))
		Expect(s.Unlogged).To(BeEquivalentTo(clients - traced))
	})

	It("ends the search for an endpoint when the Service is removed", func() {
		holder := lab.Refusing()
		p.Apply([]config.Service{service("web", "10.96.0.1", holder)})
		c := dial("web")
		Eventually(p.Connections).Should(BeEquivalentTo(1), "accepted")
		p.Apply([]config.Service{gone("web")})
		Expect(c.Read(make([]byte, 1))).Error().To(HaveOccurred())
		Eventually(func() int64 { return p.Stats().Ends[outcome.NoEndpoint] }).Should(BeEquivalentTo(1))
	})

	It("starts with a random endpoint of a new Service", func() {
		var endpoints []netip.AddrPort
		for n := range 8 {
			endpoints = append(endpoints, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(n)}), 80))
		}
		first := map[netip.AddrPort]bool{}
		for n := range 20 { // chance of the same endpoint 20 times: 1 in 10^17 runs
			name := fmt.Sprint("web-", n)
			s := service(name, fmt.Sprint("10.96.0.", n+1), endpoints...)
			p.Apply([]config.Service{s})
			x, err := p.Explain(proxy.Question{Service: s.Name}, time.Now())
			Expect(err).NotTo(HaveOccurred())
			first[x.Order[0].Endpoint.Addr] = true
			p.Apply([]config.Service{gone(name)})
		}
		Expect(len(first)).To(BeNumerically(">", 1))
	})

	It("reports which IP family could not be updated", func() {
		pt := &brokenPortal{Portal: p.Portal}
		p.Portal = pt
		p.Apply(nil)
		pt.broken = portal.Result{Err: errors.New("no ip6tables"), Unaffected: [...]bool{portal.IPv4: true, portal.IPv6: false}}
		p.Apply([]config.Service{service("web", "10.96.0.1")})
		s := p.SyncStatus()
		Expect(s.Pending).NotTo(BeZero())
		Expect(s.Err).To(MatchError("no ip6tables"))
		Expect(s.Of(config.IPv4).Pending).To(BeZero())
		Expect(s.Of(config.IPv4).LastApplied).To(BeTemporally(">", s.LastApplied))
		Expect(s.Of(config.IPv6)).To(Equal(proxy.FamilySync{LastApplied: s.LastApplied, Pending: s.Pending}))
		pt.broken = portal.Result{Err: errors.New("no netfilter")}
		p.Apply([]config.Service{gone("web")})
		s = p.SyncStatus()
		Expect(s.Of(config.IPv4).Pending).NotTo(BeZero())
		pt.broken = portal.Result{}
		p.Check(GinkgoT().Context())
		s = p.SyncStatus()
		for _, family := range []config.Family{config.IPv4, config.IPv6} {
			Expect(s.Of(family)).To(Equal(proxy.FamilySync{LastApplied: s.LastApplied}))
		}
	})

	It("calls the portal only for the first or last endpoint, or after a failure", func() {
		pt := &brokenPortal{Portal: p.Portal}
		p.Portal = pt
		one, two := backend("one"), backend("two")
		p.Apply([]config.Service{service("web", "10.96.0.1", one)})
		Expect([]int{pt.listens, pt.applies}).To(Equal([]int{1, 1}))
		p.Apply([]config.Service{service("web", "10.96.0.1", one, two)})
		p.Apply([]config.Service{service("web", "10.96.0.1", two)})
		Expect([]int{pt.listens, pt.applies}).To(Equal([]int{1, 1}))
		Expect(answer(dial("web"))).To(Equal("two"))
		pt.broken.Err = errors.New("locked")
		p.Apply([]config.Service{service("web", "10.96.0.1")})
		Expect([]int{pt.listens, pt.applies}).To(Equal([]int{2, 2}))
		pt.broken.Err = nil
		p.Apply([]config.Service{service("web", "10.96.0.1")})
		Expect([]int{pt.listens, pt.applies}).To(Equal([]int{2, 3}))
		Expect(p.SyncStatus().Err).NotTo(HaveOccurred())
	})

	It("completes a failed change after a check that succeeds", func() {
		pt := &brokenPortal{Portal: p.Portal}
		p.Portal = pt
		pt.broken.Err = errors.New("locked")
		p.Apply([]config.Service{service("web", "10.96.0.1", backend("one"))})
		Expect(pt.applies).To(Equal(1))
		pt.checked.Err = errors.New("still locked")
		p.Check(GinkgoT().Context())
		Expect(pt.applies).To(Equal(1))
		pt.broken.Err, pt.checked.Err = nil, nil
		for range 3 {
			p.Check(GinkgoT().Context())
			Expect(pt.applies).To(Equal(2))
			Expect(p.SyncStatus().Err).NotTo(HaveOccurred())
		}
	})

	It("reports a problem while the portal refuses a rule", func() {
		pt := &brokenPortal{Portal: p.Portal}
		p.Portal = pt
		at := func(port uint16) portal.Target {
			return portal.Target{Protocol: portal.TCP, Addr: netip.MustParseAddr("10.96.0.1"), Port: port}
		}
		web := service("web", "10.96.0.1", backend("one"))
		web.Ports[0].VIPs = append(web.Ports[0].VIPs, config.VIP{Kind: config.ClusterIP, Addr: at(81).Addr, Port: 81})
		pt.broken.Refused = map[portal.Target]error{at(81): errors.New("no"), at(80): errors.New("never")}
		p.Apply([]config.Service{web})
		Expect(problems).To(Equal([]string{"of-proxy/web:main: PortalFailed: 10.96.0.1:80/tcp: never"}))
		pt.checked.Refused = map[portal.Target]error{at(81): errors.New("no")}
		p.Check(GinkgoT().Context())
		Expect(problems[1:]).To(Equal([]string{"of-proxy/web:main: PortalFailed: 10.96.0.1:81/tcp: no"}))
		pt.checked.Refused = nil
		p.Check(GinkgoT().Context())
		Expect(problems[2:]).To(Equal([]string{"of-proxy/web:main: solved"}))
	})

	It("determines listen addresses again, once per check, when listeners must move", func() {
		pt := &brokenPortal{Portal: p.Portal}
		p.Portal = pt
		p.Apply([]config.Service{service("web", "10.96.0.1", backend("one")), service("other", "10.96.0.2", backend("two"))})
		pt.checked.Moved = []portal.Target{{Protocol: portal.TCP, Addr: netip.MustParseAddr("10.96.0.1"), Port: 80}}
		for range 3 {
			pt.listens = 0
			p.Check(GinkgoT().Context())
			Expect(pt.listens).To(Equal(1))
		}
		Expect(answer(dial("web"))).To(Equal("one"))
	})

	It("reports when a change was requested and when it was applied", func() {
		Expect(p.SyncStatus()).To(BeZero())
		p.Check(GinkgoT().Context())
		Expect(p.SyncStatus().LastApplied).To(BeZero(), "no change was requested yet")
		p.Apply(nil)
		s := p.SyncStatus()
		Expect(s.Pending).To(BeZero())
		Expect(s.LastApplied).To(BeTemporally(">=", s.LastQueued))
	})
})

// exactPortal is a portal with listeners at the VIPs themselves, as the address portal has them.
type exactPortal struct{ portal.Portal }

func (exactPortal) Listen(_ string, targets []portal.Target) (binds []portal.Bind) {
	for _, t := range targets {
		binds = append(binds, portal.Bind{Addr: netip.AddrPortFrom(t.Addr, t.Port), Targets: []portal.Target{t}})
	}
	return binds
}

// brokenPortal is a portal whose changes fail while broken is set and whose repairs fail while checked is set. It
// counts the calls.
type brokenPortal struct {
	portal.Portal
	broken, checked  portal.Result
	applies, listens int
}

func (p *brokenPortal) Listen(service string, targets []portal.Target) []portal.Bind {
	p.listens++
	return p.Portal.Listen(service, targets)
}

func (p *brokenPortal) Apply(ctx context.Context, set []portal.Rule, gone []portal.Target) portal.Result {
	p.applies++
	if p.broken.Err != nil || p.broken.Refused != nil {
		return p.broken
	}
	return p.Portal.Apply(ctx, set, gone)
}

func (p *brokenPortal) Check(context.Context) portal.Result { return p.checked }
