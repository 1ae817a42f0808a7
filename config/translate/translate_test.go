package translate_test

import (
	"fmt"
	"net/netip"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/config/translate"
)

func TestTranslate(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "config/translate")
}

// here is the node that the specs run on.
var here = config.Node{Name: "here", Zone: "east"}

// service returns the Service default/web with cluster IP 10.96.0.10 and the unnamed port 80, with changes.
func service(changes ...func(*corev1.Service)) *corev1.Service {
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
		Spec: corev1.ServiceSpec{
			Type:       corev1.ServiceTypeClusterIP,
			ClusterIP:  "10.96.0.10",
			ClusterIPs: []string{"10.96.0.10"},
			Ports:      []corev1.ServicePort{{Protocol: "TCP", Port: 80}},
		},
	}
	for _, change := range changes {
		change(svc)
	}
	return svc
}

// dual adds an IPv6 cluster IP to a Service.
func dual(svc *corev1.Service) { svc.Spec.ClusterIPs = []string{"10.96.0.10", "fd00::10"} }

// slice returns an EndpointSlice of default/web with the unnamed port 8080.
func slice(name string, endpoints ...discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name,
			Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{port("", 8080)},
		Endpoints:   endpoints,
	}
}

func port(name string, number int32) discoveryv1.EndpointPort {
	return discoveryv1.EndpointPort{Name: &name, Port: &number}
}

// endpoint returns a ready endpoint, with changes.
func endpoint(addr string, changes ...func(*discoveryv1.Endpoint)) discoveryv1.Endpoint {
	e := discoveryv1.Endpoint{Addresses: []string{addr}}
	for _, change := range changes {
		change(&e)
	}
	return e
}

func notReady(e *discoveryv1.Endpoint)    { e.Conditions.Ready = new(false) }
func notServing(e *discoveryv1.Endpoint)  { e.Conditions.Serving = new(false) }
func serving(e *discoveryv1.Endpoint)     { e.Conditions.Serving = new(true) }
func terminating(e *discoveryv1.Endpoint) { e.Conditions.Terminating = new(true) }

// draining sets the conditions of a Pod that terminates and still serves.
func draining(e *discoveryv1.Endpoint) { notReady(e); serving(e); terminating(e) }

func onNode(name string) func(*discoveryv1.Endpoint) {
	return func(e *discoveryv1.Endpoint) { e.NodeName = &name }
}

func forZones(names ...string) func(*discoveryv1.Endpoint) {
	return func(e *discoveryv1.Endpoint) {
		if e.Hints == nil {
			e.Hints = &discoveryv1.EndpointHints{}
		}
		for _, n := range names {
			e.Hints.ForZones = append(e.Hints.ForZones, discoveryv1.ForZone{Name: n})
		}
	}
}

func forNodes(names ...string) func(*discoveryv1.Endpoint) {
	return func(e *discoveryv1.Endpoint) {
		if e.Hints == nil {
			e.Hints = &discoveryv1.EndpointHints{}
		}
		for _, n := range names {
			e.Hints.ForNodes = append(e.Hints.ForNodes, discoveryv1.ForNode{Name: n})
		}
	}
}

// translated returns the model of svc on this node, which must not cause problems.
func translated(svc *corev1.Service, slices ...*discoveryv1.EndpointSlice) config.Service {
	GinkgoHelper()
	out, problems := translate.Service(svc, slices, here, translate.Options{})
	Expect(problems).To(BeEmpty())
	return out
}

// first returns the first port of the model.
func first(svc *corev1.Service, slices ...*discoveryv1.EndpointSlice) config.ServicePort {
	GinkgoHelper()
	out := translated(svc, slices...)
	Expect(out.Ports).NotTo(BeEmpty())
	return out.Ports[0]
}

func addrs(endpoints []config.Endpoint) []string {
	out := []string{}
	for _, e := range endpoints {
		out = append(out, e.Addr.String())
	}
	return out
}

func ids(svc config.Service) []string {
	out := []string{}
	for _, p := range svc.Ports {
		out = append(out, p.ID.String())
	}
	return out
}

func messages(problems []translate.Problem) []string {
	out := []string{}
	for _, p := range problems {
		out = append(out, p.Error())
	}
	return out
}

