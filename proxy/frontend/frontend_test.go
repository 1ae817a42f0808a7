package frontend

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/sirupsen/logrus"

	"github.com/usherproxy/usher/affinity"
	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/proxy/balance"
	"github.com/usherproxy/usher/proxy/budget"
	"github.com/usherproxy/usher/proxy/conn"
	"github.com/usherproxy/usher/proxy/outcome"
	"github.com/usherproxy/usher/proxy/trace"
)

// marking is a portal that ignores packets with a mark.
type marking struct {
	portal.Portal
	mark uint32
}

func (marking) Traits() portal.Traits { return portal.Traits{Redirects: true} }
func (p marking) Mark() uint32        { return p.mark }
func (p marking) Origin(client, _ netip.Addr, where portal.EndpointLocality) portal.Origin {
	if !client.IsValid() {
		return portal.Origin{Here: where != portal.Elsewhere}
	}
	return portal.Origin{Bind: netip.AddrPortFrom(client, 0), SourceAddress: portal.SourceClient}
}

var (
	vip4     = config.VIP{Kind: config.ClusterIP, Addr: netip.MustParseAddr("10.96.0.10"), Port: 80}
	vip6     = config.VIP{Kind: config.ClusterIP, Addr: netip.MustParseAddr("fd96::10"), Port: 80}
	limited  = config.VIP{Kind: config.LoadBalancerIP, Addr: netip.MustParseAddr("192.0.2.10"), Port: 80, Sources: []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}}
	nodePort = config.VIP{Kind: config.NodePort, Addr: netip.IPv4Unspecified(), Port: 30080}
)

func endpoint(n int) config.Endpoint {
	return config.Endpoint{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, 0, byte(n)}), 8080), Ready: true}
}

// front returns a front end of all these VIPs. Its first endpoint is on this node.
func front(node *Node) *FrontEnd {
	node.Log, node.Trace, node.Budget = logrus.New(), trace.NewLog(100), budget.New(budget.Limits{})
	if node.Portal == nil {
		node.Portal = marking{}
	}
	node.Init()
	port := config.ServicePort{
		ID: config.PortID{Namespace: "default", Service: "web"}, Protocol: config.TCP,
		VIPs:      []config.VIP{vip4, vip6, limited, nodePort},
		Endpoints: []config.Endpoint{endpoint(1), endpoint(2)},
	}
	port.Cluster, port.Internal, port.External = port.Endpoints, port.Endpoints, port.Endpoints[:1]
	var pool balance.Pool
	pool.Update(port, time.Now())
	f := New(node, port, affinity.NewTable(&affinity.Limits{}, 0))
	f.Swap(&View{Port: port, All: pool.All, Cluster: pool.Cluster, Internal: pool.Internal, External: pool.External})
	return f
}

func TestAdmitClient(t *testing.T) {
	f := front(&Node{})
	for _, c := range []struct {
		redirected bool
		from, to   string
		end        outcome.Outcome
		vip        config.VIP
		endpoints  int
	}{
		{true, "203.0.113.1:1", "10.96.0.10:80", outcome.Open, vip4, 2},
		{true, "[2001:db8::1]:1", "[fd96::10]:80", outcome.Open, vip6, 2},
		{true, "203.0.113.1:1", "10.96.0.10:81", outcome.BypassedPortal, vip4, 0},
		{true, "203.0.113.1:1", "203.0.113.7:30080", outcome.Open, nodePort, 1},
		{true, "127.0.0.1:1", "127.0.0.1:30080", outcome.Open, nodePort, 2},
		{true, "[2001:db8::1]:1", "[2001:db8::7]:30080", outcome.BypassedPortal, nodePort, 0},
		{true, "198.51.100.7:1", "192.0.2.10:80", outcome.Open, limited, 1},
		{true, "203.0.113.1:1", "192.0.2.10:80", outcome.SourceDenied, limited, 0},
		// Without a redirect, the listener determines the VIP.
		{false, "198.51.100.7:1", "192.0.2.10:80", outcome.Open, vip4, 2},
	} {
		t.Run(fmt.Sprintf("%s to %s, redirected %t", c.from, c.to, c.redirected), func(t *testing.T) {
			g := NewWithT(t)
			p := &Place{Redirected: c.redirected}
			p.SetTargets([]portal.Target{Target(config.TCP, vip4)})
			client := &Conn{Record: &conn.Record{From: netip.MustParseAddrPort(c.from), To: netip.MustParseAddrPort(c.to)}, Front: f}
			_, r := client.Admit(f.View(), p)
			g.Expect(r.Outcome).To(Equal(c.end))
			if c.end != outcome.Open {
				g.Expect(r.Err).To(HaveOccurred())
				return
			}
			g.Expect(r.Err).NotTo(HaveOccurred())
			g.Expect(*client.VIP).To(Equal(c.vip))
			g.Expect(client.Endpoints(f.View()).Len()).To(Equal(c.endpoints))
		})
	}
}

