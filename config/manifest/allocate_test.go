package manifest

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/usherproxy/usher/config"
)

// nodePortsOf returns the node ports of a Service, in the order of its ports.
func (w *world) nodePortsOf(name string) (out []uint16) {
	for _, p := range w.served(name).Ports {
		for _, v := range p.VIPs {
			if v.Kind == config.NodePort {
				out = append(out, v.Port)
			}
		}
	}
	return out
}

// balancersOf returns the load balancer IPs of a Service.
func (w *world) balancersOf(name string) (out []string) {
	for _, p := range w.served(name).Ports {
		for _, v := range p.VIPs {
			if v.Kind == config.LoadBalancerIP {
				out = append(out, v.Addr.String())
			}
		}
	}
	return out
}

var _ = Describe("a Service that specifies no node port", func() {
	It("gets the same one from the upper band each time, and keeps it when changed", func() {
		w := newWorld()
		w.write("a.yaml", svc("one", "type: NodePort"))
		had := w.nodePortsOf("one")
		Expect(had).To(HaveExactElements(BeNumerically(">=", 30086)))
		Expect(had).To(HaveExactElements(BeNumerically("<=", 32767)))
		w.write("a.yaml", svc("one", "type: LoadBalancer"))
		Expect(w.nodePortsOf("one")).To(Equal(had))
		again := newWorld()
		again.write("a.yaml", svc("two", "type: NodePort")+svc("one", "type: NodePort"))
		Expect(again.nodePortsOf("one")).To(Equal(had))
	})
	It("gets another one if its new version names the previous one for another port", func() {
		w := newWorld()
		w.write("a.yaml", svc("one", "type: NodePort"))
		had := w.nodePortsOf("one")[0]
		w.write("a.yaml", strings.Replace(svc("one", "type: NodePort"), "[{port: 80}]", fmt.Sprintf("[{name: a, port: 80}, {name: b, port: 81, nodePort: %d}]", had), 1))
		now := w.nodePortsOf("one")
		Expect(now).To(HaveLen(2))
		Expect(now[1]).To(Equal(had))
		Expect(now[0]).NotTo(Equal(had))
	})
	It("gets none if it is a ClusterIP or sets allocateLoadBalancerNodePorts: false", func() {
		w := newWorld()
		w.write("a.yaml", svc("one", "type: LoadBalancer, allocateLoadBalancerNodePorts: false")+svc("two", ""))
		Expect(w.nodePortsOf("one")).To(BeEmpty())
		Expect(w.nodePortsOf("two")).To(BeEmpty())
	})
	It("gets one number for all protocols of a port", func() {
		w := newWorld()
		w.write("a.yaml", strings.Replace(svc("dns", "type: NodePort"), "[{port: 80}]", "[{name: tcp, port: 53}, {name: udp, port: 53, protocol: UDP}, {name: other, port: 54}]", 1))
		had := w.nodePortsOf("dns") // order: other, tcp, udp
		Expect(had).To(HaveLen(3))
		Expect(had[1]).To(Equal(had[2]))
		Expect(had[0]).NotTo(Equal(had[1]))
	})
	It("gets the one that the other protocol of the port specifies", func() {
		w := newWorld()
		w.write("a.yaml", strings.Replace(svc("dns", "type: NodePort"), "[{port: 80}]", "[{name: udp, port: 53, protocol: UDP}, {name: tcp, port: 53, nodePort: 30053}]", 1))
		Expect(w.nodePortsOf("dns")).To(Equal([]uint16{30053, 30053}))
	})
	It("gets one number for all protocols, even if its first choice is taken for one of them", func() {
		dns := strings.Replace(svc("dns", "type: NodePort"), "[{port: 80}]", "[{name: tcp, port: 53}, {name: udp, port: 53, protocol: UDP}]", 1)
		w := newWorld()
		w.write("a.yaml", dns)
		had := w.nodePortsOf("dns")[0]
		again := newWorld()
		again.write("a.yaml", dns+strings.Replace(svc("two", "type: NodePort"), "{port: 80}", fmt.Sprintf("{port: 80, nodePort: %d}", had), 1))
		Expect(again.nodePortsOf("dns")).To(Equal([]uint16{had + 1, had + 1}))
	})
	It("gets another one if another Service specifies that one", func() {
		w := newWorld()
		w.write("a.yaml", svc("one", "type: NodePort"))
		had := w.nodePortsOf("one")[0]
		again := newWorld()
		again.write("a.yaml", svc("one", "type: NodePort")+strings.Replace(svc("two", "type: NodePort"), "{port: 80}", fmt.Sprintf("{port: 80, nodePort: %d}", had), 1))
		Expect(again.nodePortsOf("two")).To(Equal([]uint16{had}))
		Expect(again.nodePortsOf("one")).To(HaveExactElements(Equal(had + 1)))
		Expect(again.said()).To(BeEmpty())
	})
	It("keeps it if another Service specifies it later, which is reported", func() {
		w := newWorld()
		w.write("a.yaml", svc("one", "type: NodePort"))
		had := w.nodePortsOf("one")
		w.write("b.yaml", strings.Replace(svc("two", "type: NodePort"), "{port: 80}", fmt.Sprintf("{port: 80, nodePort: %d}", had[0]), 1))
		Expect(w.nodePortsOf("one")).To(Equal(had))
		Expect(w.said()).To(ContainSubstring("Service default/two: spec.ports[0].nodePort: Invalid value: %d: provided port is already allocated to Service default/one", had[0]))
		w.write("a.yaml", "")
		Expect(w.nodePortsOf("two")).To(Equal(had), "the owner was removed")
	})
	It("keeps its ports, and takes no others, if a later version needs more than are free", func() {
		w := newWorld()
		w.resolver.nodePorts = Ports{40000, 40002}
		w.write("a.yaml", svc("one", "type: NodePort"))
		had := w.nodePortsOf("one")
		Expect(had).To(HaveLen(1))
		many := strings.Replace(svc("one", "type: NodePort"), "{port: 80}", "{name: a, port: 80}, {name: b, port: 81}, {name: c, port: 82}, {name: d, port: 83}", 1)
		for range 2 {
			w.write("a.yaml", many)
			Expect(w.said()).To(ContainSubstring("Service default/one: spec.ports: no free port in node port range 40000-40002"))
			Expect(w.nodePortsOf("one")).To(Equal(had), "the last valid version is served")
		}
		w.write("b.yaml", svc("two", "type: NodePort")+svc("three", "type: NodePort"))
		Expect(slices.Concat(had, w.nodePortsOf("two"), w.nodePortsOf("three"))).To(ConsistOf(uint16(40000), uint16(40001), uint16(40002)))
		w.write("a.yaml", "")
		w.write("c.yaml", svc("four", "type: NodePort"))
		Expect(w.nodePortsOf("four")).To(Equal(had))
	})
	It("gets none if none is free, which is reported", func() {
		w := newWorld()
		w.resolver.nodePorts = Ports{40000, 40001}
		w.write("a.yaml", svc("one", "type: NodePort")+svc("two", "type: NodePort")+svc("three", "type: NodePort"))
		Expect(append(w.nodePortsOf("one"), w.nodePortsOf("two")...)).To(ConsistOf(uint16(40000), uint16(40001)))
		Expect(w.said()).To(Equal("a.yaml, document 3, Service default/three: spec.ports: no free port in node port range 40000-40001"))
		w.write("a.yaml", svc("two", "type: NodePort")+svc("three", "type: NodePort"))
		Expect(w.nodePortsOf("three")).To(HaveLen(1))
		Expect(w.said()).To(BeEmpty())
	})
	It("gets one for health checks with externalTrafficPolicy Local", func() {
		w := newWorld()
		w.write("a.yaml", svc("one", "type: LoadBalancer, externalTrafficPolicy: Local"))
		had := w.served("one").HealthCheckNodePort
		Expect(had).To(BeNumerically(">=", 30086))
		w.write("a.yaml", svc("one", "type: LoadBalancer, externalTrafficPolicy: Local, sessionAffinity: ClientIP"))
		Expect(w.served("one").HealthCheckNodePort).To(Equal(had))
	})
})