var _ = Describe("Which Services", func() {
	DescribeTable("are not proxied",
		func(change func(*corev1.Service)) {
			out := translated(service(change), slice("a", endpoint("10.0.0.1")))
			Expect(out.Name.String()).To(Equal("default/web"))
			Expect(out.Ports).To(BeEmpty())
			Expect(out.HealthCheckNodePort).To(BeZero())
		},
		Entry("type: ExternalName", func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeExternalName }),
		Entry("clusterIP: None (headless)", func(s *corev1.Service) { s.Spec.ClusterIP, s.Spec.ClusterIPs = "None", []string{"None"} }),
		Entry("clusterIP empty", func(s *corev1.Service) { s.Spec.ClusterIP, s.Spec.ClusterIPs = "", nil }),
		Entry("label service.kubernetes.io/service-proxy-name present", func(s *corev1.Service) {
			s.Labels = map[string]string{translate.LabelServiceProxyName: "other"}
		}),
		Entry("label service.kubernetes.io/service-proxy-name present but empty", func(s *corev1.Service) {
			s.Labels = map[string]string{translate.LabelServiceProxyName: ""}
		}),
	)

	It("with the label service.kubernetes.io/headless and a cluster IP are proxied, as by kube-proxy", func() {
		out := translated(service(func(s *corev1.Service) { s.Labels = map[string]string{corev1.IsHeadlessService: ""} }), slice("a", endpoint("10.0.0.1")))
		Expect(addrs(out.Ports[0].Endpoints)).To(Equal([]string{"10.0.0.1:8080"}))
	})

	It("have the endpoints of a slice labeled for another proxy, as with kube-proxy", func() {
		s := slice("a", endpoint("10.0.0.1"))
		s.Labels[translate.LabelServiceProxyName] = "other"
		Expect(addrs(translated(service(), s).Ports[0].Endpoints)).To(Equal([]string{"10.0.0.1:8080"}))
	})

	It("are proxied if the label service.kubernetes.io/service-proxy-name has usher's configured name", func() {
		labelled := func(s *corev1.Service) { s.Labels = map[string]string{translate.LabelServiceProxyName: "usher"} }
		opts := translate.Options{ServiceProxyName: "usher"}
		s := slice("a", endpoint("10.0.0.1"))
		s.Labels[translate.LabelServiceProxyName] = "usher"
		out, _ := translate.Service(service(labelled), []*discoveryv1.EndpointSlice{s}, here, opts)
		Expect(addrs(out.Ports[0].Endpoints)).To(Equal([]string{"10.0.0.1:8080"}))

		out, _ = translate.Service(service(), nil, here, opts)
		Expect(out.Ports).To(BeEmpty(), "a proxy with a name leaves Services without the label to other proxies")

		for _, svc := range []*corev1.Service{service(labelled), service()} {
			out, _ = translate.Service(svc, nil, here, translate.Options{ServiceProxyName: translate.AnyProxy})
			Expect(out.Ports).To(HaveLen(1), "a program for one user serves both")
		}

		handwritten := slice("b", endpoint("10.0.0.2"))
		out, _ = translate.Service(service(labelled), []*discoveryv1.EndpointSlice{handwritten}, here, opts)
		Expect(addrs(out.Ports[0].Endpoints)).To(Equal([]string{"10.0.0.2:8080"}), "slices that users create need no label")
	})

	It("ignore EndpointSlices labeled service.kubernetes.io/headless", func() {
		s := slice("a", endpoint("10.0.0.1"))
		s.Labels[corev1.IsHeadlessService] = ""
		Expect(first(service(), s).Endpoints).To(BeEmpty())
	})

	It("are proxied in the same way with and without a selector", func() {
		selected := service(func(s *corev1.Service) { s.Spec.Selector = map[string]string{"app": "web"} })
		s := slice("a", endpoint("10.0.0.1"))
		Expect(translated(service(), s)).To(Equal(translated(selected, s)))
	})

	It("have one service port per port name, even if protocols share a number", func() {
		dns := service(func(s *corev1.Service) {
			s.Spec.Ports = []corev1.ServicePort{
				{Name: "metrics", Protocol: "TCP", Port: 9153},
				{Name: "dns-tcp", Protocol: "TCP", Port: 53},
				{Name: "dns", Protocol: "UDP", Port: 53},
				{Name: "assoc", Protocol: "SCTP", Port: 53},
				{Name: "plain", Port: 54},
			}
		})
		out := translated(dns)
		Expect(ids(out)).To(Equal([]string{"default/web:assoc", "default/web:dns", "default/web:dns-tcp", "default/web:metrics", "default/web:plain"}))
		Expect([]config.Protocol{out.Ports[0].Protocol, out.Ports[1].Protocol, out.Ports[2].Protocol, out.Ports[4].Protocol}).
			To(Equal([]config.Protocol{config.SCTP, config.UDP, config.TCP, config.TCP}), "TCP is the default")
	})

	It("are proxied in each family of clusterIPs, with slices of its addressType", func() {
		v6 := slice("b", endpoint("fd00:1::1"))
		v6.AddressType = discoveryv1.AddressTypeIPv6
		out := translated(service(dual), slice("a", endpoint("10.0.0.1")), v6)
		Expect(ids(out)).To(Equal([]string{"default/web", "default/web/IPv6"}))
		Expect(addrs(out.Ports[0].Endpoints)).To(Equal([]string{"10.0.0.1:8080"}))
		Expect(addrs(out.Ports[1].Endpoints)).To(Equal([]string{"[fd00:1::1]:8080"}))
		Expect(out.Ports[1].VIPs[0].AddrPort().String()).To(Equal("[fd00::10]:80"))
	})

	It("have the same model whichever family is first in clusterIPs", func() {
		reversed := service(func(s *corev1.Service) {
			s.Spec.ClusterIP, s.Spec.ClusterIPs = "fd00::10", []string{"fd00::10", "10.96.0.10"}
		})
		Expect(translated(reversed)).To(Equal(translated(service(dual))))
	})

	It("are proxied with clusterIP but no clusterIPs, as old API servers store them", func() {
		Expect(first(service(func(s *corev1.Service) { s.Spec.ClusterIPs = nil })).VIPs[0].Addr.String()).To(Equal("10.96.0.10"))
	})

	It("have the appProtocol of the port in their model", func() {
		Expect(first(service(func(s *corev1.Service) { s.Spec.Ports[0].AppProtocol = new("http") })).AppProtocol).To(Equal("http"))
	})

	It("are proxied on their valid ports; invalid ports are reported", func() {
		out, problems := translate.Service(service(func(s *corev1.Service) {
			s.Spec.Ports = []corev1.ServicePort{
				{Name: "a", Port: 70000}, {Name: "b", Port: 80, Protocol: "QUIC"}, {Name: "c", Port: 80}, {Name: "c", Port: 81},
			}
		}), nil, here, translate.Options{})
		Expect(ids(out)).To(Equal([]string{"default/web:c"}))
		Expect(messages(problems)).To(Equal([]string{
			`Service default/web: spec.ports[0].port: Invalid value: 70000: must be between 1 and 65535, inclusive`,
			`Service default/web: spec.ports[1].protocol: Unsupported value: "QUIC": supported values: "SCTP", "TCP", "UDP"`,
			`Service default/web: spec.ports[3].name: Duplicate value: "c"`,
		}))
	})

	It("are proxied in one family if the other cluster IPs are invalid", func() {
		out, problems := translate.Service(service(func(s *corev1.Service) {
			s.Spec.ClusterIPs = []string{"ten", "fd00::10", "fd00::11", "0.0.0.0", "127.0.0.1"}
		}), nil, here, translate.Options{})
		Expect(ids(out)).To(Equal([]string{"default/web/IPv6"}))
		Expect(problems).To(HaveLen(4))
	})
})