func TestAdmitClientOfALoadBalancer(t *testing.T) {
	f := front(&Node{})
	f.Locality.SetPods([]netip.Prefix{netip.MustParsePrefix("10.244.0.0/24")})
	balancers := &config.Balancers{Networks: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, Clients: []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24"), netip.MustParsePrefix("10.0.0.7/32"), netip.MustParsePrefix("10.244.0.0/16")}}
	v := *f.View()
	v.Port.VIPs = slices.Clone(v.Port.VIPs)
	for i := range v.Port.VIPs[2:] {
		v.Port.VIPs[2+i].Balancers = balancers
	}
	f.Swap(&v)
	const lb, np = "192.0.2.10:80", "203.0.113.7:30080"
	for _, c := range []struct {
		from, to, header string
		due              bool
		end              outcome.Outcome
		endpoints        int
	}{
		{"10.0.0.1:1", lb, "198.51.100.7:1", true, outcome.Open, 1},
		{"10.0.0.1:1", np, "198.51.100.7:1", true, outcome.Open, 1},
		{"10.0.0.1:1", lb, "203.0.113.1:1", true, outcome.SourceDenied, 0},
		{"10.0.0.1:1", np, "203.0.113.1:1", true, outcome.SourceDenied, 0},
		{"10.0.0.1:1", np, "10.244.0.9:1", true, outcome.Open, 2}, // a Pod of this node
		{"10.0.0.1:1", lb, lb, true, outcome.SourceDenied, 0},
		// The balancer itself. Source ranges do not apply to direct clients of a node port, so not to the balancer
		// either.
		{"10.0.0.1:1", np, "", true, outcome.Open, 1},
		{"10.0.0.1:1", lb, "", true, outcome.SourceDenied, 0},
		// Clients that are no balancers, and VIPs that have none.
		{"203.0.113.1:1", np, "", false, outcome.Open, 1},
		{"203.0.113.1:1", lb, "", false, outcome.SourceDenied, 0},
		{"198.51.100.7:1", lb, "", false, outcome.Open, 1},
		{"10.0.0.1:1", "10.96.0.10:80", "", false, outcome.Open, 2},
	} {
		t.Run(fmt.Sprintf("%s to %s, header %q", c.from, c.to, c.header), func(t *testing.T) {
			g := NewWithT(t)
			client := &Conn{Record: &conn.Record{From: netip.MustParseAddrPort(c.from), To: netip.MustParseAddrPort(c.to)}, Front: f}
			due, r := client.Admit(f.View(), &Place{Redirected: true})
			g.Expect(due).To(Equal(c.due))
			if c.due {
				g.Expect(r.Err).NotTo(HaveOccurred())
				header, _ := netip.ParseAddrPort(c.header)
				r = client.SetProxiedClient(header)
			}
			g.Expect(r.Outcome).To(Equal(c.end))
			if c.end != outcome.Open {
				g.Expect(r.Err).To(HaveOccurred())
				return
			}
			g.Expect(r.Err).NotTo(HaveOccurred())
			g.Expect(client.Endpoints(f.View()).Len()).To(Equal(c.endpoints))
			if c.header == "" {
				g.Expect(client.From.String()).To(Equal(c.from))
				g.Expect(client.Via).To(BeNil())
				return
			}
			g.Expect(client.From.String()).To(Equal(c.header))
			g.Expect(client.Via.String()).To(Equal(c.from))
		})
	}
}

func TestSourceAddressOfAClientNamedByALoadBalancer(t *testing.T) {
	f := front(&Node{Settings: Settings{LoadBalancers: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24")}}})
	for from, want := range map[string]portal.SourceAddress{
		"2001:db8::9": portal.SourceFamily, // the endpoint has an IPv4 address
		"169.254.7.7": portal.SourceFamily,
		"127.0.0.1":   portal.SourceOwnProcess,
		"10.1.0.1":    portal.SourceItself,
		"203.0.113.9": portal.SourceClient,
	} {
		via := netip.MustParseAddrPort("10.0.0.1:1")
		c := &Conn{Record: &conn.Record{From: netip.AddrPortFrom(netip.MustParseAddr(from), 1), Via: &via, To: netip.MustParseAddrPort("192.0.2.10:80")}, Front: f}
		source := c.Source(f.View(), f.View().All[0])
		NewWithT(t).Expect(source.SourceAddress).To(Equal(want), from)
		NewWithT(t).Expect(source.Bind.IsValid()).To(Equal(want == portal.SourceClient), from)
		via = netip.MustParseAddrPort("10.0.1.1:1") // only the Service names this address
		source = c.Source(f.View(), f.View().All[0])
		NewWithT(t).Expect(source.Bind.IsValid()).To(BeFalse())
		NewWithT(t).Expect(source.SourceAddress).To(Equal(portal.SourceHeader), from)
	}
}

func TestPortalAdmitsLoadBalancers(t *testing.T) {
	g := NewWithT(t)
	vip := limited
	networks := func() []netip.Prefix {
		v := &View{Port: config.ServicePort{VIPs: []config.VIP{vip}}, External: front(&Node{}).View().External}
		list, _ := v.Redirect(Target(config.TCP, vip), 1).Sources.In(portal.IPv4)
		return list
	}
	g.Expect(networks()).To(ConsistOf(vip.Sources[0], netip.MustParsePrefix("192.0.2.10/32")))
	vip.Balancers = &config.Balancers{Networks: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}
	g.Expect(networks()).To(ConsistOf(vip.Sources[0], netip.MustParsePrefix("192.0.2.10/32"), netip.MustParsePrefix("10.0.0.0/8")))
	vip.Sources = nil
	g.Expect(networks()).To(BeEmpty(), "all clients are allowed")
}

func TestCheckLoop(t *testing.T) {
	const vip, nodePortHere, elsewhere = "192.0.2.10:80", "127.0.0.1:30080", "203.0.113.1:30080"
	landing := netip.AddrPortFrom(netip.MustParseAddr("192.0.0.117"), 80).String()
	for name, c := range map[string]struct {
		node *Node
		back []string
	}{
		"if the portal ignores marked packets":              {&Node{Settings: Settings{Portal: marking{mark: 1}}}, []string{landing, nodePortHere}},
		"if the portal cannot recognize usher's packets":    {&Node{Settings: Settings{Portal: marking{}}}, []string{landing, nodePortHere, vip}},
		"if connections are tunneled":                       {&Node{Settings: Settings{Portal: marking{}}, Tunneled: true}, nil},
		"if the listeners are in another network namespace": {&Node{Settings: Settings{Portal: marking{}, Socket: func(int, int, int) (int, error) { return 0, nil }}}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			n := c.node
			front(n)
			for _, v := range []config.VIP{vip4, limited, nodePort} {
				n.Targets.Store(Target(config.TCP, v), nil)
			}
			var back []string
			for _, to := range []string{landing, nodePortHere, elsewhere, vip, "192.0.2.10:81"} {
				if _, err := n.CheckLoop(config.TCP, netip.MustParseAddrPort(to)); err != nil {
					back = append(back, to)
				}
				_, err := n.CheckLoop(config.UDP, netip.MustParseAddrPort(to))
				NewWithT(t).Expect(err != nil).To(Equal(to == landing && c.back != nil), "no UDP port is served: %s", to)
			}
			NewWithT(t).Expect(back).To(Equal(c.back))
		})
	}
}

func TestHopsLeftForPossibleLoops(t *testing.T) {
	g := NewWithT(t)
	n := &Node{Settings: Settings{Portal: marking{mark: 1}}}
	front(n)
	for _, protocol := range []config.Protocol{config.TCP, config.SCTP} {
		n.Targets.Store(Target(protocol, nodePort), nil)
	}
	elsewhere, here := netip.MustParseAddrPort("203.0.113.1:30080"), netip.MustParseAddrPort("127.0.0.1:30080")
	for came, want := range map[int]int{255: 63, 64: 63, 63: 62, 9: 8, 8: 0, 1: 0, 0: 0} {
		hops, err := HopsLeft(came)
		g.Expect(hops).To(Equal(want), "of %d", came)
		g.Expect(err != nil).To(Equal(want == 0), "of %d", came)
	}
	g.Expect(n.CheckLoop(config.TCP, elsewhere)).To(BeTrue())
	g.Expect(n.CheckLoop(config.TCP, here)).Error().To(MatchError(ErrLoop))
	n.Locality.SetNodePorts([]netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")})
	g.Expect(n.CheckLoop(config.TCP, here)).Error().NotTo(HaveOccurred(), "this address has no node ports")
	n.Locality.SetNodePorts(nil)
	g.Expect(n.CheckLoop(config.TCP, netip.MustParseAddrPort("203.0.113.1:80"))).To(BeFalse(), "the received hop limit is irrelevant")
	g.Expect(n.CheckLoop(config.SCTP, elsewhere)).Error().To(MatchError(errMayLoop))
	g.Expect(n.CheckLoop(config.UDP, elsewhere)).Error().NotTo(HaveOccurred())
}

// placed is a portal that can preserve clients' addresses, except for endpoints on other nodes.
type placed struct{ marking }

func (placed) Origin(client, endpoint netip.Addr, where portal.EndpointLocality) portal.Origin {
	switch {
	case !client.IsValid():
		return portal.Origin{}
	case where == portal.Here:
		return portal.Origin{Bind: netip.AddrPortFrom(client, 0), SourceAddress: portal.SourceClient}
	}
	return portal.Origin{SourceAddress: portal.SourceElsewhere}
}

func TestSourceAddressThatAnEndpointSees(t *testing.T) {
	const vip, outside, itself = "10.96.0.10", "203.0.113.1", "10.1.0.1"
	usual := Settings{Portal: placed{}, NodeName: "here"}
	configured, nameless := usual, usual
	configured.NodeAddress, nameless.NodeName = true, ""
	for name, c := range map[string]struct {
		node     *Node
		from     string
		change   func(*FrontEnd, *config.Endpoint)
		want     portal.SourceAddress
		whatever bool // true for all clients
	}{
		"the client, if the portal supports it":            {&Node{Settings: usual}, outside, nil, portal.SourceClient, false},
		"as the portal reports":                            {&Node{Settings: usual}, outside, func(_ *FrontEnd, e *config.Endpoint) { e.Node = "there" }, portal.SourceElsewhere, false},
		"as for another node, if no node is known":         {&Node{Settings: nameless}, outside, func(_ *FrontEnd, e *config.Endpoint) { e.Node = "" }, portal.SourceElsewhere, false},
		"the node, if configured for all endpoints":        {&Node{Settings: configured}, outside, nil, portal.SourceConfigured, true},
		"the node, if configured for the Service":          {&Node{Settings: usual}, outside, func(f *FrontEnd, _ *config.Endpoint) { f.View().Port.NodeAddress = true }, portal.SourceConfigured, true},
		"the node, if connections are tunneled":            {&Node{Settings: usual, Tunneled: true}, outside, nil, portal.SourceTunnel, true},
		"the node, for SCTP":                               {&Node{Settings: usual}, outside, func(f *FrontEnd, _ *config.Endpoint) { f.Protocol = config.SCTP }, portal.SourceSCTP, true},
		"the node, if the client is a process of the node": {&Node{Settings: usual}, "127.0.0.1", nil, portal.SourceOwnProcess, false},
		"the node, if the client's address is the VIP":     {&Node{Settings: usual}, vip, nil, portal.SourceOwnProcess, false},
		"the node, if the client is the endpoint":          {&Node{Settings: usual}, itself, nil, portal.SourceItself, false},
		"the node, if configured, takes precedence":        {&Node{Settings: configured}, itself, nil, portal.SourceConfigured, true},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			f, e := front(c.node), endpoint(1)
			if e.Node = "here"; c.change != nil {
				c.change(f, &e)
			}
			o := f.Origin(f.View(), netip.MustParseAddr(c.from), netip.MustParseAddr(vip), &e)
			g.Expect(o.SourceAddress).To(Equal(c.want))
			g.Expect(o.Bind.IsValid()).To(Equal(c.want.IsClient()))
			if !c.whatever {
				c.want = 0
			}
			g.Expect(f.Origin(f.View(), netip.Addr{}, netip.MustParseAddr(vip), &e).SourceAddress).To(Equal(c.want), "for an unspecified client")
		})
	}
}

// With the portal none, one listener serves all VIPs of a family. Its clients have connected to none of them.
func TestAdmitClientOfAListenerForSeveralVIPs(t *testing.T) {
	g := NewWithT(t)
	f := front(&Node{})
	port := f.View().Port
	port.VIPs[2].Addr = netip.MustParseAddr("10.0.0.5") // below the cluster IP
	f.Swap(&View{Port: port, Internal: f.View().Internal, External: f.View().External})
	p := &Place{}
	for _, c := range []struct {
		targets []config.VIP
		vip     config.VIPKind
		end     outcome.Outcome
	}{
		{[]config.VIP{nodePort, port.VIPs[2], vip4}, config.ClusterIP, outcome.Open},
		{[]config.VIP{port.VIPs[2]}, config.LoadBalancerIP, outcome.SourceDenied},
	} {
		var targets []portal.Target
		for _, vip := range c.targets {
			targets = append(targets, Target(config.TCP, vip))
		}
		p.SetTargets(targets)
		client := &Conn{Record: &conn.Record{From: netip.MustParseAddrPort("127.0.0.1:1"), To: netip.MustParseAddrPort("127.64.1.2:80")}, Front: f}
		_, r := client.Admit(f.View(), p)
		g.Expect(client.VIP.Kind).To(Equal(c.vip))
		g.Expect(r.Outcome).To(Equal(c.end))
	}
}

// With the portal address, the listener of a node port also gets the clients of a VIP with that port whose own listener
// could not be opened.
func TestAdmitClientOfANodePortThatConnectedToAVIP(t *testing.T) {
	g := NewWithT(t)
	f := front(&Node{})
	port := f.View().Port
	same := config.VIP{Kind: config.ClusterIP, Addr: netip.MustParseAddr("10.96.0.12"), Port: 30080}
	port.VIPs = append(port.VIPs, same)
	f.Swap(&View{Port: port})
	f.Targets.Store(Target(config.TCP, config.VIP{Addr: netip.MustParseAddr("10.96.0.11"), Port: 30080}), nil) // of another Service
	p := &Place{}
	p.SetBound(portal.Bind{Targets: []portal.Target{Target(config.TCP, nodePort)}}, netip.MustParseAddrPort("0.0.0.0:30080"))
	for to, want := range map[string]config.VIPKind{"192.0.2.7:30080": config.NodePort, "10.96.0.12:30080": config.ClusterIP, "10.96.0.11:30080": ""} {
		client := &Conn{Record: &conn.Record{From: netip.MustParseAddrPort("203.0.113.1:1"), To: netip.MustParseAddrPort(to)}, Front: f}
		_, r := client.Admit(f.View(), p)
		g.Expect(r.Outcome == outcome.Open).To(Equal(want != ""), to)
		if want != "" {
			g.Expect(client.VIP.Kind).To(Equal(want), to)
		}
	}
}

func TestServesIfThePortChanges(t *testing.T) {
	addr := netip.MustParseAddr("127.64.1.2")
	for _, c := range []struct {
		name                string
		at, wanted, service uint16
		preferred, redirect bool
		want                bool
	}{
		{"a listener at the wanted port", 80, 80, 80, true, false, true},
		{"a listener at another port, since the wanted one is unavailable", 4711, 80, 80, true, false, true},
		{"a listener of a shared address, whose port depends on the VIPs", 20001, 20002, 80, true, false, true},
		{"a listener of a Service whose port changes", 80, 81, 81, true, false, false},
		{"a listener behind a redirect, at any port", 4711, 4712, 81, true, true, true},
		{"a listener whose port is required", 4711, 80, 80, false, false, false},
	} {
		bind := func(port, service uint16) portal.Bind {
			return portal.Bind{Addr: netip.AddrPortFrom(addr, port), Preferred: c.preferred, Redirected: c.redirect,
				Targets: []portal.Target{{Protocol: portal.TCP, Addr: netip.IPv4Unspecified(), Port: 30080}, {Protocol: portal.TCP, Addr: vip4.Addr, Port: service}}}
		}
		p := &Place{}
		p.SetBound(bind(0, 80), netip.AddrPortFrom(addr, c.at))
		b := bind(c.wanted, c.service)
		NewWithT(t).Expect(p.Serves(b)).To(Equal(c.want), c.name)
	}
}

func TestListenIfThePortIsInUse(t *testing.T) {
	localhost := netip.MustParseAddr("127.0.0.1")
	for _, c := range []struct {
		name      string
		wanted    uint16
		preferred bool
		ports     portal.PortRange
		free      uint16
		err       error
		want      string
	}{
		{"the wanted port", 80, true, portal.PortRange{}, 80, syscall.EADDRINUSE, "127.0.0.1:80"},
		{"any other port", 80, true, portal.PortRange{}, 0, syscall.EADDRINUSE, "127.0.0.1:0"},
		{"any other port, if the user may not use the wanted one", 80, true, portal.PortRange{}, 0, syscall.EACCES, "127.0.0.1:0"},
		{"a port of the configured range", 80, true, portal.PortRange{First: 1000, Last: 1009}, 1007, syscall.EADDRINUSE, "127.0.0.1:1007"},
		{"a port of the configured range that is free, though the portal has assigned all", 0, true, portal.PortRange{First: 1000, Last: 1009}, 1007, syscall.EADDRINUSE, "127.0.0.1:1007"},
		{"none outside of the range", 0, true, portal.PortRange{First: 1000, Last: 1009}, 0, syscall.EADDRINUSE, "too many listeners on local ports: found no free port from 1000 to 1009 (set --proxy-port-range to more ports)"},
		{"none, if the port is required", 80, false, portal.PortRange{}, 0, syscall.EADDRINUSE, "cannot listen on 127.0.0.1:80: address already in use"},
		{"none, if the error has another cause", 80, true, portal.PortRange{}, 0, syscall.EAFNOSUPPORT, "cannot listen on 127.0.0.1:80: address family not supported by protocol"},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := NewWithT(t)
			at, err := Listen(&Node{Settings: Settings{Ports: c.ports}}, portal.Bind{Addr: netip.AddrPortFrom(localhost, c.wanted), Preferred: c.preferred}, func(a netip.AddrPort) (string, error) {
				if a.Port() != c.free {
					return "", fmt.Errorf("listen tcp: %w", c.err)
				}
				return a.String(), nil
			})
			if at == "" {
				g.Expect(err).To(MatchError(c.want))
				return
			}
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(at).To(Equal(c.want))
		})
	}
}

