package cluster

import (
	"fmt"
	"net/netip"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"

	"github.com/usherproxy/usher/test/cluster/control"
	"github.com/usherproxy/usher/test/lab"
)

// recovery is the maximum time until usher notices that the API server is back: client-go's backoff grows up to 1
// minute.
const recovery = 75 * time.Second

var _ = Describe("while the API server is unavailable,", func() {
	var (
		c       *cluster
		wire    *control.Wire
		servers []*server
		healthz = "http://" + lab.NodeOut4 + ":" + healthzPort + "/healthz"
	)
	BeforeEach(func() {
		c = newCluster()
		wire = plane.NewWire()
		servers = nil
		for n := 1; n <= 3; n++ {
			servers = append(servers, serve(c.Pods, netip.AddrPortFrom(lab.Pod(n), 8080)))
		}
	})
	// create creates a Service with the endpoint number n.
	create := func(name string, n int) *corev1.Service {
		GinkgoHelper()
		svc := c.service(name, noSelector)
		c.write(c.slice(name, name, endpoint(lab.Pod(n))))
		return svc
	}
	start := func() *usher {
		GinkgoHelper()
		return c.usher("--kubeconfig=" + leastRole(wire.Server()))
	}
	connected := func() (bool, error) {
		answer, err := get(c.outside, healthz)
		if err != nil {
			return false, err
		}
		Expect(answer.Code).To(Equal(200), "the last known state is served: %s", answer.Body)
		status, _ := answer.fields()["apiServer"].(map[string]any)
		connected, ok := status["connected"].(bool)
		if !ok {
			return false, fmt.Errorf("healthz does not tell: %s", answer.Body)
		}
		return connected, nil
	}

	It("usher serves the last known state, reports this in /healthz, and applies changes afterwards", func() {
		kept, deleted, moved := create("kept", 1), create("deleted", 1), create("moved", 1)
		again := create("again", 1)
		start()
		for _, svc := range []*corev1.Service{kept, deleted, moved, again} {
			Eventually(answers(c.pod, vip(svc))).WithTimeout(soon).Should(Equal(servers[0].addr))
		}
		Eventually(connected).WithTimeout(soon).Should(BeTrue())
		open, err := connect(c.pod, vip(deleted))
		Expect(err).NotTo(HaveOccurred())

		wire.Cut()
		c.deleteService("deleted")
		c.write(c.slice("moved", "moved", endpoint(lab.Pod(2))))
		created := create("created", 3)
		c.deleteService("again")
		again2 := c.service("again", noSelector, func(s *corev1.Service) { s.Spec.Ports[0].Port = 81 })
		Eventually(connected).WithTimeout(recovery).Should(BeFalse())
		Expect(ask(c.pod, vip(kept))).To(Equal(servers[0].addr))
		Expect(ask(c.pod, vip(deleted))).To(Equal(servers[0].addr))
		Expect(open.works()).To(Succeed())

		wire.Repair()
		Eventually(answers(c.pod, vip(created))).WithTimeout(recovery).Should(Equal(servers[2].addr))
		Eventually(answers(c.pod, vip(moved))).WithTimeout(recovery).Should(Equal(servers[1].addr))
		Eventually(answers(c.pod, vip(again2))).WithTimeout(soon).Should(Equal(servers[0].addr))
		Eventually(failure(c.pod, vip(deleted))).WithTimeout(soon).Should(HaveOccurred())
		Eventually(failure(c.pod, vip(again))).WithTimeout(soon).Should(HaveOccurred())
		Expect(ask(c.pod, vip(kept))).To(Equal(servers[0].addr))
		Expect(open.works()).To(Succeed())
		Eventually(connected).WithTimeout(soon).Should(BeTrue())
	})

	It("usher serves the last known state, even if its resource version is too old afterwards", func() {
		DeferCleanup(restartControllers)
		kept, deleted := create("kept", 1), create("deleted", 1)
		start()
		for _, svc := range []*corev1.Service{kept, deleted} {
			Eventually(answers(c.pod, vip(svc))).WithTimeout(soon).Should(Equal(servers[0].addr))
		}
		l := startLoad(c.pod, vip(kept), 50)

		wire.Cut()
		c.deleteService("deleted")
		created := create("created", 2)
		for i := range 20 { // moves the resource version forward
			c.update("kept", func(s *corev1.Service) { s.Labels = map[string]string{"edit": fmt.Sprint(i)} })
		}
		plane.KillAPIServer()
		plane.StartAPIServer()
		c.write(c.slice("kept", "kept", endpoint(lab.Pod(3))))
		wire.Repair()
		Eventually(answers(c.pod, vip(created))).WithTimeout(recovery).Should(Equal(servers[1].addr))
		Eventually(answers(c.pod, vip(kept))).WithTimeout(recovery).Should(Equal(servers[2].addr))
		Eventually(failure(c.pod, vip(deleted))).WithTimeout(soon).Should(HaveOccurred())
		Expect(l.stop()).To(BeEmpty(), "connections during the outage")
	})

	It("a new usher instance keeps existing rules, and serves once the API server is back", func() {
		kept := create("kept", 1)
		first := start()
		Eventually(answers(c.pod, vip(kept))).WithTimeout(soon).Should(Equal(servers[0].addr))
		first.Kill().Wait(soon)
		before := lab.State(c.Node)

		wire.Cut()
		second := c.launch(usherRace, "--kubeconfig="+leastRole(wire.Server()))
		Eventually(getting(c.outside, "http://"+lab.NodeOut4+":"+healthzPort+"/livez")).WithTimeout(soon).Should(code(200))
		Expect(get(c.outside, healthz)).To(code(503), "before the initial sync")
		Consistently(lab.State).WithArguments(c.Node).WithTimeout(time.Second).Should(Equal(before))
		wire.Repair()
		second.serving()
		Eventually(answers(c.pod, vip(kept))).WithTimeout(soon).Should(Equal(servers[0].addr))
		Expect(get(c.outside, healthz)).To(code(200))
	})
})

var _ = Describe("a watch whose connection fails", func() {
	It("is established again, without missed changes", func() {
		c := newCluster()
		wire := plane.NewWire()
		one, two := serve(c.Pods, netip.AddrPortFrom(lab.Pod(1), 8080)), serve(c.Pods, netip.AddrPortFrom(lab.Pod(2), 8080))
		svc := c.service("web", noSelector)
		c.write(c.slice("web", "web", endpoint(lab.Pod(1))))
		c.usher("--kubeconfig=" + leastRole(wire.Server()))
		Eventually(answers(c.pod, vip(svc))).WithTimeout(soon).Should(Equal(one.addr))

		// Only twice: client-go's backoff grows with each break.
		wire.Break()
		c.write(c.slice("web", "web", endpoint(lab.Pod(2))))
		other := c.service("other", noSelector)
		c.write(c.slice("other", "other", endpoint(lab.Pod(1))))
		Eventually(answers(c.pod, vip(svc))).WithTimeout(recovery).Should(Equal(two.addr))
		Eventually(answers(c.pod, vip(other))).WithTimeout(recovery).Should(Equal(one.addr))
		wire.Break()
		c.write(c.slice("web", "web", endpoint(lab.Pod(1))))
		c.deleteService("other")
		Eventually(answers(c.pod, vip(svc))).WithTimeout(recovery).Should(Equal(one.addr))
		Eventually(failure(c.pod, vip(other))).WithTimeout(recovery).Should(HaveOccurred())
	})
})

// restartControllers saves the next spec the backoff of the controllers after the API server was unreachable.
func restartControllers() {
	GinkgoHelper()
	plane.StopControllers()
	plane.StartControllers()
}
