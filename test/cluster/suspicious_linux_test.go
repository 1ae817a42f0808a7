package cluster

import (
	"net"
	"net/netip"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/usherproxy/usher/test/lab"
)

var _ = Describe("an endpoint that breaks most of its connections:", func() {
	const suspicious = "usher.io/quarantine-suspicious"

	It("is put into quarantine as the annotation of the Service says, set, wrong and removed", func() {
		c := newCluster()
		svc := c.service("web", noSelector)
		bad := netip.AddrPortFrom(lab.Pod(2), 8080)
		lab.Serve(c.Pods.Listen(bad.String()), func(conn net.Conn) {
			_, _ = conn.Read(make([]byte, 1)) // and closes without an answer
		})
		serve(c.Pods, netip.AddrPortFrom(lab.Pod(1), 8080))
		c.write(c.slice("web", "a", endpoint(lab.Pod(1)), endpoint(lab.Pod(2))))
		c.usher("--quarantine=200ms", "--quarantine-max=200ms")
		// told returns what the API tells of the endpoint when it had some clients more.
		told := func() string {
			for range 10 {
				if conn, err := c.pod.Dial("", vip(svc), soon); err == nil {
					_, _ = conn.Write([]byte("?"))
					_, _ = conn.Read(make([]byte, 1))
					conn.Close()
				}
			}
			a, err := get(c.node, adminURL+"/api/v1/services/"+c.namespace+"/web")
			Expect(err).NotTo(HaveOccurred())
			_, of, _ := strings.Cut(a.Body, `"address":"`+bad.String()+`"`)
			of, _, _ = strings.Cut(of, `"address":`)
			return of
		}
		Eventually(told).WithTimeout(soon).Should(ContainSubstring(`"state":"suspicious"`))

		c.annotate("web", suspicious, "true")
		Eventually(told).WithTimeout(soon).Should(MatchRegexp(`"state":"quarantined".*it broke \d+ of its last \d+ connections`))

		By("what is wrong being told, and the default used")
		c.annotate("web", suspicious, "yes")
		Eventually(c.warnings("web")).WithTimeout(soon).Should(ContainElement(
			ContainSubstring(`metadata.annotations[usher.io/quarantine-suspicious]: Invalid value: "yes": must be true or false; the default is used`)))
		Eventually(told).WithTimeout(soon).Should(ContainSubstring(`"state":"suspicious"`))

		c.annotate("web", suspicious, "true")
		Eventually(told).WithTimeout(soon).Should(ContainSubstring(`"state":"quarantined"`))
		c.annotate("web", suspicious, "")
		Eventually(told).WithTimeout(soon).Should(ContainSubstring(`"state":"suspicious"`))
	})
})
