package proxy_test

import (
	"context"
	"net"
	"net/netip"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/proxy"
	"github.com/usherproxy/usher/proxy/trace"
)

// on returns a Proxy with that portal.
func on(pt portal.Portal) *proxy.Proxy {
	GinkgoHelper()
	o := defaults()
	o.Portal = pt
	return proxy.New(o)
}

// lockedPortal is a portal whose changes wait, as if another program held the lock of the rules.
type lockedPortal struct {
	portal.Portal
	asked, free chan struct{}
	addresses   chan []netip.Prefix // for node ports
	checks      []uint16            // health check node ports
}

func (p *lockedPortal) Set(change func(*portal.Settings)) {
	var now portal.Settings
	change(&now)
	if p.checks = now.HealthChecks; now.NodePortAddresses != nil {
		p.addresses <- now.NodePortAddresses
	}
}

func (p *lockedPortal) Apply(ctx context.Context, set []portal.Rule, gone []portal.Target) portal.Result {
	p.asked <- struct{}{}
	<-p.free
	return p.Portal.Apply(ctx, set, gone)
}

// countingPortal counts how often each Service's listeners are planned.
type countingPortal struct {
	portal.Portal
	plans map[string]int
	taken net.Addr // the only place for the listener of a Service called taken
}

func (p *countingPortal) Listen(service string, targets []portal.Target) []portal.Bind {
	p.plans[service]++
	binds := p.Portal.Listen(service, targets)
	if strings.HasSuffix(service, "/taken") {
		binds[0].Addr, binds[0].Preferred = netip.MustParseAddrPort(p.taken.String()), false
	}
	return binds
}

var _ = Describe("a Service whose VIP belongs to another one", func() {
	It("is planned again once a VIP is released, not at each change", func() {
		counting := &countingPortal{Portal: defaults().Portal, plans: map[string]int{}}
		p := on(counting)
		DeferCleanup(func() { p.Stop() })
		service := func(name string, vips ...string) config.Service {
			s := config.Service{Name: types.NamespacedName{Namespace: "of-changes", Name: name}}
			port := config.ServicePort{ID: config.PortID{Namespace: "of-changes", Service: name, Port: "main", Family: config.IPv4}, Protocol: config.TCP}
			for _, vip := range vips {
				port.VIPs = append(port.VIPs, config.VIP{Kind: config.ExternalIP, Addr: netip.MustParseAddr(vip), Port: 80})
			}
			s.Ports = append(s.Ports, port)
			return s
		}
		p.Apply([]config.Service{service("first", "192.0.2.1"), service("second", "192.0.2.1"), service("other", "192.0.2.2")})
		before := counting.plans["of-changes/second"]
		Expect(before).To(BeNumerically(">", 0))
		for _, vip := range []string{"192.0.2.3", "192.0.2.4"} {
			p.Apply([]config.Service{service("other", "192.0.2.2", vip), service(vip, "192.0.2.9")})
		}
		p.Apply([]config.Service{service("third", "192.0.2.5")})
		released := counting.plans["of-changes/second"]
		Expect(released).To(Equal(before+1), "192.0.2.3 was released")
		p.Apply([]config.Service{service("first", "192.0.2.6")})
		Expect(counting.plans["of-changes/second"]).To(Equal(released + 1))
		Expect(p.Stats().Problems[proxy.ReasonConflict]).To(Equal(1), "192.0.2.9 twice")
	})
})

var _ = Describe("a Service that gets another port", func() {
	It("is recorded as changed, with the endpoints that change at the same time", func() {
		p := proxy.New(defaults())
		DeferCleanup(func() { p.Stop() })
		id := config.PortID{Namespace: "of-changes", Service: "web", Port: "main", Family: config.IPv4}
		apply := func(port uint16, endpoint string) {
			endpoints := []config.Endpoint{{Addr: netip.MustParseAddrPort(endpoint), Ready: true}}
			p.Apply([]config.Service{{Name: types.NamespacedName{Namespace: "of-changes", Name: "web"}, Ports: []config.ServicePort{{
				ID: id, Protocol: config.TCP, VIPs: []config.VIP{{Kind: config.ClusterIP, Addr: netip.MustParseAddr("10.96.0.1"), Port: port}},
				Endpoints: endpoints, Cluster: endpoints, Internal: endpoints, External: endpoints,
			}}}})
		}
		apply(8099, "127.0.0.1:1")
		apply(8098, "127.0.0.1:2")
		events := make([]trace.Event, 10)
		n, _ := p.Trace.Reader(false).Poll(events)
		var kinds []trace.Kind
		for _, e := range events[:n] {
			kinds = append(kinds, e.Kind)
		}
		Expect(kinds).To(Equal([]trace.Kind{trace.ServiceAdded, trace.ServiceChanged, trace.EndpointAdded, trace.EndpointRemoved}))
	})
})