func TestTraceEventsOfRefusedClientsAreLimited(t *testing.T) {
	g := NewWithT(t)
	f := front(&Node{})
	traced := 0
	began := time.Now()
	for range 10 * RefusalsPerSecond {
		c := &Conn{Record: &conn.Record{ID: f.NewID(), Port: f.View().Clients, From: netip.MustParseAddrPort("203.0.113.1:1")}, Front: f}
		if !c.CountUnlogged(outcome.Limit) {
			traced++
			c.Accepted()
			c.Closed(c.Start, outcome.Result{Outcome: outcome.Limit, Err: errors.ErrUnsupported}, netip.AddrPort{})
		}
	}
	atMost := RefusalsPerSecond + int(RefusalsPerSecond*time.Since(began).Seconds()) + 1
	g.Expect(traced).To(And(BeNumerically(">=", RefusalsPerSecond), BeNumerically("<=", atMost)))
	s := f.Stats()
	g.Expect(s.Accepted).To(BeEquivalentTo(10 * RefusalsPerSecond))
	g.Expect(s.Ends[outcome.Limit]).To(BeEquivalentTo(10 * RefusalsPerSecond))
	g.Expect(s.Unlogged).To(BeEquivalentTo(10*RefusalsPerSecond - traced))
	g.Expect(f.Totals().Failed).To(BeEquivalentTo(10 * RefusalsPerSecond))
	g.Expect(f.Trace.Ended(1000, func(*trace.Event) bool { return true })).To(HaveLen(traced))
}