var _ = Describe("the endpoints of a Service", func() {
	It("come from slices labeled kubernetes.io/service-name in the Service's namespace", func() {
		other, nobody, elsewhere := slice("a", endpoint("10.0.0.1")), slice("b", endpoint("10.0.0.2")), slice("c", endpoint("10.0.0.3"))
		other.Labels[discoveryv1.LabelServiceName] = "other"
		nobody.Labels = nil
		elsewhere.Namespace = "elsewhere"
		Expect(addrs(first(service(), other, nobody, elsewhere, slice("d", endpoint("10.0.0.4"))).Endpoints)).
			To(Equal([]string{"10.0.0.4:8080"}))
	})

	It("are all merged, sorted by address, duplicates once, whatever the order of slices", func() {
		a := slice("a", endpoint("10.0.0.9"), endpoint("10.0.0.2"))
		b := slice("b", endpoint("10.0.0.2", onNode("x")), endpoint("10.0.0.1"))
		c := slice("c", endpoint("10.0.0.2"))
		c.Ports = []discoveryv1.EndpointPort{port("", 8081)}
		out := translated(service(), a, b, c)
		Expect(addrs(out.Ports[0].Endpoints)).To(Equal([]string{"10.0.0.1:8080", "10.0.0.2:8080", "10.0.0.2:8081", "10.0.0.9:8080"}))
		Expect(translated(service(), c, b, a)).To(Equal(out))
	})

	It("prefer a duplicate that is not terminating, even if only the other is ready", func() {
		// With publishNotReadyAddresses, a terminating Pod counts as ready.
		old := slice("a", endpoint("10.0.0.1", terminating, onNode("old")))
		for _, change := range []func(*discoveryv1.Endpoint){notReady, func(*discoveryv1.Endpoint) {}} {
			starting := slice("b", endpoint("10.0.0.1", change, onNode("new")))
			for _, order := range [][]*discoveryv1.EndpointSlice{{old, starting}, {starting, old}} {
				e := first(service(), order...).Endpoints
				Expect(e).To(HaveLen(1))
				Expect(e[0].Node).To(Equal("new"))
				Expect(e[0].Terminating).To(BeFalse())
			}
		}
	})

	It("prefer a duplicate that is ready and not terminating", func() {
		gone := slice("a", endpoint("10.0.0.1", draining, onNode("old")))
		back := slice("b", endpoint("10.0.0.1", onNode("new")))
		zombie := slice("c", endpoint("10.0.0.1", terminating, onNode("zombie")))
		for _, order := range [][]*discoveryv1.EndpointSlice{{gone, back, zombie}, {zombie, back, gone}} {
			e := first(service(), order...).Endpoints
			Expect(e).To(HaveLen(1))
			Expect(e[0].Node).To(Equal("new"))
			Expect(e[0].Ready).To(BeTrue())
		}
	})

	It("have the first address of endpoints[].addresses", func() {
		e := endpoint("10.0.0.1")
		e.Addresses = append(e.Addresses, "10.0.0.2")
		Expect(addrs(first(service(), slice("a", e)).Endpoints)).To(Equal([]string{"10.0.0.1:8080"}))
	})

	DescribeTable("match the service port by ports[].name, not by number or targetPort",
		func(servicePort string, slicePort *string, matches bool) {
			svc := service(func(s *corev1.Service) { s.Spec.Ports[0].Name = servicePort })
			s := slice("a", endpoint("10.0.0.1"))
			s.Ports[0].Name = slicePort
			Expect(first(svc, s).Endpoints).To(HaveLen(map[bool]int{true: 1}[matches]))
		},
		Entry("equal", "http", new("http"), true),
		Entry("other", "http", new("web"), false),
		Entry("unset and empty are the same", "", nil, true),
		Entry("empty and empty", "", new(""), true),
		Entry("named and unset", "http", nil, false),
		Entry("unnamed and named", "", new("http"), false),
	)

	It("have the port number of their slice", func() {
		a, b := slice("a", endpoint("10.0.0.1")), slice("b", endpoint("10.0.0.2"))
		b.Ports = []discoveryv1.EndpointPort{port("", 9090)}
		Expect(addrs(first(service(), a, b).Endpoints)).To(Equal([]string{"10.0.0.1:8080", "10.0.0.2:9090"}))
	})

	It("exclude slice ports without a number", func() {
		s := slice("a", endpoint("10.0.0.1"))
		s.Ports = []discoveryv1.EndpointPort{{Name: new("")}}
		Expect(first(service(), s).Endpoints).To(BeEmpty())
	})

	It("exclude slice ports with another protocol than the Service's, which are reported", func() {
		s := slice("a", endpoint("10.0.0.1"))
		s.Ports[0].Protocol = new(corev1.ProtocolUDP)
		out, problems := translate.Service(service(), []*discoveryv1.EndpointSlice{s}, here, translate.Options{})
		Expect(out.Ports[0].Endpoints).To(BeEmpty())
		Expect(messages(problems)).To(Equal([]string{`EndpointSlice default/a: ports[0].protocol: Invalid value: "UDP": must be TCP, the protocol of port default/web`}))
	})

	DescribeTable("have the conditions of the slice, or the defaults",
		func(ready, serving, terminating *bool, wantReady, wantServing, wantTerminating bool) {
			e := endpoint("10.0.0.1")
			e.Conditions = discoveryv1.EndpointConditions{Ready: ready, Serving: serving, Terminating: terminating}
			got := first(service(), slice("a", e)).Endpoints[0]
			Expect([]bool{got.Ready, got.Serving, got.Terminating}).To(Equal([]bool{wantReady, wantServing, wantTerminating}))
		},
		Entry("ready null: ready", nil, nil, nil, true, true, false),
		Entry("serving null: true, even if not ready", new(false), nil, nil, false, true, false),
		Entry("serving null: true", new(true), nil, new(true), true, true, true),
		Entry("terminating null: false", new(true), new(true), nil, true, true, false),
		Entry("all given", new(false), new(true), new(true), false, true, true),
	)

	It("are used only if ready, while at least one is ready", func() {
		p := first(service(), slice("a", endpoint("10.0.0.1"), endpoint("10.0.0.2", notReady), endpoint("10.0.0.3", draining)))
		Expect(addrs(p.Cluster)).To(Equal([]string{"10.0.0.1:8080"}))
		Expect(p.Endpoints).To(HaveLen(3), "all are listed, so that open connections are not closed")
	})

	It("none ready, some serving and terminating: use those", func() {
		p := first(service(), slice("a", endpoint("10.0.0.1", notReady, notServing, terminating), endpoint("10.0.0.2", notReady, serving), endpoint("10.0.0.3", draining), endpoint("10.0.0.4", notReady, terminating)))
		Expect(addrs(p.Cluster)).To(Equal([]string{"10.0.0.3:8080", "10.0.0.4:8080"}))
	})

	It("are unused if none is ready or terminating", func() {
		p := first(service(), slice("a", endpoint("10.0.0.1", notReady)))
		Expect(p.Cluster).To(BeEmpty())
		Expect(p.Internal).To(BeEmpty())
		Expect(p.External).To(BeEmpty())
		Expect(p.Endpoints).To(HaveLen(1))
	})

	It("are complete, even if there are more than 1000", func() {
		var slices []*discoveryv1.EndpointSlice
		for i := range 3 {
			s := slice(string(rune('a' + i)))
			for j := range 1000 {
				s.Endpoints = append(s.Endpoints, endpoint(netip.AddrFrom4([4]byte{10, byte(i), byte(j / 250), byte(j%250 + 1)}).String()))
			}
			slices = append(slices, s)
		}
		Expect(first(service(), slices...).Cluster).To(HaveLen(3000))
	})

	It("exclude slices with addressType FQDN", func() {
		s := slice("a", endpoint("web.example.com"))
		s.AddressType = discoveryv1.AddressTypeFQDN
		Expect(first(service(), s).Endpoints).To(BeEmpty())
	})

	DescribeTable("exclude invalid addresses, report them, and include the others",
		func(addressType discoveryv1.AddressType, bad, rule string) {
			s := slice("web-1", endpoint(bad), endpoint("10.0.0.1"))
			if addressType == discoveryv1.AddressTypeIPv6 {
				s = slice("web-1", endpoint(bad), endpoint("fd00:1::1"))
			}
			s.AddressType = addressType
			out, problems := translate.Service(service(dual), []*discoveryv1.EndpointSlice{s}, here, translate.Options{})
			Expect(append(out.Ports[0].Endpoints, out.Ports[1].Endpoints...)).To(HaveLen(1))
			Expect(messages(problems)).To(Equal([]string{`EndpointSlice default/web-1: endpoints[0].addresses[0]: Invalid value: "` + bad + `": ` + rule}))
		},
		Entry("loopback, IPv4", discoveryv1.AddressTypeIPv4, "127.1.2.3", "may not be in the loopback range (127.0.0.0/8, ::1/128)"),
		Entry("loopback, IPv6", discoveryv1.AddressTypeIPv6, "::1", "may not be in the loopback range (127.0.0.0/8, ::1/128)"),
		Entry("link-local, IPv4", discoveryv1.AddressTypeIPv4, "169.254.169.254", "may not be in the link-local range (169.254.0.0/16, fe80::/10)"),
		Entry("link-local, IPv6", discoveryv1.AddressTypeIPv6, "fe80::1", "may not be in the link-local range (169.254.0.0/16, fe80::/10)"),
		Entry("link-local multicast", discoveryv1.AddressTypeIPv4, "224.0.0.1", "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)"),
		Entry("multicast, IPv4", discoveryv1.AddressTypeIPv4, "239.1.1.1", "may not be in the multicast range (224.0.0.0/4, ff00::/8)"),
		Entry("multicast, IPv6", discoveryv1.AddressTypeIPv6, "ff0e::1", "may not be in the multicast range (224.0.0.0/4, ff00::/8)"),
		Entry("unspecified, IPv4", discoveryv1.AddressTypeIPv4, "0.0.0.0", "may not be unspecified (0.0.0.0)"),
		Entry("unspecified, IPv6", discoveryv1.AddressTypeIPv6, "::", "may not be unspecified (::)"),
		Entry("broadcast", discoveryv1.AddressTypeIPv4, "255.255.255.255", "may not be the broadcast address"),
		Entry("IPv6 in an IPv4 slice", discoveryv1.AddressTypeIPv4, "fd00:1::2", "must be an IPv4 address"),
		Entry("IPv4 in an IPv6 slice", discoveryv1.AddressTypeIPv6, "10.0.0.2", "must be an IPv6 address"),
		Entry("IPv4-mapped", discoveryv1.AddressTypeIPv6, "::ffff:127.0.0.1", "must be an IPv6 address"),
		Entry("not an IP address", discoveryv1.AddressTypeIPv4, "web", "must be an IPv4 address"),
		Entry("a VIP of the same Service", discoveryv1.AddressTypeIPv4, "10.96.0.10", "may not be an address of the Service itself"),
	)

	It("are reported if they have no address", func() {
		_, problems := translate.Service(service(), []*discoveryv1.EndpointSlice{slice("a", discoveryv1.Endpoint{})}, here, translate.Options{})
		Expect(messages(problems)).To(Equal([]string{`EndpointSlice default/a: endpoints[0].addresses: Required value: must contain at least 1 address`}))
	})

	It("exclude addresses in forbidden networks, report them, and include the others", func() {
		opts := translate.Options{ForbiddenEndpoints: []netip.Prefix{netip.MustParsePrefix("168.63.129.16/32"), netip.MustParsePrefix("fd00:ec2::254/128"), netip.MustParsePrefix("10.9.0.0/16")}}
		six := slice("b", endpoint("fd00:ec2::254"), endpoint("fd00:ec2::253"))
		six.AddressType = discoveryv1.AddressTypeIPv6
		out, problems := translate.Service(service(dual), []*discoveryv1.EndpointSlice{slice("a", endpoint("168.63.129.16"), endpoint("10.9.1.1"), endpoint("10.8.1.1")), six}, here, opts)
		Expect(addrs(out.Ports[0].Endpoints)).To(Equal([]string{"10.8.1.1:8080"}))
		Expect(addrs(out.Ports[1].Endpoints)).To(Equal([]string{"[fd00:ec2::253]:8080"}))
		Expect(messages(problems)).To(Equal([]string{
			`EndpointSlice default/a: endpoints[0].addresses[0]: Invalid value: "168.63.129.16": may not be in 168.63.129.16/32: see --forbidden-endpoint-cidrs`,
			`EndpointSlice default/a: endpoints[1].addresses[0]: Invalid value: "10.9.1.1": may not be in 10.9.0.0/16: see --forbidden-endpoint-cidrs`,
			`EndpointSlice default/b: endpoints[0].addresses[0]: Invalid value: "fd00:ec2::254": may not be in fd00:ec2::254/128: see --forbidden-endpoint-cidrs`,
		}))
	})

	It("may be loopback with AllowLoopbackEndpoints, but not link-local", func() {
		s := slice("a", endpoint("127.0.0.1"), endpoint("169.254.1.1"))
		out, problems := translate.Service(service(), []*discoveryv1.EndpointSlice{s}, here, translate.Options{AllowLoopbackEndpoints: true})
		Expect(addrs(out.Ports[0].Endpoints)).To(Equal([]string{"127.0.0.1:8080"}))
		Expect(problems).To(HaveLen(1))
	})

	DescribeTable("may have an external address of any Service, as an ingress on the host network",
		func(give func(*corev1.Service)) {
			own := service(give, func(s *corev1.Service) { s.Spec.Ports[0].Port = 8080 })
			s := slice("a", endpoint("192.0.2.1"))
			Expect(addrs(first(own, s).Cluster)).To(Equal([]string{"192.0.2.1:8080"}))

			all := translate.ClusterIPs{}
			other := service(give, func(s *corev1.Service) {
				s.Name, s.Spec.ClusterIP, s.Spec.ClusterIPs = "other", "10.96.0.11", []string{"10.96.0.11"}
				s.Spec.Ports[0].Port = 8080
			})
			all.Add(translate.ClusterIPsOf(other, ""))
			out, problems := translate.Service(service(), []*discoveryv1.EndpointSlice{s}, here, translate.Options{ClusterIPs: all})
			Expect(problems).To(BeEmpty())
			Expect(addrs(out.Ports[0].Cluster)).To(Equal([]string{"192.0.2.1:8080"}))
		},
		Entry("external IP", func(s *corev1.Service) { s.Spec.ExternalIPs = []string{"192.0.2.1"} }),
		Entry("load balancer IP", func(s *corev1.Service) {
			s.Spec.Type = corev1.ServiceTypeLoadBalancer
			s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.1"}}
		}),
	)

	It("the cluster IP of another Service: refuse, whatever the port", func() {
		other := service(func(s *corev1.Service) {
			s.Name, s.Spec.ClusterIP, s.Spec.ClusterIPs = "other", "10.96.0.11", []string{"10.96.0.11"}
		})
		all := translate.ClusterIPs{}
		all.Add(translate.ClusterIPsOf(other, ""))
		s := slice("a", endpoint("10.96.0.11"), endpoint("10.0.0.1"))
		out, problems := translate.Service(service(), []*discoveryv1.EndpointSlice{s}, here, translate.Options{ClusterIPs: all})
		Expect(addrs(out.Ports[0].Endpoints)).To(Equal([]string{"10.0.0.1:8080"}))
		Expect(messages(problems)).To(ConsistOf(HaveSuffix("may not be an address of a Service")))

		all.Remove(translate.ClusterIPsOf(other, ""))
		Expect(all).To(BeEmpty())
	})

	It("are checked against the cluster IPs of both families of served Services only", func() {
		claimed := func(changes ...func(*corev1.Service)) []netip.Addr {
			return translate.ClusterIPsOf(service(changes...), "")
		}
		Expect(claimed(dual)).To(Equal([]netip.Addr{netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("fd00::10")}))
		Expect(claimed(func(s *corev1.Service) { s.Labels = map[string]string{translate.LabelServiceProxyName: "other"} })).To(BeEmpty())
		Expect(claimed(func(s *corev1.Service) { s.Spec.Ports[0].Port = 70000 })).To(BeEmpty(), "it has no port that can be served")
	})

	It("have the Pod, node and zone of the slice", func() {
		e := endpoint("10.0.0.1", onNode("here"), func(e *discoveryv1.Endpoint) {
			e.Zone = new("east")
			e.TargetRef = &corev1.ObjectReference{Kind: "Pod", Namespace: "default", Name: "web-abc"}
		})
		Expect(first(service(), slice("a", e)).Endpoints[0]).To(Equal(config.Endpoint{
			Addr: netip.MustParseAddrPort("10.0.0.1:8080"), Pod: "default/web-abc", Node: "here", Zone: "east", Ready: true, Serving: true,
		}))
	})
})

