package translate_test

import (
	"fmt"
	"net/netip"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/config/translate"
)

// discovered returns the DNS data of svc, which must not cause problems.
func discovered(svc *corev1.Service, slices ...*discoveryv1.EndpointSlice) *config.Discovery {
	GinkgoHelper()
	out, problems := translate.Discovery(svc, slices, translate.Options{})
	Expect(problems).To(BeEmpty())
	return out
}

func headless(svc *corev1.Service) {
	svc.Spec.ClusterIP, svc.Spec.ClusterIPs = corev1.ClusterIPNone, []string{corev1.ClusterIPNone}
}

func hostname(name string) func(*discoveryv1.Endpoint) {
	return func(e *discoveryv1.Endpoint) { e.Hostname = &name }
}

var _ = Describe("the DNS data of a Service", func() {
	addr := netip.MustParseAddr

	It("has the cluster IPs and the ports in the order of the Service", func() {
		svc := service(dual, func(svc *corev1.Service) {
			svc.Spec.ClusterIP, svc.Spec.ClusterIPs = "fd00::10", []string{"fd00::10", "10.96.0.10"}
			svc.Spec.Ports = []corev1.ServicePort{{Name: "web", Port: 80}, {Name: "dns", Protocol: "UDP", Port: 53}}
		})
		Expect(discovered(svc)).To(Equal(&config.Discovery{
			ClusterIPs: []netip.Addr{addr("fd00::10"), addr("10.96.0.10")},
			Ports:      []config.DiscoveryPort{{Name: "web", Protocol: config.TCP, Number: 80}, {Name: "dns", Protocol: config.UDP, Number: 53}},
		}))
	})

	It("is absent until the Service has a cluster IP", func() {
		Expect(discovered(service(func(svc *corev1.Service) { svc.Spec.ClusterIP, svc.Spec.ClusterIPs = "", nil }))).To(BeNil())
	})

	It("is the same if another proxy serves it or it has the headless label", func() {
		for _, label := range []string{translate.LabelServiceProxyName, corev1.IsHeadlessService} {
			svc := service(func(svc *corev1.Service) { svc.Labels = map[string]string{label: "other"} })
			Expect(discovered(svc).ClusterIPs).To(ConsistOf(addr("10.96.0.10")))
		}
	})

	It("is the external name if the type is ExternalName", func() {
		svc := service(func(svc *corev1.Service) {
			svc.Spec = corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "www.example.com."}
		})
		Expect(discovered(svc)).To(Equal(&config.Discovery{ExternalName: "www.example.com"}))
	})

	Context("that is headless", func() {
		endpoints := func(svc *corev1.Service, slices ...*discoveryv1.EndpointSlice) []config.DiscoveryEndpoint {
			GinkgoHelper()
			return discovered(svc, slices...).Endpoints
		}
		http := []config.DiscoveryPort{{Protocol: config.TCP, Number: 8080}}

		It("has the ready endpoints of both families, sorted, with hostnames and ports", func() {
			v6 := slice("b", endpoint("fd00::1", hostname("web-0")))
			v6.AddressType = discoveryv1.AddressTypeIPv6
			v6.Labels[corev1.IsHeadlessService] = ""
			Expect(endpoints(service(headless), v6, slice("a", endpoint("10.0.0.2"), endpoint("10.0.0.3", notReady), endpoint("10.0.0.1", hostname("web-0"))))).To(Equal([]config.DiscoveryEndpoint{
				{Addr: addr("10.0.0.1"), Hostname: "web-0", Ports: http},
				{Addr: addr("10.0.0.2"), Ports: http},
				{Addr: addr("fd00::1"), Hostname: "web-0", Ports: http},
			}))
		})

		It("includes endpoints that are not ready with publishNotReadyAddresses", func() {
			svc := service(headless, func(svc *corev1.Service) { svc.Spec.PublishNotReadyAddresses = true })
			Expect(endpoints(svc, slice("a", endpoint("10.0.0.1", notReady)))).To(HaveLen(1))
		})

		It("excludes terminating Pods", func() {
			Expect(endpoints(service(headless), slice("a", endpoint("10.0.0.1", draining)))).To(BeEmpty())
		})

		It("lists an endpoint of two slices once, with the ports of both", func() {
			other := slice("b", endpoint("10.0.0.1"))
			other.Ports = []discoveryv1.EndpointPort{port("", 8080), port("metrics", 9090)}
			Expect(endpoints(service(headless), slice("a", endpoint("10.0.0.1")), other)).To(Equal([]config.DiscoveryEndpoint{
				{Addr: addr("10.0.0.1"), Ports: append(http[:1:1], config.DiscoveryPort{Name: "metrics", Protocol: config.TCP, Number: 9090})},
			}))
		})

		It("lists the ports of many endpoints in several slices in linear time, and none beyond the limit", func() {
			many := func(name string, ports, endpoints int) *discoveryv1.EndpointSlice {
				s := slice(name)
				s.Ports = nil
				for i := range ports {
					s.Ports = append(s.Ports, port(fmt.Sprintf("%s-%d", name, i), 1+int32(i)))
				}
				for range endpoints {
					s.Endpoints = append(s.Endpoints, endpoint("10.0.0.1"))
				}
				return s
			}
			Expect(endpoints(service(headless), many("a", 20000, 1000), many("b", 20000, 1000))).To(HaveExactElements(HaveField("Ports", HaveLen(40000))))

			a, b := many("a", 200, 0), many("b", 200, 0)
			for i := range 1000 {
				e := endpoint(fmt.Sprintf("10.0.%d.%d", i/250, 1+i%250))
				a.Endpoints, b.Endpoints = append(a.Endpoints, e), append(b.Endpoints, e)
			}
			out, problems := translate.Discovery(service(headless), []*discoveryv1.EndpointSlice{a, b}, translate.Options{})
			Expect(out.Endpoints).To(BeEmpty())
			Expect(problems).To(ConsistOf(MatchError(ContainSubstring("endpoints in several slices may have no more than 250000 ports in all"))))
		})

		It("excludes endpoints of other Services", func() {
			other := slice("b", endpoint("10.0.0.1"))
			other.Labels[discoveryv1.LabelServiceName] = "other"
			Expect(endpoints(service(headless), other)).To(BeEmpty())
		})

		It("excludes invalid endpoints and ports, and reports them", func() {
			bad := slice("bad", endpoint("127.0.0.1"), endpoint("10.0.0.1"))
			bad.Ports = []discoveryv1.EndpointPort{port("a", 70000), {Name: new("all")}, port("b", 80)}
			out, problems := translate.Discovery(service(headless), []*discoveryv1.EndpointSlice{bad}, translate.Options{})
			Expect(out.Endpoints).To(Equal([]config.DiscoveryEndpoint{
				{Addr: addr("10.0.0.1"), Ports: []config.DiscoveryPort{{Name: "b", Protocol: config.TCP, Number: 80}}},
			}))
			Expect(problems).To(ConsistOf(
				MatchError(`EndpointSlice default/bad: ports[0].port: Invalid value: 70000: must be between 1 and 65535, inclusive`),
				MatchError(ContainSubstring(`EndpointSlice default/bad: endpoints[0].addresses[0]: Invalid value: "127.0.0.1": may not be in the loopback range`)),
			))
		})
	})
})