// TestEndsAreCountedByCode checks the labels of metrics and the API's counters of a Service.
func TestEndsAreCountedByCode(t *testing.T) {
	g := NewWithT(t)
	f := front(&Node{})
	for i, word := range []string{"client-closed", "endpoint-closed", "client-reset", "endpoint-reset", "no-response", "half-closed", "no-endpoint", "attempts-failed",
		"queue-timeout", "bypassed-portal", "source-denied", "proxy-header-invalid", "limit", "drained", "max-age", "idle", "endpoint-drained", "endpoint-removed", "vip-removed", "internal"} {
		g.Expect(outcome.Words()[i]).To(Equal(word))
		for range i + 1 {
			c := &Conn{Record: &conn.Record{ID: f.NewID(), Port: f.View().Clients, From: netip.MustParseAddrPort("203.0.113.1:1"), Start: time.Now()}, Front: f}
			c.Accepted()
			c.Closed(time.Now(), outcome.Result{Outcome: outcome.Named(word)}, netip.AddrPort{})
		}
		for _, ends := range []map[outcome.Outcome]int64{f.Stats().Ends, f.PortMetrics().Ends()} {
			g.Expect(ends).To(HaveLen(i + 1))
			g.Expect(ends[outcome.Named(word)]).To(BeEquivalentTo(i + 1))
		}
	}
	g.Expect(outcome.Words()).To(HaveLen(20))
	g.Expect(f.Totals().Failed).To(BeEquivalentTo(f.Totals().Accepted-16-14-11-18-19), "all but idle, drained, source-denied, endpoint-removed and vip-removed")
	g.Expect(f.Stats().Sessions.Ends).To(BeEmpty())
}

