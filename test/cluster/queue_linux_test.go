package cluster

import (
	"errors"
	"net"
	"net/netip"
	"syscall"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"

	"github.com/usherproxy/usher/test/lab"
)

var _ = Describe("how many connections an endpoint may have:", func() {
	const limit, timeout = "usher.io/max-connections-per-endpoint", "usher.io/queue-timeout"

	It("as the annotations of the Service say, set, changed, wrong and removed", func() {
		c := newCluster()
		svc := c.service("web", noSelector)
		pod := serve(c.Pods, netip.AddrPortFrom(lab.Pod(1), 8080)).addr
		c.write(c.slice("web", "a", endpoint(lab.Pod(1))))
		c.usher()
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
		// waits is an error unless a client is reset who waits until its time is over.
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

		By("one")
		annotate(timeout, "1s")
		annotate(limit, "1")
		Eventually(waits).WithTimeout(soon).Should(Succeed())

		By("one more")
		annotate(limit, "2")
		Eventually(answers(c.pod, vip(svc))).WithTimeout(soon).Should(Equal(pod))
		annotate(limit, "1")
		Eventually(waits).WithTimeout(soon).Should(Succeed())

		By("what is wrong being told, and the default used")
		annotate(limit, "few")
		annotate(timeout, "0s")
		Eventually(c.warnings("web")).WithTimeout(soon).Should(ContainElements(
			ContainSubstring(`metadata.annotations[usher.io/max-connections-per-endpoint]: Invalid value: "few": must be a number of connections from 1 to 1000000, or 0 for any number`),
			ContainSubstring(`metadata.annotations[usher.io/queue-timeout]: Invalid value: "0s": must be a duration from 1s to 24h`)))
		Eventually(answers(c.pod, vip(svc))).WithTimeout(soon).Should(Equal(pod))

		By("a client that waits when the annotation goes")
		annotate(timeout, "5m")
		annotate(limit, "1")
		waiting := make(chan error, 1)
		Eventually(func() error { return failure(c.pod, vip(svc))() }).WithTimeout(soon).Should(HaveOccurred())
		go func() {
			_, err := ask(c.pod, vip(svc))
			waiting <- err
		}()
		annotate(limit, "")
		Eventually(waiting).WithTimeout(soon).Should(Receive(BeNil()))
		annotate(timeout, "")
		Eventually(answers(c.pod, vip(svc))).WithTimeout(soon).Should(Equal(pod))
	})
})