var _ = Describe("a Service whose listener cannot be opened", func() {
	It("is planned again once another listener is closed, not at each change", func() {
		holder, err := net.Listen("tcp", "127.0.0.1:0")
		Expect(err).NotTo(HaveOccurred())
		defer holder.Close()
		counting := &countingPortal{Portal: defaults().Portal, plans: map[string]int{}, taken: holder.Addr()}
		p := on(counting)
		DeferCleanup(func() { p.Stop() })
		service := func(name, vip string, endpoints ...config.Endpoint) config.Service {
			return config.Service{Name: types.NamespacedName{Namespace: "of-changes", Name: name}, Ports: []config.ServicePort{{
				ID:        config.PortID{Namespace: "of-changes", Service: name, Port: "main", Family: config.IPv4},
				Protocol:  config.TCP,
				Policy:    config.DefaultPolicy(),
				VIPs:      []config.VIP{{Kind: config.ClusterIP, Addr: netip.MustParseAddr(vip), Port: 8099}},
				Endpoints: endpoints, Cluster: endpoints, Internal: endpoints, External: endpoints,
			}}}
		}
		endpoint := config.Endpoint{Addr: netip.MustParseAddrPort("127.0.0.1:1"), Ready: true}
		p.Apply([]config.Service{service("taken", "10.96.0.1", endpoint), service("other", "10.96.0.2", endpoint)})
		Expect(p.Stats().Problems[proxy.ReasonListen]).To(Equal(1))
		before := counting.plans["of-changes/taken"]
		p.Apply([]config.Service{service("third", "10.96.0.3", endpoint)})
		p.Apply([]config.Service{service("third", "10.96.0.3", endpoint, config.Endpoint{Addr: netip.MustParseAddrPort("127.0.0.1:2"), Ready: true})})
		Expect(counting.plans["of-changes/taken"]).To(Equal(before))
		p.Apply([]config.Service{service("other", "10.96.0.2")})
		Expect(counting.plans["of-changes/taken"]).To(BeNumerically(">", before))

		Expect(holder.Close()).To(Succeed())
		p.Check(context.Background())
		Expect(p.Stats().Problems).To(BeEmpty())
	})
})

var _ = Describe("a pending change", func() {
	var p *proxy.Proxy
	var locked *lockedPortal
	name := types.NamespacedName{Namespace: "of-changes", Name: "web"}
	vip := netip.MustParseAddrPort("10.96.0.1:80")
	web := config.Service{Name: name, Ports: []config.ServicePort{{
		ID:       config.PortID{Namespace: name.Namespace, Service: name.Name, Port: "main", Family: config.IPv4},
		Protocol: config.TCP,
		Policy:   config.DefaultPolicy(),
		VIPs:     []config.VIP{{Kind: config.ClusterIP, Addr: vip.Addr(), Port: vip.Port()}},
	}}}
	BeforeEach(func() {
		locked = &lockedPortal{Portal: defaults().Portal, asked: make(chan struct{}, 1), free: make(chan struct{}), addresses: make(chan []netip.Prefix, 1)}
		p = on(locked)
	})
	// looks calls all functions that only read, and closes the channel when they have returned.
	looks := func() <-chan struct{} {
		done := make(chan struct{})
		go func() {
			p.Stats()
			p.Status()
			p.Status()
			p.InspectService(name)
			p.ClusterIP(name, 80)
			p.Serves(vip)
			close(done)
		}()
		return done
	}

	It("that waits for another program's lock does not block readers", func() {
		applied := make(chan struct{})
		go func() {
			p.Apply([]config.Service{web})
			close(applied)
		}()
		Eventually(locked.asked).Should(Receive())
		Eventually(looks()).WithTimeout(30 * time.Second).Should(BeClosed())
		Consistently(applied).WithTimeout(10 * time.Millisecond).ShouldNot(BeClosed())
		close(locked.free)
		Eventually(applied).WithTimeout(30 * time.Second).Should(BeClosed())
		p.Stop()
	})
	It("that waits for a lock delays a change of the node port addresses", func() {
		go p.Apply([]config.Service{web})
		Eventually(locked.asked).Should(Receive())
		within := []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}
		set := make(chan struct{})
		go func() {
			p.SetNodePortAddresses(within)
			close(set)
		}()
		Consistently(locked.addresses).WithTimeout(50 * time.Millisecond).ShouldNot(Receive())
		close(locked.free)
		Eventually(locked.addresses).WithTimeout(30 * time.Second).Should(Receive(Equal(within)))
		Eventually(set).WithTimeout(30 * time.Second).Should(BeClosed())
		p.Stop()
	})
	It("includes the health check node ports of all Services, across updates", func() {
		close(locked.free)
		other := web
		other.Name.Name, other.Ports = "other", nil
		for _, is := range []struct{ web, other, want []uint16 }{
			{web: []uint16{32002}, other: []uint16{32001}, want: []uint16{32001, 32002}},
			{web: []uint16{32003}, want: []uint16{32001, 32003}},
			{other: []uint16{0}, want: []uint16{32003}},
		} {
			var services []config.Service
			for _, port := range is.web {
				web.HealthCheckNodePort = port
				services = append(services, web)
			}
			for _, port := range is.other {
				other.HealthCheckNodePort = port
				services = append(services, other)
			}
			p.Apply(services)
			<-locked.asked
			Expect(locked.checks).To(Equal(is.want))
		}
		p.Stop()
	})
	It("that waits for a successor does not block readers", func() {
		close(locked.free)
		p.Apply([]config.Service{web})
		_, _, resume, _, err := p.HandOver()
		Expect(err).NotTo(HaveOccurred())
		Eventually(looks()).WithTimeout(30 * time.Second).Should(BeClosed())
		resume()
		p.Stop()
	})
})
