package cluster

import (
	"net/netip"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/usherproxy/usher/test/lab"
)

var _ = Describe("endpoint selection", func() {
	const scheduler, weight = "usher.io/scheduler", "usher.io/weight"

	It("follows the Service's annotations when set, changed, invalid and removed", func() {
		c := newCluster()
		svc := c.service("web", noSelector)
		var pods []netip.AddrPort
		for n := 1; n <= 3; n++ {
			pods = append(pods, serve(c.Pods, netip.AddrPortFrom(lab.Pod(n), 8080)).addr)
		}
		c.write(c.slice("web", "a", endpoint(lab.Pod(1)), endpoint(lab.Pod(2)), endpoint(lab.Pod(3))))
		c.usher()
		whom := c.whom(svc)
		inTurn := map[netip.AddrPort]int{pods[0]: 4, pods[1]: 4, pods[2]: 4}
		Eventually(whom).WithTimeout(soon).Should(Equal(inTurn))

		By("a scheduler that gives a client the same endpoint each time")
		c.annotate("web", scheduler, "sh")
		Eventually(whom).WithTimeout(soon).Should(HaveLen(1))
		c.annotate("web", scheduler, "lc")
		Eventually(whom).WithTimeout(soon).Should(HaveLen(3))

		By("weights")
		c.annotate("web", scheduler, "wrr")
		c.annotate("web", weight, pods[0].Addr().String()+"=2,*=0")
		Eventually(whom).WithTimeout(soon).Should(Equal(map[netip.AddrPort]int{pods[0]: 12}))
		c.annotate("web", weight, pods[0].String()+"=4")
		Eventually(whom).WithTimeout(soon).Should(Equal(map[netip.AddrPort]int{pods[0]: 8, pods[1]: 2, pods[2]: 2}))

		By("reporting invalid values, and using the defaults")
		c.annotate("web", scheduler, "best")
		c.annotate("web", weight, pods[0].String()+"=many")
		Eventually(c.warnings("web")).WithTimeout(soon).Should(ContainElements(
			ContainSubstring(`metadata.annotations[usher.io/scheduler]: Invalid value: "best": must be one of rr, random, lc,`),
			ContainSubstring(`must be POD=WEIGHT or ADDRESS=WEIGHT, separated by commas, with weights from 0 to 256`)))
		Eventually(whom).WithTimeout(soon).Should(Equal(inTurn))

		c.annotate("web", scheduler, "maglev")
		c.annotate("web", weight, "")
		Eventually(whom).WithTimeout(soon).Should(HaveLen(1))
		c.annotate("web", scheduler, "")
		Eventually(whom).WithTimeout(soon).Should(Equal(inTurn))
	})
})
