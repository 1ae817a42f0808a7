package cluster

import (
	"errors"
	"net"
	"net/netip"
	"syscall"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/usherproxy/usher/test/lab"
)

var _ = Describe("the connection limit of endpoints", func() {
	const limit, timeout = "usher.io/max-connections-per-endpoint", "usher.io/queue-timeout"

	It("follows the Service's annotations when set, changed, invalid and removed", func() {
		c := newCluster()
		svc := c.service("web", noSelector)
		pod := serve(c.Pods, netip.AddrPortFrom(lab.Pod(1), 8080)).addr
		c.write(c.slice("web", "a", endpoint(lab.Pod(1))))
		c.usher()
		// waits returns an error unless a waiting client is reset when its time in the queue is over.
		waits := func() error {
			_, err := ask(c.pod, vip(svc))
			switch {
			case errors.Is(err, syscall.ECONNRESET):
				return nil
			case err == nil:
				return errors.New("it was answered")
			}
			return err
		}
		Eventually(answers(c.pod, vip(svc))).WithTimeout(soon).Should(Equal(pod))
		var has net.Conn
		has, err := c.pod.Dial("", vip(svc), soon)
		Expect(err).NotTo(HaveOccurred())
		defer has.Close()
		Expect(readName(has)).To(Equal(pod))

		By("allowing one connection")
		c.annotate("web", timeout, "1s")
		c.annotate("web", limit, "1")
		Eventually(waits).WithTimeout(soon).Should(Succeed())

		By("allowing one more")
		c.annotate("web", limit, "2")
		Eventually(answers(c.pod, vip(svc))).WithTimeout(soon).Should(Equal(pod))
		c.annotate("web", limit, "1")
		Eventually(waits).WithTimeout(soon).Should(Succeed())

		By("reporting invalid values, and using the defaults")
		c.annotate("web", limit, "few")
		c.annotate("web", timeout, "0s")
		Eventually(c.warnings("web")).WithTimeout(soon).Should(ContainElements(
			ContainSubstring(`metadata.annotations[usher.io/max-connections-per-endpoint]: Invalid value: "few": must be 0 or a number from 1 to 1000000`),
			ContainSubstring(`metadata.annotations[usher.io/queue-timeout]: Invalid value: "0s": must be a duration from 1s to 24h`)))
		Eventually(answers(c.pod, vip(svc))).WithTimeout(soon).Should(Equal(pod))
		status := func() (answer, error) { return get(c.node, adminURL+"/api/v1/status") }
		Eventually(status).WithTimeout(soon).Should(HaveField("Body", And(ContainSubstring("1 Service needs attention: "),
			ContainSubstring("PartNotServed"), ContainSubstring("must be 0 or a number from 1 to 1000000"))))

		By("removing the annotation while a client waits")
		c.annotate("web", timeout, "5m")
		c.annotate("web", limit, "1")
		waiting := make(chan error, 1)
		Eventually(failure(c.pod, vip(svc))).WithTimeout(3 * soon).Should(HaveOccurred())
		go func() { waiting <- exchange(c.pod, vip(svc)) }()
		c.annotate("web", limit, "")
		Eventually(waiting).WithTimeout(3 * soon).Should(Receive(BeNil()))
		c.annotate("web", timeout, "")
		Eventually(answers(c.pod, vip(svc))).WithTimeout(soon).Should(Equal(pod))
		Eventually(status).WithTimeout(soon).Should(HaveField("Body", ContainSubstring(`"attention":"no problems"`)))
	})
})
