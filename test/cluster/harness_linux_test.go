package cluster

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

// These specs test the harness itself.
var _ = Describe("the control plane", func() {
	It("writes an EndpointSlice for a Service with ready Pods, and updates it", func() {
		c := newCluster()
		c.service("web")
		pod := c.startPod("web", 1, here)
		Eventually(func() []string {
			list := c.slices("web")
			if len(list) != 1 || !*list[0].Conditions.Ready {
				return nil
			}
			return append(list[0].Addresses, *list[0].NodeName, *list[0].Zone)
		}).WithTimeout(soon).Should(Equal([]string{pod.addr.Addr().String(), here, "zone-a"}))

		pod.terminate()
		Eventually(func() bool {
			list := c.slices("web")
			return len(list) == 1 && !*list[0].Conditions.Ready && *list[0].Conditions.Serving && *list[0].Conditions.Terminating
		}).WithTimeout(soon).Should(BeTrue())
		pod.remove()
		Eventually(func() int { return len(c.slices("web")) }).WithTimeout(soon).Should(BeZero())
	})
})