var _ = DescribeTable("an endpoint with an invalid Pod reference is served without it, and the reference is reported",
	func(namespace, name, problem string) {
		e := endpoint("10.0.0.1", func(e *discoveryv1.Endpoint) {
			e.TargetRef = &corev1.ObjectReference{Kind: "Pod", Namespace: namespace, Name: name}
		})
		out, problems := translate.Service(service(), []*discoveryv1.EndpointSlice{slice("a", e)}, here, translate.Options{})
		Expect(out.Ports[0].Endpoints).To(HaveLen(1))
		Expect(out.Ports[0].Endpoints[0].Pod).To(BeEmpty())
		Expect(messages(problems)).To(ConsistOf(HavePrefix("EndpointSlice default/a: endpoints[0].targetRef." + problem)))
	},
	Entry("in another namespace", "kube-system", "etcd-0", `namespace: Invalid value: "kube-system": must be default, the slice's own`),
	Entry("another API path", "default", "../../kube-system/pods/etcd-0", `name: Invalid value: "../../kube-system/pods/etcd-0": `),
	Entry("two dots", "default", "..", `name: Invalid value: "..": `),
	Entry("control characters", "default", "web\n\x1b[2J", `name: Invalid value: "web\n\x1b[2J": `),
	Entry("no name", "default", "", `name: Invalid value: "": `),
)

