package cluster

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"

	"github.com/usherproxy/usher/test/lab"
)

// These are addresses that a cloud would assign.
const (
	externalIP     = "203.0.113.10"
	loadBalancerIP = "203.0.113.20"
	otherOutside4  = "192.0.2.3" // a second machine outside
)

func loadBalancer(svc *corev1.Service) { svc.Spec.Type = corev1.ServiceTypeLoadBalancer }

func externalLocal(svc *corev1.Service) {
	svc.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
}

// ingress sets a load balancer's address on a Service, as a cloud controller does.
func (c *cluster) ingress(name string, mode *corev1.LoadBalancerIPMode) {
	GinkgoHelper()
	c.updateStatus(name, func(s *corev1.Service) {
		s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: loadBalancerIP, IPMode: mode}}
	})
}

// These specs hold for every portal.
var _ = Describe("clients connect", func() {
	for _, portal := range []string{"iptables", "nftables", "address"} {
		Describe("through the "+portal+" portal", func() { addressSpecs(portal) })
	}
})

func addressSpecs(portal string) {
	var (
		c        *cluster
		local    *kubernetesPod // on this node
		distant  *kubernetesPod // on another
		everyone map[string]*lab.Dialer
	)
	prepare := func() {
		c = newCluster()
		everyone = map[string]*lab.Dialer{"a Pod": c.pod, "the node": c.node, "outside": c.outside}
	}
	// Without netfilter nothing can drop packets to one port of an address.
	dropped := timedOut
	if portal == "address" {
		dropped = HaveOccurred()
	}
	start := func(args ...string) *usher {
		GinkgoHelper()
		return c.usher(append(strings.Fields("--portal="+portal), args...)...)
	}
	pods := func() {
		GinkgoHelper()
		local, distant = c.startPod("web", 1, here), c.startPod("web", 2, elsewhere)
	}
	// reaches checks that connections reach these Pods and, in the 20 connections after the first match, no other Pod.
	reaches := func(client *lab.Dialer, from, vip string, want ...*kubernetesPod) {
		GinkgoHelper()
		expected := map[netip.AddrPort]bool{}
		for _, p := range want {
			expected[p.addr] = true
			expected[p.six.addr] = true
		}
		Eventually(func() (string, error) {
			seen := map[netip.AddrPort]bool{}
			for range 12 {
				endpoint, err := askFrom(client, from, vip)
				if err != nil {
					return "", err
				}
				if !expected[endpoint] {
					return "also " + endpoint.String(), nil
				}
				seen[endpoint] = true
			}
			if len(seen) < len(want) {
				return fmt.Sprintf("only %v", seen), nil
			}
			return "", nil
		}).WithTimeout(soon).Should(BeEmpty(), vip)
	}

	Describe("with the default flags,", Ordered, ContinueOnFailure, func() {
		BeforeAll(func() {
			prepare()
			start()
		})
		AfterEach(func() { c.forget() })

		It("to a node port on every address of the node, including loopback, from everywhere", func() {
			pods()
			both := corev1.IPFamilyPolicyRequireDualStack
			svc := c.service("web", nodePort, func(s *corev1.Service) { s.Spec.IPFamilyPolicy = &both })
			port := svc.Spec.Ports[0].NodePort
			reaches(c.outside, "", at(lab.NodeOut4, port), local, distant)
			reaches(c.outside, "", at(lab.NodeOut6, port), local, distant)
			reaches(c.outside, "", at("10.244.0.1", port), local, distant)
			reaches(c.pod, "", at("10.244.0.1", port), local, distant)
			reaches(c.pod, "", at(lab.NodeOut4, port), local, distant)
			reaches(c.node, "", at("127.0.0.1", port), local, distant)
			reaches(c.node, "", at("::1", port), local, distant)
			reaches(c.node, "", at(lab.NodeOut4, port), local, distant)

			By("changing the node port")
			free := port + 1
			if free > 32767 {
				free = port - 1
			}
			c.update("web", func(s *corev1.Service) { s.Spec.Ports[0].NodePort = free })
			reaches(c.outside, "", at(lab.NodeOut4, free), local, distant)
			Eventually(failure(c.outside, at(lab.NodeOut4, port))).WithTimeout(soon).Should(HaveOccurred())

			By("making it a Service without a node port")
			c.update("web", func(s *corev1.Service) { s.Spec.Type, s.Spec.Ports[0].NodePort = corev1.ServiceTypeClusterIP, 0 })
			Eventually(failure(c.outside, at(lab.NodeOut4, free))).WithTimeout(soon).Should(HaveOccurred())
			reaches(c.pod, "", vip(svc), local, distant)
		})

		It("to external IPs, from everywhere", func() {
			pods()
			c.service("web", func(s *corev1.Service) { s.Spec.ExternalIPs = []string{externalIP} })
			for _, client := range everyone {
				reaches(client, "", at(externalIP, 80), local, distant)
			}
			c.update("web", func(s *corev1.Service) { s.Spec.ExternalIPs = nil })
			Eventually(failure(c.outside, at(externalIP, 80))).WithTimeout(soon).Should(HaveOccurred())
		})

		It("to a load balancer IP without ipMode, from everywhere", func() {
			pods()
			svc := c.service("web", loadBalancer)
			c.ingress("web", nil)
			for _, client := range everyone {
				reaches(client, "", at(loadBalancerIP, 80), local, distant)
			}
			reaches(c.outside, "", at(lab.NodeOut4, svc.Spec.Ports[0].NodePort), local, distant)
		})

		It("to the node port, but not to the load balancer IP, with ipMode Proxy", func() {
			pods()
			svc := c.service("web", loadBalancer)
			mode := corev1.LoadBalancerIPModeVIP
			c.ingress("web", &mode)
			reaches(c.outside, "", at(loadBalancerIP, 80), local, distant)
			mode = corev1.LoadBalancerIPModeProxy
			c.ingress("web", &mode)
			Eventually(failure(c.outside, at(loadBalancerIP, 80))).WithTimeout(soon).Should(HaveOccurred())
			reaches(c.outside, "", at(lab.NodeOut4, svc.Spec.Ports[0].NodePort), local, distant)
		})

		It("to a load balancer IP only from addresses in loadBalancerSourceRanges", func() {
			c.Outside.Output("ip", "address", "add", otherOutside4+"/24", "dev", "eth0")
			DeferCleanup(func() { c.Outside.Output("ip", "address", "del", otherOutside4+"/24", "dev", "eth0") })
			pods()
			c.service("web", loadBalancer, func(s *corev1.Service) { s.Spec.LoadBalancerSourceRanges = []string{lab.Outside4 + "/32"} })
			c.ingress("web", nil)
			reaches(c.outside, lab.Outside4, at(loadBalancerIP, 80), local, distant)
			before := local.connections() + distant.connections()
			Expect(failureFrom(c.outside, otherOutside4, at(loadBalancerIP, 80), 3*time.Second)()).To(HaveOccurred())
			Expect(local.connections() + distant.connections()).To(Equal(before))
			c.update("web", func(s *corev1.Service) { s.Spec.LoadBalancerSourceRanges = []string{otherOutside4 + "/32"} })
			reaches(c.outside, otherOutside4, at(loadBalancerIP, 80), local, distant)
			Expect(failureFrom(c.outside, lab.Outside4, at(loadBalancerIP, 80), 3*time.Second)()).To(HaveOccurred())
		})

		It("to a load balancer IP without a node port, with allocateLoadBalancerNodePorts: false", func() {
			pods()
			no := false
			svc := c.service("web", loadBalancer, func(s *corev1.Service) { s.Spec.AllocateLoadBalancerNodePorts = &no })
			Expect(svc.Spec.Ports[0].NodePort).To(BeZero())
			c.ingress("web", nil)
			reaches(c.outside, "", at(loadBalancerIP, 80), local, distant)
		})

		It("with internalTrafficPolicy Local: only endpoints of this node; without one, packets are dropped", func() {
			pods()
			policy := corev1.ServiceInternalTrafficPolicyLocal
			svc := c.service("web", func(s *corev1.Service) { s.Spec.InternalTrafficPolicy = &policy })
			reaches(c.pod, "", vip(svc), local)
			reaches(c.node, "", vip(svc), local)
			local.remove()
			Eventually(failure(c.pod, vip(svc))).WithTimeout(soon).Should(dropped)
			Eventually(failure(c.node, vip(svc))).WithTimeout(soon).Should(HaveOccurred())
			Expect(get(c.node, adminURL+"/api/v1/services?name=web")).To(HaveField("Body", MatchRegexp(`"state":"no-local-endpoints"(.*)"dropped":\[{"clients":"internal","text":"internalTrafficPolicy is Local`)))
			policy = corev1.ServiceInternalTrafficPolicyCluster
			c.update("web", func(s *corev1.Service) { s.Spec.InternalTrafficPolicy = &policy })
			reaches(c.pod, "", vip(svc), distant)
		})

		It("with externalTrafficPolicy Local: from outside to endpoints of this node, from this node to all", func() {
			pods()
			svc := c.service("web", loadBalancer, externalLocal, func(s *corev1.Service) { s.Spec.ExternalIPs = []string{externalIP} })
			c.ingress("web", nil)
			port := svc.Spec.Ports[0].NodePort
			for _, external := range []string{at(lab.NodeOut4, port), at(externalIP, 80), at(loadBalancerIP, 80)} {
				reaches(c.outside, "", external, local)
				reaches(c.pod, "", external, local, distant)
				reaches(c.node, "", external, local, distant)
			}
			reaches(c.node, "", at("127.0.0.1", port), local, distant)
			reaches(c.pod, "", vip(svc), local, distant)

			By("the last local endpoint terminating: it is used until it is removed")
			local.terminate()
			Eventually(func() bool { return *c.slices("web")[0].Conditions.Ready && *c.slices("web")[1].Conditions.Ready }).WithTimeout(soon).Should(BeFalse())
			reaches(c.outside, "", at(lab.NodeOut4, port), local)
			reaches(c.pod, "", vip(svc), distant)
			local.remove()
			for _, external := range []string{at(lab.NodeOut4, port), at(externalIP, 80), at(loadBalancerIP, 80)} {
				Eventually(failure(c.outside, external)).WithTimeout(soon).Should(dropped, external)
				reaches(c.node, "", external, distant)
			}
			Expect(get(c.node, adminURL+"/api/v1/services?name=web")).To(HaveField("Body", MatchRegexp(`"state":"no-local-endpoints-external"(.*)"dropped":\[{"clients":"external","text":"externalTrafficPolicy is Local`)))
		})

		It("with sessionAffinity ClientIP: always to the same endpoint", func() {
			pods()
			third := c.startPod("web", 3, here)
			svc := c.service("web", nodePort, func(s *corev1.Service) { s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP })
			Expect(*svc.Spec.SessionAffinityConfig.ClientIP.TimeoutSeconds).To(BeEquivalentTo(10800))
			seen := map[netip.AddrPort]bool{}
			Eventually(func() (map[netip.AddrPort]bool, error) { // until usher has all three
				for n := 41; n <= 60; n++ {
					endpoint, err := askFrom(c.pod, lab.Pod(n).String(), vip(svc))
					if err != nil {
						return nil, err
					}
					seen[endpoint] = true
				}
				return seen, nil
			}).WithTimeout(soon).Should(HaveLen(3))
			port := svc.Spec.Ports[0].NodePort
			for _, client := range []struct {
				dialer *lab.Dialer
				from   string
				to     string
			}{{c.pod, "", vip(svc)}, {c.pod, lab.Pod(40).String(), vip(svc)}, {c.outside, "", at(lab.NodeOut4, port)}} {
				first, err := askFrom(client.dialer, client.from, client.to)
				Expect(err).NotTo(HaveOccurred())
				for range 10 {
					Expect(askFrom(client.dialer, client.from, client.to)).To(Equal(first))
				}
			}

			By("removing its endpoint")
			first, err := ask(c.pod, vip(svc))
			Expect(err).NotTo(HaveOccurred())
			for _, p := range []*kubernetesPod{local, distant, third} {
				if p.addr == first {
					p.remove()
				}
			}
			Eventually(answers(c.pod, vip(svc))).WithTimeout(soon).ShouldNot(Equal(first))
		})
	})

	Describe("with other flags,", func() {
		BeforeEach(prepare)

		It("to a node port only on the addresses in --nodeport-addresses", func() {
			pods()
			svc := c.service("web", nodePort)
			start("--nodeport-addresses=192.0.2.0/24")
			port := svc.Spec.Ports[0].NodePort
			reaches(c.outside, "", at(lab.NodeOut4, port), local, distant)
			Expect(failure(c.pod, at("10.244.0.1", port))()).To(HaveOccurred())
			Expect(failure(c.node, at("127.0.0.1", port))()).To(HaveOccurred())
		})

		It("to a node port on the primary addresses of the Node object, or nowhere without them", func() {
			pods()
			both := corev1.IPFamilyPolicyRequireDualStack
			svc := c.service("web", nodePort, func(s *corev1.Service) { s.Spec.IPFamilyPolicy = &both })
			addresses := func(all ...string) {
				GinkgoHelper()
				updateNodeStatus(here, func(n *corev1.Node) {
					n.Status.Addresses = nil
					for _, a := range all {
						n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a})
					}
				})
			}
			DeferCleanup(func() { addresses() })
			start("--nodeport-addresses=primary")
			reaches(c.pod, "", vip(svc), local, distant)
			port := svc.Spec.Ports[0].NodePort
			for _, a := range []string{lab.NodeOut4, lab.NodeOut6, "10.244.0.1", "127.0.0.1", "::1"} {
				Expect(failure(c.node, at(a, port))()).To(HaveOccurred(), a)
			}
			By("setting the Node's addresses")
			addresses(lab.NodeOut4, lab.NodeOut6)
			reaches(c.outside, "", at(lab.NodeOut4, port), local, distant)
			reaches(c.outside, "", at(lab.NodeOut6, port), local, distant)
			Eventually(failure(c.pod, at("10.244.0.1", port))).WithTimeout(soon).Should(HaveOccurred())
			By("changing the Node's addresses")
			addresses("10.244.0.1")
			reaches(c.pod, "", at("10.244.0.1", port), local, distant)
			// The families change one after the other.
			Eventually(failure(c.outside, at(lab.NodeOut4, port))).WithTimeout(soon).Should(HaveOccurred())
			Eventually(failure(c.outside, at(lab.NodeOut6, port))).WithTimeout(soon).Should(HaveOccurred())
		})

		It("to a node port on loopback alone, of both families, by the word localhost", func() {
			pods()
			both := corev1.IPFamilyPolicyRequireDualStack
			svc := c.service("web", nodePort, func(s *corev1.Service) { s.Spec.IPFamilyPolicy = &both })
			start("--nodeport-addresses=localhost")
			port := svc.Spec.Ports[0].NodePort
			reaches(c.node, "", at("127.0.0.1", port), local, distant)
			reaches(c.node, "", at("::1", port), local, distant)
			for _, a := range []string{lab.NodeOut4, lab.NodeOut6} {
				Expect(failure(c.outside, at(a, port))()).To(HaveOccurred(), a)
			}
		})

		It("to a node port on an address that the node gets later", func() {
			pods()
			svc := c.service("web", nodePort)
			start("--portal-check-interval=1s")
			c.Node.Output("ip", "address", "add", "192.0.2.9/24", "dev", "to-outside")
			reaches(c.outside, "", at("192.0.2.9", svc.Spec.Ports[0].NodePort), local, distant)
		})

		if portal == "address" {
			It("to a node port that another process used, reported in an Event, once it is free", func() {
				taken := c.Node.Listen("0.0.0.0:31999")
				pods()
				svc := c.service("web", nodePort, func(s *corev1.Service) { s.Spec.Ports[0].NodePort = 31999 })
				other := c.service("other", func(s *corev1.Service) { s.Spec.Selector = svc.Spec.Selector })
				start("--portal-check-interval=1s")
				reaches(c.pod, "", vip(other), local, distant)
				reaches(c.pod, "", vip(svc), local, distant)
				Eventually(c.warnings("web")).WithTimeout(soon).Should(ContainElement(ContainSubstring("31999")))
				taken.Close()
				reaches(c.outside, "", at(lab.NodeOut4, 31999), local, distant)
			})
		}
	})
}
