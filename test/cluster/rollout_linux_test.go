package cluster

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/usherproxy/usher/test/lab"
)

// endpointOf returns the endpoint for a Pod's address in a Service's slices, or nil.
func (c *cluster) endpointOf(service string, pod *kubernetesPod) *discoveryv1.Endpoint {
	GinkgoHelper()
	for _, e := range c.slices(service) {
		if e.Addresses[0] == pod.addr.Addr().String() {
			return &e
		}
	}
	return nil
}

func (c *cluster) awaitReady(service string, pod *kubernetesPod) {
	GinkgoHelper()
	Eventually(func() bool {
		e := c.endpointOf(service, pod)
		return e != nil && *e.Conditions.Ready
	}).WithTimeout(soon).Should(BeTrue())
}

func (c *cluster) awaitTerminating(service string, pod *kubernetesPod) {
	GinkgoHelper()
	Eventually(func() bool {
		e := c.endpointOf(service, pod)
		return e != nil && *e.Conditions.Terminating
	}).WithTimeout(soon).Should(BeTrue())
}

var _ = Describe("of 200 connections per second, none fails", func() {
	It("during a rolling update, and during a drain, while all Pods terminate before a new one is ready", func() {
		c := newCluster()
		svc := c.service("web")
		var old, young []*kubernetesPod
		for n := 1; n <= 4; n++ {
			old = append(old, c.startPod("web", n, here))
		}
		for _, p := range old {
			c.awaitReady("web", p)
		}
		c.usher("--trace=false")
		open, err := connect(c.pod, vip(svc))
		Expect(err).NotTo(HaveOccurred())

		l := startLoad(c.pod, vip(svc), 200)
		l.more(100)
		for i, p := range old {
			fresh := c.startPod("web", 11+i, elsewhere)
			young = append(young, fresh)
			c.awaitReady("web", fresh)
			p.terminate()
			c.awaitTerminating("web", p)
			p.awaitLast()
			p.stop() // as after SIGTERM: no new connections
			l.more(100)
			Expect(open.works()).To(Succeed(), "open connections continue")
			p.remove()
		}
		l.more(100)
		Expect(l.stop()).To(BeEmpty())
		for _, p := range young {
			Expect(p.connections()).NotTo(BeZero())
		}
		AddReportEntry("connections", l.count())
		Expect(open.Close()).To(Succeed())

		By("draining: all Pods terminate before a new one is ready")
		l = startLoad(c.pod, vip(svc), 200)
		l.more(100)
		for _, p := range young {
			p.terminate()
			c.awaitTerminating("web", p)
		}
		l.more(200) // no endpoint is ready: terminating ones that still serve are used
		fresh := c.startPod("web", 21, elsewhere)
		c.awaitReady("web", fresh)
		Eventually(answers(c.pod, vip(svc))).WithTimeout(soon).Should(Equal(fresh.addr))
		for _, p := range young {
			p.stop()
			p.remove()
		}
		l.more(200)
		Expect(l.stop()).To(BeEmpty())
	})
})

var _ = Describe("an endpoint that starts to terminate", func() {
	It("gets no new connection later than 100 ms after the watch event", func(ctx SpecContext) {
		c := newCluster()
		svc := c.service("web", noSelector)
		leaving, staying := serve(c.Pods, netip.AddrPortFrom(lab.Pod(1), 8080)), serve(c.Pods, netip.AddrPortFrom(lab.Pod(2), 8080))
		ready := c.slice("web", "a", endpoint(lab.Pod(1)), endpoint(lab.Pod(2)))
		terminating := c.slice("web", "a", endpoint(lab.Pod(1), func(e *discoveryv1.Endpoint) { e.Conditions = conditions(false, true, true) }), endpoint(lab.Pod(2)))
		c.write(ready)
		c.releasedUsher()
		l := startLoad(c.pod, vip(svc), 200)

		seen := c.whenTerminating(ctx, "a")
		const most = 100 * time.Millisecond
		// Other suites run at the same time, so the best round of two minutes counts.
		quickest := time.Hour
		for end := time.Now().Add(2 * time.Minute); quickest >= most && time.Now().Before(end); {
			var last []time.Duration
			for range 5 {
				before := leaving.connections()
				Eventually(leaving.connections).WithTimeout(soon).Should(BeNumerically(">", before))
				c.write(terminating)
				var event time.Time
				Eventually(seen).WithTimeout(soon).Should(Receive(&event))
				l.more(100) // half a second
				last = append(last, leaving.last().Sub(event))
				c.write(ready)
			}
			slices.Sort(last)
			AddReportEntry("last new connection after the event", fmt.Sprint(last))
			quickest = min(quickest, last[len(last)/2])
		}
		Expect(l.stop()).To(BeEmpty())
		Expect(staying.connections()).NotTo(BeZero())
		Expect(quickest).To(BeNumerically("<", most))
	}, SpecTimeout(10*time.Minute))
})

// whenTerminating watches a slice as usher does. The channel receives the time of each event in which an endpoint is
// terminating.
func (c *cluster) whenTerminating(ctx context.Context, slice string) <-chan time.Time {
	GinkgoHelper()
	client := c.api.DiscoveryV1().EndpointSlices(c.namespace)
	now, err := client.Get(ctx, slice, metav1.GetOptions{})
	Expect(err).NotTo(HaveOccurred())
	watch, err := client.Watch(ctx, metav1.ListOptions{ResourceVersion: now.ResourceVersion})
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(watch.Stop)
	seen := make(chan time.Time, 100)
	go func() {
		for event := range watch.ResultChan() {
			heard := time.Now()
			slice, ok := event.Object.(*discoveryv1.EndpointSlice)
			if !ok {
				GinkgoWriter.Printf("the test's watch: %#v\n", event)
			} else if slices.ContainsFunc(slice.Endpoints, func(e discoveryv1.Endpoint) bool { return *e.Conditions.Terminating }) {
				seen <- heard
			}
		}
		GinkgoWriter.Println("the test's watch has ended")
	}()
	return seen
}