var _ = Describe("the VIPs of a Service", func() {
	vips := func(svc *corev1.Service) map[config.PortID][]string {
		out := map[config.PortID][]string{}
		for _, p := range translated(svc).Ports {
			for _, v := range p.VIPs {
				out[p.ID] = append(out[p.ID], string(v.Kind)+" "+v.AddrPort().String())
			}
		}
		return out
	}
	v4 := config.PortID{Namespace: "default", Service: "web", Family: config.IPv4}
	v6 := config.PortID{Namespace: "default", Service: "web", Family: config.IPv6}

	It("include clusterIP:port", func() {
		Expect(vips(service())).To(Equal(map[config.PortID][]string{v4: {"ClusterIP 10.96.0.10:80"}}))
	})

	It("include the node port on the unspecified address of each family", func() {
		Expect(vips(service(dual, func(s *corev1.Service) {
			s.Spec.Type, s.Spec.Ports[0].NodePort = corev1.ServiceTypeNodePort, 30080
		}))).To(Equal(map[config.PortID][]string{
			v4: {"ClusterIP 10.96.0.10:80", "NodePort 0.0.0.0:30080"},
			v6: {"ClusterIP [fd00::10]:80", "NodePort [::]:30080"},
		}))
	})

	It("include no node port if a load balancer Service has none", func() {
		Expect(vips(service(func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeLoadBalancer }))[v4]).To(HaveLen(1))
	})

	It("include external IPs, each in its family", func() {
		Expect(vips(service(dual, func(s *corev1.Service) { s.Spec.ExternalIPs = []string{"192.0.2.1", "2001:db8::1"} }))).
			To(Equal(map[config.PortID][]string{
				v4: {"ClusterIP 10.96.0.10:80", "ExternalIP 192.0.2.1:80"},
				v6: {"ClusterIP [fd00::10]:80", "ExternalIP [2001:db8::1]:80"},
			}))
	})

	It("include load balancer IPs with ipMode VIP or unset, but not Proxy", func() {
		Expect(vips(service(func(s *corev1.Service) {
			s.Spec.Type = corev1.ServiceTypeLoadBalancer
			s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{
				{IP: "192.0.2.1"},
				{IP: "192.0.2.2", IPMode: new(corev1.LoadBalancerIPModeVIP)},
				{IP: "192.0.2.3", IPMode: new(corev1.LoadBalancerIPModeProxy)},
				{Hostname: "lb.example.com"},
			}
		}))[v4]).To(Equal([]string{"ClusterIP 10.96.0.10:80", "LoadBalancerIP 192.0.2.1:80", "LoadBalancerIP 192.0.2.2:80"}))
	})

	It("include a repeated address once", func() {
		Expect(vips(service(func(s *corev1.Service) {
			s.Spec.Type = corev1.ServiceTypeLoadBalancer
			s.Spec.ExternalIPs = []string{"192.0.2.1", "192.0.2.1"}
			s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.1"}}
		}))[v4]).To(Equal([]string{"ClusterIP 10.96.0.10:80", "ExternalIP 192.0.2.1:80"}))
	})

	It("and endpoints are limited where two lists of an author multiply", func() {
		web := slice("web")
		web.Ports = nil
		out, problems := translate.Service(service(func(s *corev1.Service) {
			s.Spec.Type = corev1.ServiceTypeLoadBalancer
			s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.1"}}
			s.Spec.Ports = nil
			for i := range 5000 {
				name := fmt.Sprintf("p%d", i)
				s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: name, Port: int32(1 + i)})
				web.Ports = append(web.Ports, discoveryv1.EndpointPort{Name: &name, Port: new(int32(8080))})
				s.Spec.LoadBalancerSourceRanges = append(s.Spec.LoadBalancerSourceRanges, fmt.Sprintf("10.%d.%d.0/24", i/250, i%250))
				s.Spec.ExternalIPs = append(s.Spec.ExternalIPs, fmt.Sprintf("203.0.%d.%d", i/250, 1+i%250))
			}
			for i := range 1000 {
				web.Endpoints = append(web.Endpoints, endpoint(fmt.Sprintf("10.0.%d.%d", i/250, 1+i%250)))
			}
		}), []*discoveryv1.EndpointSlice{web}, here, translate.Options{})
		vips, pairs := 0, 0
		for _, p := range out.Ports {
			pairs += len(p.Endpoints)
			for _, v := range p.VIPs {
				vips += 1 + len(v.Sources)
			}
		}
		Expect(vips).To(And(BeNumerically(">", 90_000), BeNumerically("<=", 100_000)))
		Expect(pairs).To(And(BeNumerically(">", 0), BeNumerically("<=", 250_000)))
		Expect(&out.Ports[0].VIPs[len(out.Ports[0].VIPs)-1].Sources[0]).To(BeIdenticalTo(&out.Ports[1].VIPs[len(out.Ports[1].VIPs)-1].Sources[0]))
		Expect(problems).To(ContainElement(MatchError(ContainSubstring("no more than 100000 pairs of a port and an address or source range"))))
	})

	DescribeTable("admit clients by loadBalancerSourceRanges",
		func(ranges []string, allowed, refused []string) {
			out, _ := translate.Service(service(dual, func(s *corev1.Service) {
				s.Spec.Type, s.Spec.LoadBalancerSourceRanges = corev1.ServiceTypeLoadBalancer, ranges
				s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.1"}, {IP: "2001:db8::1"}}
			}), nil, here, translate.Options{})
			allows := func(client string) bool {
				a := netip.MustParseAddr(client)
				for _, p := range out.Ports {
					Expect(p.VIPs[0].Allows(a)).To(BeTrue(), "source ranges do not apply to cluster IPs")
					if p.ID.Family == config.FamilyOf(a) {
						return p.VIPs[1].Allows(a)
					}
				}
				return false
			}
			for _, client := range allowed {
				Expect(allows(client)).To(BeTrue(), client)
			}
			for _, client := range refused {
				Expect(allows(client)).To(BeFalse(), client)
			}
		},
		Entry("none: all clients", nil, []string{"198.51.100.1", "2001:db8:1::1"}, nil),
		Entry("some: only from there", []string{"198.51.100.0/24", " 203.0.113.0/24 "}, []string{"198.51.100.1", "203.0.113.1"}, []string{"192.0.2.9"}),
		Entry("ranges of one family: no client of the other", []string{"198.51.100.0/24"}, []string{"198.51.100.1"}, []string{"2001:db8:1::1"}),
		Entry("an IPv4-mapped range is one of IPv4", []string{"::ffff:198.51.100.0/120"}, []string{"198.51.100.1"}, []string{"192.0.2.9", "2001:db8:1::1"}),
		Entry("0.0.0.0/0: all clients of the family", []string{"0.0.0.0/0", "2001:db8:1::/64"}, []string{"192.0.2.9", "2001:db8:1::1"}, []string{"2001:db8:2::1"}),
	)

	It("admit no client if the source range is invalid", func() {
		out, problems := translate.Service(service(func(s *corev1.Service) {
			s.Spec.Type, s.Spec.LoadBalancerSourceRanges = corev1.ServiceTypeLoadBalancer, []string{"10.0.0.0/99"}
			s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.1"}}
		}), nil, here, translate.Options{})
		Expect(out.Ports[0].VIPs[1].Allows(netip.MustParseAddr("10.0.0.1"))).To(BeFalse())
		Expect(problems).To(HaveLen(1))
	})

	It("loadBalancerSourceRanges without a range of the family of a load balancer IP are reported", func() {
		_, problems := translate.Service(service(dual, func(s *corev1.Service) {
			s.Spec.Type, s.Spec.LoadBalancerSourceRanges = corev1.ServiceTypeLoadBalancer, []string{"198.51.100.0/24"}
			s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.1"}, {IP: "2001:db8::1"}}
		}), nil, here, translate.Options{})
		Expect(messages(problems)).To(ConsistOf(`Service default/web: spec.loadBalancerSourceRanges: Invalid value: ["198.51.100.0/24"]: no IPv6 range: no client can use the load balancer IP 2001:db8::1; add a range, or remove all`))
	})

	It("exclude an external IP of a family without a cluster IP, which is reported", func() {
		out, problems := translate.Service(service(func(s *corev1.Service) { s.Spec.ExternalIPs = []string{"2001:db8::7", "192.0.2.1"} }), nil, here, translate.Options{})
		Expect(out.Ports[0].VIPs).To(HaveLen(2))
		Expect(messages(problems)).To(Equal([]string{`Service default/web: spec.externalIPs[0]: Invalid value: "2001:db8::7": not served: the Service has no cluster IP of the family IPv6`}))
	})

	It("exclude a loopback external IP, which is reported", func() {
		out, problems := translate.Service(service(func(s *corev1.Service) { s.Spec.ExternalIPs = []string{"127.0.0.1", "192.0.2.1"} }), nil, here, translate.Options{})
		Expect(out.Ports[0].VIPs).To(HaveLen(2))
		Expect(messages(problems)).To(Equal([]string{`Service default/web: spec.externalIPs[0]: Invalid value: "127.0.0.1": may not be in the loopback range (127.0.0.0/8, ::1/128)`}))
	})
})

