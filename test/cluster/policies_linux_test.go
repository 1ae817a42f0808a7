package cluster

import (
	"context"
	"net/netip"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gbytes"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/usherproxy/usher/test/lab"
)

// forZone and forNode are hints on endpoints.
func forZone(zone string) func(*discoveryv1.Endpoint) {
	return func(e *discoveryv1.Endpoint) {
		e.Hints = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: zone}}}
	}
}

func forNode(node, zone string) func(*discoveryv1.Endpoint) {
	return func(e *discoveryv1.Endpoint) {
		e.Hints = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: zone}}, ForNodes: []discoveryv1.ForNode{{Name: node}}}
	}
}

var _ = Describe("topology hints", Ordered, ContinueOnFailure, func() {
	const moving = "moving" // usher's Node
	var (
		c       *cluster
		svc     *corev1.Service
		servers []*server
	)
	BeforeAll(func() {
		c = newCluster()
		createNode(moving, func(n *corev1.Node) { n.Labels[corev1.LabelTopologyZone] = "zone-a" })
		DeferCleanup(deleteNode, moving)
		c.usher("--node-name=" + moving)
	})
	BeforeEach(func() {
		DeferCleanup(c.forget)
		svc = c.service("web", noSelector)
		servers = nil
		for n := 1; n <= 3; n++ {
			servers = append(servers, serve(c.Pods, netip.AddrPortFrom(lab.Pod(n), 8080)))
		}
	})
	uses := func(want ...int) {
		GinkgoHelper()
		expected := map[netip.AddrPort]bool{}
		for _, n := range want {
			expected[servers[n-1].addr] = true
		}
		Eventually(func() (map[netip.AddrPort]bool, error) {
			seen := map[netip.AddrPort]bool{}
			for range 9 {
				endpoint, err := ask(c.pod, vip(svc))
				if err != nil {
					return nil, err
				}
				seen[endpoint] = true
			}
			return seen, nil
		}).WithTimeout(soon).Should(Equal(expected))
	}

	It("select this zone's endpoints by forZones if all endpoints have hints, otherwise all endpoints", func() {
		c.write(c.slice("web", "a", endpoint(lab.Pod(1), forZone("zone-a")), endpoint(lab.Pod(2), forZone("zone-b"))))
		uses(1)
		By("an endpoint without hints")
		c.write(c.slice("web", "a", endpoint(lab.Pod(1), forZone("zone-a")), endpoint(lab.Pod(2), forZone("zone-b")), endpoint(lab.Pod(3))))
		uses(1, 2, 3)
		By("no hint for this zone")
		c.write(c.slice("web", "a", endpoint(lab.Pod(1), forZone("zone-b")), endpoint(lab.Pod(2), forZone("zone-c"))))
		uses(1, 2)
	})

	It("select this node's endpoints by forNodes, or else its zone's by forZones", func() {
		c.write(c.slice("web", "a", endpoint(lab.Pod(1), forNode(moving, "zone-a")), endpoint(lab.Pod(2), forNode(elsewhere, "zone-a"))))
		uses(1)
		By("no hint for this node, but for its zone")
		c.write(c.slice("web", "a", endpoint(lab.Pod(1), forNode("third", "zone-b")), endpoint(lab.Pod(2), forNode(elsewhere, "zone-a"))))
		uses(2)
	})

	It("are followed as the controller sets them for trafficDistribution PreferSameZone", func() {
		same := corev1.ServiceTrafficDistributionPreferSameZone
		near := c.startPod("app", 11, here)
		c.startPod("app", 12, elsewhere)
		svc = c.service("app", func(s *corev1.Service) { s.Spec.TrafficDistribution = &same })
		Eventually(func() bool {
			list := c.slices("app")
			return len(list) == 2 && list[0].Hints != nil && list[1].Hints != nil
		}).WithTimeout(soon).Should(BeTrue())
		servers = []*server{near.server}
		uses(1)
		near.remove()
		Eventually(answers(c.pod, vip(svc))).WithTimeout(soon).ShouldNot(Equal(near.addr))
	})

	It("are applied again when this node's zone changes", func() {
		c.write(c.slice("web", "a", endpoint(lab.Pod(1), forZone("zone-a")), endpoint(lab.Pod(2), forZone("zone-b"))))
		uses(1)
		zone := func(name string) {
			updateNode(moving, func(n *corev1.Node) { n.Labels[corev1.LabelTopologyZone] = name })
		}
		DeferCleanup(zone, "zone-a")
		zone("zone-b")
		uses(2)
	})
})

