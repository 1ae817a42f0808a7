package cluster

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/usherproxy/usher/test/lab"
)

// writeEndpoints creates an Endpoints object, the predecessor of EndpointSlices.
func (c *cluster) writeEndpoints(service string, addr netip.Addr) {
	GinkgoHelper()
	Expect(c.tryEndpoints(service, addr)).To(Succeed())
}

func (c *cluster) tryEndpoints(service string, addr netip.Addr) error {
	//lint:ignore SA1019 that it is old is why it is tested
	object := &corev1.Endpoints{
		ObjectMeta: metav1.ObjectMeta{Name: service},
		//lint:ignore SA1019 as above
		Subsets: []corev1.EndpointSubset{{
			Addresses: []corev1.EndpointAddress{{IP: addr.String()}},
			Ports:     []corev1.EndpointPort{{Name: "main", Port: 8080}},
		}},
	}
	_, err := c.api.CoreV1().Endpoints(c.namespace).Create(context.Background(), object, metav1.CreateOptions{})
	return err
}

var _ = Describe("the endpoints of a Service:", Ordered, ContinueOnFailure, func() {
	var (
		c       *cluster
		svc     *corev1.Service
		servers []*server
	)
	BeforeAll(func() {
		c = newCluster()
		c.usher()
	})
	BeforeEach(func() {
		DeferCleanup(c.forget)
		svc = c.service("web", noSelector)
		servers = nil
		for n := 1; n <= 3; n++ {
			servers = append(servers, serve(c.Pods, netip.AddrPortFrom(lab.Pod(n), 8080)))
		}
	})
	state := func(ready, serving, terminating bool) func(*discoveryv1.Endpoint) {
		return func(e *discoveryv1.Endpoint) { e.Conditions = conditions(ready, serving, terminating) }
	}
	uses := func(want ...int) { // numbers of Pods, used evenly
		GinkgoHelper()
		expected := map[netip.AddrPort]int{}
		for _, n := range want {
			expected[servers[n-1].addr] = 12 / len(want)
		}
		Eventually(c.whom(svc)).WithTimeout(soon).Should(Equal(expected))
	}

	It("all slices are used, duplicates once", func() {
		c.write(c.slice("other", "c", endpoint(lab.Pod(4))))
		c.write(c.slice("web", "a", endpoint(lab.Pod(1)), endpoint(lab.Pod(2))))
		c.write(c.slice("web", "b", endpoint(lab.Pod(2)), endpoint(lab.Pod(3))))
		uses(1, 2, 3)
	})

	It("the first of several addresses is used", func() {
		c.write(c.slice("web", "a", endpoint(lab.Pod(1), func(e *discoveryv1.Endpoint) { e.Addresses = append(e.Addresses, lab.Pod(2).String()) })))
		uses(1)
	})

	It("ports match by name, unset and \"\" are equal, and null ports are skipped", func() {
		svc = c.service("unnamed", noSelector, func(s *corev1.Service) { s.Spec.Ports[0].Name = "" })
		unset, null, foreign := c.slice("unnamed", "unset", endpoint(lab.Pod(1))), c.slice("unnamed", "null", endpoint(lab.Pod(2))), c.slice("unnamed", "foreign", endpoint(lab.Pod(3)))
		unset.Ports[0].Name = nil
		empty := ""
		null.Ports[0].Name, null.Ports[0].Port = &empty, nil
		c.write(null)
		c.write(foreign) // its port is named "main"
		c.write(unset)   // last, so that usher has the others when it uses this one
		uses(1)
	})

	It("null conditions mean ready, serving and not terminating", func() {
		c.write(c.slice("web", "a",
			endpoint(lab.Pod(1), func(e *discoveryv1.Endpoint) { e.Conditions = discoveryv1.EndpointConditions{} }),
			endpoint(lab.Pod(2), state(false, false, false))))
		uses(1)
	})

	It("only ready ones are used if there are any", func() {
		c.write(c.slice("web", "a", endpoint(lab.Pod(1)), endpoint(lab.Pod(2), state(false, true, true)), endpoint(lab.Pod(3), state(false, false, false))))
		uses(1)
	})

	It("terminating ones that serve are used if none is ready", func() {
		c.write(c.slice("web", "a", endpoint(lab.Pod(1), state(false, true, true)), endpoint(lab.Pod(2), state(false, false, true)), endpoint(lab.Pod(3), state(false, false, false))))
		uses(1)
		By("returning to ready ones")
		c.write(c.slice("web", "a", endpoint(lab.Pod(1), state(false, true, true)), endpoint(lab.Pod(2))))
		uses(2)
	})

	It("an unset serving condition means serving", func() {
		unsaid := endpoint(lab.Pod(1), state(false, true, true))
		unsaid.Conditions.Serving = nil
		c.write(c.slice("web", "a", unsaid, endpoint(lab.Pod(2), state(false, false, true))))
		uses(1)
	})

	It("of two with the same address, the one that is not terminating is used", func() {
		// With publishNotReadyAddresses the old Pod is ready anyway.
		c.write(c.slice("web", "a", endpoint(lab.Pod(1), state(true, true, true))))
		c.write(c.slice("web", "b", endpoint(lab.Pod(1), state(false, false, false)), endpoint(lab.Pod(2))))
		uses(2)
	})

	It("none at all: new connections are refused at once", func() {
		c.write(c.slice("web", "a", endpoint(lab.Pod(1))))
		uses(1)
		c.write(c.slice("web", "a", endpoint(lab.Pod(1), state(false, false, false))))
		for _, client := range []*lab.Dialer{c.pod, c.node} {
			Eventually(failure(client, vip(svc))).WithTimeout(soon).Should(refused)
			Eventually(func() time.Duration { // repeated, since other load may delay it
				began := time.Now()
				Expect(ask(client, vip(svc))).Error().To(refused)
				return time.Since(began)
			}).WithTimeout(30*time.Second).Should(BeNumerically("<", time.Second), "a SYN that is not answered is sent again after a second")
		}
		c.write(c.slice("web", "a", endpoint(lab.Pod(1))))
		uses(1)
	})

	It("one that goes from ready to terminating gets no new connection; open ones continue", func() {
		c.write(c.slice("web", "a", endpoint(lab.Pod(1))))
		uses(1)
		open, err := connect(c.pod, vip(svc))
		Expect(err).NotTo(HaveOccurred())
		c.write(c.slice("web", "a", endpoint(lab.Pod(1), state(false, true, true)), endpoint(lab.Pod(2))))
		uses(2)
		Expect(open.server).To(Equal(servers[0].addr))
		Expect(open.works()).To(Succeed())
	})

	It("one that is removed gets no new connection; open TCP connections continue", func() {
		c.write(c.slice("web", "a", endpoint(lab.Pod(1))))
		uses(1)
		open, err := connect(c.pod, vip(svc))
		Expect(err).NotTo(HaveOccurred())
		c.write(c.slice("web", "a", endpoint(lab.Pod(2))))
		uses(2)
		Expect(open.works()).To(Succeed())

		By("deleting the slice")
		Expect(c.api.DiscoveryV1().EndpointSlices(c.namespace).Delete(context.Background(), "a", metav1.DeleteOptions{})).To(Succeed())
		Eventually(failure(c.pod, vip(svc))).WithTimeout(soon).Should(refused)
		Expect(open.works()).To(Succeed())
	})

	It("more than 1000 are used, from all slices", func() {
		var list []discoveryv1.Endpoint
		for i := range 1001 {
			list = append(list, endpoint(netip.AddrFrom4([4]byte{10, 244, byte(1 + i/250), byte(1 + i%250)}), state(false, false, false)))
		}
		list = append(list, endpoint(lab.Pod(2)))
		for i := 0; i < len(list); i += 100 {
			c.write(c.slice("web", fmt.Sprintf("part-%d", i/100), list[i:min(i+100, len(list))]...))
		}
		uses(2)
	})

	It("slices with addressType FQDN are ignored", func() {
		names := c.slice("web", "names", endpoint(lab.Pod(1)))
		names.AddressType = discoveryv1.AddressTypeFQDN
		names.Endpoints[0].Addresses = []string{"nowhere.example.com"}
		c.write(names)
		c.write(c.slice("web", "a", endpoint(lab.Pod(2))))
		uses(2)
	})

	It("the API rejects addresses that are loopback, link-local, link-local multicast or unspecified", func() {
		invalid := MatchError(ContainSubstring("Invalid value"))
		for _, addr := range []string{"127.0.0.1", "169.254.1.1", "224.0.0.1", "0.0.0.0"} {
			Expect(c.tryWrite(c.slice("web", "a", endpoint(netip.MustParseAddr(addr))))).To(invalid, addr)
			Expect(c.tryEndpoints("web", netip.MustParseAddr(addr))).To(invalid, addr)
		}
	})

	It("usher rejects multicast addresses and cluster IPs, and reports them in Events", func() {
		other := c.service("other", noSelector)
		c.write(c.slice("web", "a", endpoint(netip.MustParseAddr("239.1.2.3")), endpoint(lab.Pod(1))))
		loop := c.slice("other", "b", endpoint(netip.MustParseAddr(svc.Spec.ClusterIP)))
		port := int32(80)
		loop.Ports[0].Port = &port
		c.write(loop)
		uses(1)
		Eventually(c.warnings("web")).WithTimeout(soon).Should(ContainElement(ContainSubstring("239.1.2.3")))
		Eventually(c.warnings("other")).WithTimeout(soon).Should(ContainElement(ContainSubstring(svc.Spec.ClusterIP)))
		Eventually(failure(c.pod, vip(other))).WithTimeout(soon).Should(refused)
	})
})

// warnings returns a function that returns the notes of a Service's warnings.
func (c *cluster) warnings(service string) func() ([]string, error) {
	return func() (notes []string, err error) {
		list, err := c.api.EventsV1().Events(c.namespace).List(context.Background(), metav1.ListOptions{})
		if err != nil {
			return nil, err
		}
		for _, e := range list.Items {
			if e.Regarding.Kind == "Service" && e.Regarding.Name == service && e.Type == corev1.EventTypeWarning {
				notes = append(notes, e.Reason+": "+e.Note)
			}
		}
		return notes, nil
	}
}