var _ = Describe("Traffic policy", func() {
	local := corev1.ServiceInternalTrafficPolicyLocal
	internal := func(s *corev1.Service) { s.Spec.InternalTrafficPolicy = &local }
	external := func(s *corev1.Service) {
		s.Spec.Type, s.Spec.ExternalTrafficPolicy = corev1.ServiceTypeNodePort, corev1.ServiceExternalTrafficPolicyLocal
	}
	mine, theirs := endpoint("10.0.0.1", onNode("here")), endpoint("10.0.0.2", onNode("there"))

	It("Cluster: all endpoints are used", func() {
		p := first(service(), slice("a", mine, theirs))
		Expect(p.Internal).To(Equal(p.Cluster))
		Expect(p.External).To(Equal(p.Cluster))
		Expect(p.Cluster).To(HaveLen(2))
		Expect(p.InternalLocal || p.ExternalLocal).To(BeFalse())
	})

	It("internalTrafficPolicy Local: internal traffic uses only endpoints whose nodeName is this node", func() {
		p := first(service(internal), slice("a", mine, theirs, endpoint("10.0.0.3")))
		Expect(addrs(p.Internal)).To(Equal([]string{"10.0.0.1:8080"}))
		Expect(p.External).To(HaveLen(3))
		Expect(p.InternalLocal).To(BeTrue())
		Expect(p.ExternalLocal).To(BeFalse())
	})

	It("externalTrafficPolicy Local: only traffic from outside is restricted to this node's endpoints", func() {
		p := first(service(external), slice("a", mine, theirs))
		Expect(addrs(p.External)).To(Equal([]string{"10.0.0.1:8080"}))
		Expect(p.Internal).To(HaveLen(2))
		Expect(p.Cluster).To(HaveLen(2))
		Expect(p.ExternalLocal).To(BeTrue())
	})

	It("Local without an endpoint on this node: none is used, and packets can be dropped", func() {
		p := first(service(internal, external), slice("a", theirs))
		Expect(p.Internal).To(BeEmpty())
		Expect(p.External).To(BeEmpty())
		Expect(addrs(p.Cluster)).To(Equal([]string{"10.0.0.2:8080"}))
		Expect(p.InternalLocal && p.ExternalLocal).To(BeTrue())
	})

	It("Local: first ready local ones, then serving and terminating local ones, even if others are ready elsewhere", func() {
		leaving := endpoint("10.0.0.3", draining, onNode("here"))
		Expect(addrs(first(service(external), slice("a", mine, theirs, leaving)).External)).To(Equal([]string{"10.0.0.1:8080"}))
		Expect(addrs(first(service(external), slice("a", theirs, leaving)).External)).To(Equal([]string{"10.0.0.3:8080"}))
		Expect(addrs(first(service(external), slice("a", theirs, leaving)).Cluster)).To(Equal([]string{"10.0.0.2:8080"}))
	})

	It("externalTrafficPolicy Local: ignored for a Service without external addresses", func() {
		p := first(service(func(s *corev1.Service) { s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal }), slice("a", theirs))
		Expect(p.ExternalLocal).To(BeFalse())
		Expect(p.External).To(HaveLen(1))
	})

	It("Local without a node name: no endpoint is local", func() {
		out, _ := translate.Service(service(internal), []*discoveryv1.EndpointSlice{slice("a", endpoint("10.0.0.1", onNode("")))}, config.Node{}, translate.Options{})
		Expect(out.Ports[0].Internal).To(BeEmpty())
	})

	It("healthCheckNodePort: only used for type LoadBalancer with externalTrafficPolicy Local", func() {
		balanced := func(s *corev1.Service) {
			s.Spec.Type, s.Spec.HealthCheckNodePort = corev1.ServiceTypeLoadBalancer, 32000
		}
		Expect(translated(service(external, balanced)).HealthCheckNodePort).To(Equal(uint16(32000)))
		Expect(translated(service(balanced)).HealthCheckNodePort).To(BeZero())
		Expect(translated(service(balanced, external)).HealthCheckNodePort).To(BeZero())
	})
})