var _ = Describe("topology keys", func() {
	const rack = "example.com/rack"
	onNode := func(name string) func(*discoveryv1.Endpoint) {
		return func(e *discoveryv1.Endpoint) { e.NodeName = &name }
	}
	It("follow their annotation when set, changed, invalid and removed, and changes of Node labels", func() {
		c := newCluster()
		svc := c.service("web", noSelector)
		for n := 1; n <= 2; n++ {
			serve(c.Pods, netip.AddrPortFrom(lab.Pod(n), 8080))
		}
		createNode("rack-a", func(n *corev1.Node) { n.Labels[rack] = "7" })
		DeferCleanup(deleteNode, "rack-a")
		createNode("rack-b", func(n *corev1.Node) { n.Labels[rack] = "7" })
		DeferCleanup(deleteNode, "rack-b")
		createNode("rack-c", func(n *corev1.Node) { n.Labels[rack] = "8" })
		DeferCleanup(deleteNode, "rack-c")
		c.write(c.slice("web", "a", endpoint(lab.Pod(1), onNode("rack-b")), endpoint(lab.Pod(2), onNode("rack-c"))))
		u := c.usher("--node-name=rack-a")
		only := func(n int) {
			GinkgoHelper()
			Eventually(func(g Gomega) {
				for range 6 {
					g.Expect(ask(c.pod, vip(svc))).To(Equal(netip.AddrPortFrom(lab.Pod(n), 8080)))
				}
			}).WithTimeout(soon).Should(Succeed())
		}
		both := func() {
			GinkgoHelper()
			for n := 1; n <= 2; n++ {
				Eventually(answers(c.pod, vip(svc))).WithTimeout(soon).Should(Equal(netip.AddrPortFrom(lab.Pod(n), 8080)))
			}
		}
		annotate := func(keys string) {
			c.update("web", func(s *corev1.Service) {
				s.Annotations = map[string]string{"usher.io/topology-keys": keys}
				if keys == "" {
					s.Annotations = nil
				}
			})
		}
		both()
		By("setting the annotation")
		annotate(rack)
		only(1)
		By("changing another node's label")
		updateNode("rack-b", func(n *corev1.Node) { n.Labels[rack] = "9" })
		Eventually(func() error { _, err := ask(c.pod, vip(svc)); return err }).WithTimeout(soon).Should(HaveOccurred(), "no endpoint shares the rack")
		By("changing this node's label")
		updateNode("rack-a", func(n *corev1.Node) { n.Labels[rack] = "8" })
		only(2)
		By("changing the annotation")
		annotate("kubernetes.io/hostname, *")
		both()
		By("setting invalid keys, which are logged: all endpoints are used")
		annotate("*," + rack)
		Eventually(u.Err).WithTimeout(soon).Should(gbytes.Say("must be the last value specified"))
		both()
		By("removing the annotation")
		annotate(rack)
		only(2)
		annotate("")
		both()
	})

	It("do not prevent serving if usher may list only its own node; other labels never match", func() {
		const account = "own-node"
		createAccount(account, []rbacv1.PolicyRule{
			{APIGroups: []string{""}, Resources: []string{"services"}, Verbs: []string{"list", "watch"}},
			{APIGroups: []string{""}, Resources: []string{"nodes"}, ResourceNames: []string{here}, Verbs: []string{"list", "watch"}},
			{APIGroups: []string{"discovery.k8s.io"}, Resources: []string{"endpointslices"}, Verbs: []string{"list", "watch"}},
		})
		c := newCluster()
		keys := func(keys string) func(*corev1.Service) {
			return func(s *corev1.Service) { s.Annotations = map[string]string{"usher.io/topology-keys": keys} }
		}
		strict, lenient := c.service("strict", noSelector, keys(rack)), c.service("lenient", noSelector, keys(rack+",*"))
		pod := serve(c.Pods, netip.AddrPortFrom(lab.Pod(1), 8080))
		for _, svc := range []string{"strict", "lenient"} {
			c.write(c.slice(svc, svc, endpoint(lab.Pod(1), onNode(elsewhere))))
		}
		u := c.usher("--kubeconfig=" + plane.Kubeconfig(plane.ServiceAccount(context.Background(), roleNamespace, account), plane.Server()))
		Eventually(answers(c.pod, vip(lenient))).WithTimeout(soon).Should(Equal(pod.addr))
		Expect(failure(c.pod, vip(strict))()).To(HaveOccurred())
		Expect(string(u.Err.Contents())).To(ContainSubstring("The API server has not yet sent a list of Nodes"))
	})
})

var _ = Describe("healthCheckNodePort", func() {
	It("returns 200 and the number of local endpoints, or 503 if there are none", func() {
		c := newCluster()
		svc := c.service("web", loadBalancer, externalLocal)
		port := svc.Spec.HealthCheckNodePort
		Expect(port).NotTo(BeZero())
		one, two := c.startPod("web", 1, here), c.startPod("web", 2, here)
		c.startPod("web", 3, elsewhere)
		c.usher()
		url := "http://" + at(lab.NodeOut4, port) + "/"
		Eventually(getting(c.outside, url)).WithTimeout(soon).Should(And(code(200), HaveField("Body", ContainSubstring(`"localEndpoints":2`))))
		answer, err := get(c.outside, url)
		Expect(err).NotTo(HaveOccurred())
		Expect(answer.fields()).To(Equal(map[string]any{
			"service":        map[string]any{"namespace": c.namespace, "name": "web"},
			"localEndpoints": 2.0, "serviceProxyHealthy": true,
		}))
		Expect(answer.Header.Get("X-Load-Balancing-Endpoint-Weight")).To(Equal("2"))

		one.remove()
		Eventually(getting(c.outside, url)).WithTimeout(soon).Should(And(code(200), HaveField("Body", ContainSubstring(`"localEndpoints":1`))))
		By("the last one terminating: 503, so that load balancers use other nodes")
		two.terminate()
		Eventually(getting(c.outside, url)).WithTimeout(soon).Should(code(503))
		answer, err = get(c.outside, url)
		Expect(err).NotTo(HaveOccurred())
		Expect(answer.Header.Get("X-Load-Balancing-Endpoint-Weight")).To(Equal("0"))

		By("the policy becoming Cluster: the server closes")
		c.update("web", func(s *corev1.Service) {
			s.Spec.ExternalTrafficPolicy, s.Spec.HealthCheckNodePort = corev1.ServiceExternalTrafficPolicyCluster, 0
		})
		Eventually(func() error {
			conn, err := c.outside.Dial("", at(lab.NodeOut4, port), time.Second)
			if err == nil {
				conn.Close()
			}
			return err
		}).WithTimeout(soon).Should(HaveOccurred())
	})
})
