package cluster

import (
	"net/netip"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"

	"github.com/usherproxy/usher/test/lab"
)

var _ = Describe("how an endpoint is chosen:", func() {
	const scheduler, weight = "usher.io/scheduler", "usher.io/weight"

	It("by the annotations of the Service, set, changed, wrong and removed", func() {
		c := newCluster()
		svc := c.service("web", noSelector)
		var pods []netip.AddrPort
		for n := 1; n <= 3; n++ {
			pods = append(pods, serve(c.Pods, netip.AddrPortFrom(lab.Pod(n), 8080)).addr)
		}
		c.write(c.slice("web", "a", endpoint(lab.Pod(1)), endpoint(lab.Pod(2)), endpoint(lab.Pod(3))))
		c.usher()
		// whom are the endpoints that answer a client who asks some times.
		whom := func() (map[netip.AddrPort]int, error) {
			counts := map[netip.AddrPort]int{}
			for range 12 {
				addr, err := answers(c.pod, vip(svc))()
				if err != nil {
					return nil, err
				}
				counts[addr]++
			}
			return counts, nil
		}
		annotate := func(name, value string) {
			GinkgoHelper()
			c.update("web", func(s *corev1.Service) {
				if s.Annotations == nil {
					s.Annotations = map[string]string{}
				}
				if s.Annotations[name] = value; value == "" {
					delete(s.Annotations, name)
				}
			})
		}
		inTurn := map[netip.AddrPort]int{pods[0]: 4, pods[1]: 4, pods[2]: 4}
		Eventually(whom).WithTimeout(soon).Should(Equal(inTurn))

		By("a scheduler that gives a client the same one each time")
		annotate(scheduler, "sh")
		Eventually(whom).WithTimeout(soon).Should(HaveLen(1))
		annotate(scheduler, "lc")
		Eventually(whom).WithTimeout(soon).Should(HaveLen(3))

		By("weights")
		annotate(scheduler, "wrr")
		annotate(weight, pods[0].Addr().String()+"=2,*=0")
		Eventually(whom).WithTimeout(soon).Should(Equal(map[netip.AddrPort]int{pods[0]: 12}))
		annotate(weight, pods[0].String()+"=4")
		Eventually(whom).WithTimeout(soon).Should(Equal(map[netip.AddrPort]int{pods[0]: 8, pods[1]: 2, pods[2]: 2}))

		By("what is wrong being told, and the rest served")
		annotate(scheduler, "best")
		annotate(weight, pods[0].String()+"=many")
		Eventually(c.warnings("web")).WithTimeout(soon).Should(ContainElements(
			ContainSubstring(`metadata.annotations[usher.io/scheduler]: Invalid value: "best": must be one of rr, random, lc,`),
			ContainSubstring(`must be weights from 0 to 256 of Pods or addresses`)))
		Eventually(whom).WithTimeout(soon).Should(Equal(inTurn))

		annotate(scheduler, "maglev")
		annotate(weight, "")
		Eventually(whom).WithTimeout(soon).Should(HaveLen(1))
		annotate(scheduler, "")
		Eventually(whom).WithTimeout(soon).Should(Equal(inTurn))
	})
})