var _ = Describe("topology hints", func() {
	DescribeTable("select endpoints for policy Cluster",
		func(want []string, endpoints ...discoveryv1.Endpoint) {
			Expect(addrs(first(service(), slice("a", endpoints...)).Cluster)).To(Equal(want))
		},
		Entry("all have hints, one for this zone: only that one", []string{"10.0.0.1:8080"},
			endpoint("10.0.0.1", forZones("east", "north")), endpoint("10.0.0.2", forZones("west"))),
		Entry("one has no hint: all", []string{"10.0.0.1:8080", "10.0.0.2:8080"},
			endpoint("10.0.0.1", forZones("east")), endpoint("10.0.0.2")),
		Entry("no hint for this zone: all", []string{"10.0.0.1:8080", "10.0.0.2:8080"},
			endpoint("10.0.0.1", forZones("north")), endpoint("10.0.0.2", forZones("west"))),
		Entry("forNodes for this node: only those, whatever the zone hints", []string{"10.0.0.2:8080"},
			endpoint("10.0.0.1", forZones("east"), forNodes("there")), endpoint("10.0.0.2", forZones("west"), forNodes("here"))),
		Entry("forNodes for other nodes: zone hints apply", []string{"10.0.0.1:8080"},
			endpoint("10.0.0.1", forZones("east"), forNodes("there")), endpoint("10.0.0.2", forZones("west"), forNodes("there"))),
		Entry("forNodes not on all endpoints: zone hints apply", []string{"10.0.0.1:8080"},
			endpoint("10.0.0.1", forZones("east")), endpoint("10.0.0.2", forZones("west"), forNodes("here"))),
		Entry("an endpoint that is not ready needs no hint", []string{"10.0.0.1:8080"},
			endpoint("10.0.0.1", forZones("east")), endpoint("10.0.0.2", forZones("west")), endpoint("10.0.0.3", notReady)),
		Entry("the only endpoint for this zone is not ready: all ready ones", []string{"10.0.0.2:8080"},
			endpoint("10.0.0.1", forZones("east"), notReady), endpoint("10.0.0.2", forZones("west"))),
		Entry("none ready: all terminating ones, regardless of hints", []string{"10.0.0.1:8080", "10.0.0.2:8080"},
			endpoint("10.0.0.1", forZones("east"), draining), endpoint("10.0.0.2", forZones("west"), draining)),
	)

	It("are ignored on a node without a zone", func() {
		out, _ := translate.Service(service(), []*discoveryv1.EndpointSlice{slice("a", endpoint("10.0.0.1", forZones("")), endpoint("10.0.0.2", forZones("west")))},
			config.Node{Name: "here"}, translate.Options{})
		Expect(out.Ports[0].Cluster).To(HaveLen(2))
	})

	It("do not apply to policy Local", func() {
		local := corev1.ServiceInternalTrafficPolicyLocal
		p := first(service(func(s *corev1.Service) { s.Spec.InternalTrafficPolicy = &local }),
			slice("a", endpoint("10.0.0.1", onNode("here"), forZones("west")), endpoint("10.0.0.2", forZones("east"))))
		Expect(addrs(p.Internal)).To(Equal([]string{"10.0.0.1:8080"}))
		Expect(addrs(p.Cluster)).To(Equal([]string{"10.0.0.2:8080"}))
	})
})