func TestViewOfManyVIPsFindsEach(t *testing.T) {
	g := NewWithT(t)
	f := front(&Node{})
	for _, n := range []int{1, manyVIPs - 1, manyVIPs, 5000} {
		port := f.View().Port
		port.VIPs = nil
		for i := range n {
			port.VIPs = append(port.VIPs, config.VIP{Kind: config.ExternalIP, Addr: netip.AddrFrom4([4]byte{192, 0, byte(i >> 8), byte(i)}), Port: 80})
		}
		again := port.VIPs[0]
		again.Kind = config.LoadBalancerIP
		port.VIPs = append(port.VIPs, again)
		f.Swap(&View{Port: port})
		for i := range n {
			vip, ok := f.View().VIPAt(port.VIPs[i].AddrPort())
			g.Expect(ok).To(BeTrue())
			g.Expect(vip).To(BeIdenticalTo(&port.VIPs[i]))
		}
		_, ok := f.View().VIPAt(netip.AddrPortFrom(again.Addr, 81))
		g.Expect(ok).To(BeFalse())
	}
}

// TestRuleHasSourcesOfItsFamily expects that a rule has no networks of the other family: the kernel's rule has none, and
// the two would seem to differ.
func TestRuleHasSourcesOfItsFamily(t *testing.T) {
	g := NewWithT(t)
	both := vip4
	both.Sources = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("2001:db8::/32")}
	v := &View{Port: config.ServicePort{VIPs: []config.VIP{both}}}
	g.Expect(v.Redirect(Target(config.TCP, both), 4000).Sources).To(Equal(portal.Sources("10.0.0.0/8 10.96.0.10/32")))
	v.Port.VIPs[0].Sources = append(both.Sources, netip.MustParsePrefix("0.0.0.0/0"))
	g.Expect(v.Redirect(Target(config.TCP, both), 4000).Sources).To(BeEmpty(), "all clients")
}

// TestEndpointsThatSeeClients expects that a failed attempt from this node's address proves nothing about the clients
// whose own addresses an endpoint on another node sees.
func TestEndpointsThatSeeClients(t *testing.T) {
	g := NewWithT(t)
	f := front(&Node{Settings: Settings{NodeName: "here"}})
	for node, sees := range map[string]bool{"": false, "other": true, "here": false} {
		e := endpoint(1)
		e.Node = node
		g.Expect(f.seesClientsElsewhere(&e)).To(Equal(sees), node)
	}
	f.NodeAddress = true
	e := endpoint(1)
	g.Expect(f.seesClientsElsewhere(&e)).To(BeFalse(), "all clients have this node's address")
}
