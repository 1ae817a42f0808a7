package translate_test

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/config/translate"
)

// wrong returns n endpoints at multicast addresses, in slices of a thousand.
func wrong(n int) (out []*discoveryv1.EndpointSlice) {
	addr := netip.MustParseAddr("239.0.0.1")
	for i := range n {
		if i%1000 == 0 {
			out = append(out, slice(fmt.Sprintf("web-%03d", i/1000)))
		}
		s := out[len(out)-1]
		s.Endpoints = append(s.Endpoints, endpoint(addr.String()))
		addr = addr.Next()
	}
	return out
}

var _ = Describe("the problems of a Service", func() {
	found := func(svc *corev1.Service, slices ...*discoveryv1.EndpointSlice) []translate.Problem {
		_, problems := translate.Service(svc, slices, here, translate.Options{})
		return problems
	}
	const rule = `may not be in the multicast range (224.0.0.0/4, ff00::/8)`

	It("are reported one by one if there are few", func() {
		Expect(messages(found(service(), wrong(5)...))).To(HaveLen(5))
	})

	It("are reported once per kind, with the first five, if there are many", func() {
		slices := wrong(100_000)
		slices[1].Endpoints[0] = endpoint("0.0.0.0")
		Expect(messages(found(service(), slices...))).To(Equal([]string{
			`EndpointSlice default/web-000: endpoints[0].addresses[0]: Invalid value: "239.0.0.1": ` + rule + "; and 99998 more of this kind: endpoints[1].addresses[0] \"239.0.0.2\", endpoints[2].addresses[0] \"239.0.0.3\", endpoints[3].addresses[0] \"239.0.0.4\", endpoints[4].addresses[0] \"239.0.0.5\", …",
			`EndpointSlice default/web-001: endpoints[0].addresses[0]: Invalid value: "0.0.0.0": may not be unspecified (0.0.0.0)`,
		}))
	})

	It("name the slice of each of the first five that is in another slice", func() {
		var slices []*discoveryv1.EndpointSlice
		for i := range 6 {
			slices = append(slices, slice(fmt.Sprintf("web-%d", i), endpoint("239.0.0.1")))
		}
		Expect(messages(found(service(), slices...))).To(ConsistOf(HaveSuffix(
			`and 5 more of this kind: EndpointSlice default/web-1: endpoints[0].addresses[0] "239.0.0.1", EndpointSlice default/web-2: endpoints[0].addresses[0] "239.0.0.1", ` +
				`EndpointSlice default/web-3: endpoints[0].addresses[0] "239.0.0.1", EndpointSlice default/web-4: endpoints[0].addresses[0] "239.0.0.1", …`)))
	})

	It("are found in time proportional to the number of endpoints", func() {
		took := func(n int) time.Duration {
			slices := wrong(n)
			began := time.Now()
			Expect(found(service(), slices...)).To(HaveLen(1))
			return time.Since(began)
		}
		took(10_000)
		few := min(took(10_000), took(10_000), took(10_000))
		Expect(took(100_000)).To(BeNumerically("<", 50*few+time.Second))
	})

	It("are limited in number and size, whatever the objects contain", func() {
		// Each port's protocol violates a different rule.
		s := slice("a", endpoint("10.0.0.1"))
		s.Ports = nil
		svc := service(func(s *corev1.Service) { s.Spec.Ports = nil })
		for i := range 1000 {
			name := fmt.Sprintf("p%d", i)
			svc.Spec.Ports = append(svc.Spec.Ports, corev1.ServicePort{Name: name, Port: int32(i + 1)})
			p := port(name, 80)
			p.Protocol = new(corev1.ProtocolUDP)
			s.Ports = append(s.Ports, p)
		}
		problems := found(svc, s)
		Expect(len(problems)).To(BeNumerically("<=", 30))
		Expect(len(strings.Join(messages(problems), ""))).To(BeNumerically("<", 10_000))
	})

	It("have the same gist for 100 and 1000 of one kind", func() {
		gist := func(n int) string {
			problems := found(service(), wrong(n)...)
			Expect(problems).To(HaveLen(1))
			return problems[0].Gist()
		}
		Expect(gist(1000)).To(Equal(gist(100)))
		Expect(gist(1)).NotTo(Equal(gist(100)))
	})

	It("are reported in the same way for a headless Service", func() {
		_, problems := translate.Discovery(service(headless), wrong(1000), translate.Options{})
		Expect(messages(problems)).To(ConsistOf(ContainSubstring("and 999 more of this kind: ")))
	})

	It("do not prevent valid endpoints from being served", func() {
		slices := append(wrong(2000), slice("zzz", endpoint("10.0.0.1")))
		out, _ := translate.Service(service(), slices, config.Node{}, translate.Options{})
		Expect(addrs(out.Ports[0].Cluster)).To(Equal([]string{"10.0.0.1:8080"}))
	})
})