var _ = Describe("sessionAffinity: ClientIP", func() {
	DescribeTable("timeoutSeconds",
		func(affinity corev1.ServiceAffinity, seconds *int32, want string, problems int) {
			svc := service(func(s *corev1.Service) {
				s.Spec.SessionAffinity = affinity
				if seconds != nil {
					s.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: seconds}}
				}
			})
			out, found := translate.Service(svc, nil, here, translate.Options{})
			Expect(out.Ports[0].AffinityTimeout.String()).To(Equal(want))
			Expect(found).To(HaveLen(problems))
		},
		Entry("None: no affinity", corev1.ServiceAffinityNone, nil, "0s", 0),
		Entry("unset: no affinity", corev1.ServiceAffinity(""), nil, "0s", 0),
		Entry("default 10800", corev1.ServiceAffinityClientIP, nil, "3h0m0s", 0),
		Entry("1", corev1.ServiceAffinityClientIP, new(int32(1)), "1s", 0),
		Entry("86400", corev1.ServiceAffinityClientIP, new(int32(86400)), "24h0m0s", 0),
		Entry("0 is refused", corev1.ServiceAffinityClientIP, new(int32(0)), "3h0m0s", 1),
		Entry("86401 is refused", corev1.ServiceAffinityClientIP, new(int32(86401)), "3h0m0s", 1),
	)
})