var _ = Describe("a Service of type LoadBalancer", func() {
	var w *world
	BeforeEach(func() {
		w = newWorld("10.96.0.0/12", "fd00::/112")
		w.resolver.balancerNets = networks{netip.MustParsePrefix("192.0.2.0/28"), netip.MustParsePrefix("2001:db8::/64")}
	})
	It("gets a load balancer IP of each family, and keeps them when it changes", func() {
		w.write("a.yaml", svc("one", "type: LoadBalancer, ipFamilyPolicy: PreferDualStack"))
		had := w.balancersOf("one")
		Expect(had).To(HaveExactElements(HavePrefix("192.0.2."), HavePrefix("2001:db8::")))
		w.write("b.yaml", svc("two", "type: LoadBalancer"))
		w.write("a.yaml", svc("one", "type: LoadBalancer, ipFamilyPolicy: PreferDualStack, sessionAffinity: ClientIP"))
		Expect(w.balancersOf("one")).To(Equal(had))
		Expect(w.balancersOf("two")).To(HaveLen(1))
		Expect(w.balancersOf("two")[0]).NotTo(Equal(had[0]))
		w.write("a.yaml", svc("one", ""))
		Expect(w.balancersOf("one")).To(BeEmpty())
	})
	It("has the IPs in its status, which no other Service gets", func() {
		for i := range 16 {
			w.write(fmt.Sprint(i, ".yaml"), svc(fmt.Sprint("s", i), fmt.Sprintf("type: LoadBalancer}\nstatus: {loadBalancer: {ingress: [{ip: 192.0.2.%d}]}", i)))
		}
		w.write("a.yaml", svc("one", "type: LoadBalancer"))
		Expect(w.balancersOf("s3")).To(Equal([]string{"192.0.2.3"}))
		Expect(w.balancersOf("one")).To(BeEmpty())
		Expect(w.said()).To(ContainSubstring("Service default/one: status.loadBalancer: no free address in --load-balancer-ip-cidr 192.0.2.0/28"))
		Expect(w.has("one")).NotTo(BeEmpty(), "it is still served")
		w.write("3.yaml", "")
		Expect(w.balancersOf("one")).To(Equal([]string{"192.0.2.3"}))
	})
	It("gets its loadBalancerIP if it is renamed, and keeps it if another Service names it", func() {
		for range 20 { // in any order of a map
			w.write("a.yaml", svc("old", "type: LoadBalancer, loadBalancerIP: 198.51.100.7"), "b.yaml", "")
			w.write("a.yaml", svc("new", "type: LoadBalancer, loadBalancerIP: 198.51.100.7"))
			Expect(w.balancersOf("new")).To(ConsistOf("198.51.100.7"))
			w.write("b.yaml", svc("two", "type: LoadBalancer, loadBalancerIP: 198.51.100.7"))
			w.write("a.yaml", svc("new", "type: LoadBalancer, loadBalancerIP: 198.51.100.7, sessionAffinity: ClientIP"))
			Expect(w.balancersOf("new")).To(ConsistOf("198.51.100.7"))
			Expect(w.balancersOf("two")).To(BeEmpty())
		}
	})
	It("keeps the load balancer IP that it got if another Service names it", func() {
		w.write("b.yaml", svc("two", "type: LoadBalancer"))
		had := w.balancersOf("two")
		Expect(had).To(HaveLen(1))
		w.write("a.yaml", svc("one", "type: LoadBalancer, loadBalancerIP: "+had[0]))
		w.write("b.yaml", svc("two", "type: LoadBalancer, sessionAffinity: ClientIP"))
		Expect(w.balancersOf("two")).To(Equal(had))
		Expect(w.balancersOf("one")).To(BeEmpty())
	})
	It("gets its loadBalancerIP from a Service that moves to another one", func() {
		w.write("b.yaml", svc("two", "type: LoadBalancer, loadBalancerIP: 198.51.100.7"))
		w.write("a.yaml", svc("one", "type: LoadBalancer, loadBalancerIP: 198.51.100.7"))
		Expect(w.balancersOf("one")).To(BeEmpty())
		w.write("b.yaml", svc("two", "type: LoadBalancer, loadBalancerIP: 198.51.100.8"))
		Expect(w.balancersOf("one")).To(Equal([]string{"198.51.100.7"}))
		By("exchanging two")
		w.write("a.yaml", svc("one", "type: LoadBalancer, loadBalancerIP: 198.51.100.8"), "b.yaml", svc("two", "type: LoadBalancer, loadBalancerIP: 198.51.100.7"))
		Expect(w.balancersOf("one")).To(Equal([]string{"198.51.100.8"}))
		Expect(w.balancersOf("two")).To(Equal([]string{"198.51.100.7"}))
	})
	It("gets its loadBalancerIP, unless another Service has it", func() {
		w.write("a.yaml", svc("one", "type: LoadBalancer, loadBalancerIP: 198.51.100.7"))
		Expect(w.balancersOf("one")).To(Equal([]string{"198.51.100.7"}))
		w.write("b.yaml", svc("two", "type: LoadBalancer, loadBalancerIP: 198.51.100.7"))
		Expect(w.balancersOf("two")).To(BeEmpty())
		Expect(w.said()).To(ContainSubstring(`Service default/two: spec.loadBalancerIP: Invalid value: "198.51.100.7": provided IP is already allocated to another Service`))
	})
	It("gets no IP without load balancer networks or with another loadBalancerClass", func() {
		w.write("a.yaml", svc("one", "type: LoadBalancer, loadBalancerClass: example.com/other"))
		Expect(w.balancersOf("one")).To(BeEmpty())
		w.resolver.balancerNets = nil
		w.write("a.yaml", svc("one", "type: LoadBalancer"))
		Expect(w.balancersOf("one")).To(BeEmpty())
	})
})
