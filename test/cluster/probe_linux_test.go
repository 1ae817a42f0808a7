package cluster

import (
	"net/http"
	"net/netip"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"

	"github.com/usherproxy/usher/test/lab"
)

var _ = Describe("the probes of endpoints", func() {
	const (
		usher = "usher.io/probe"
		aws   = "service.beta.kubernetes.io/aws-load-balancer-healthcheck-"
	)

	It("follow usher's and AWS's annotations when set, changed, invalid and removed", func() {
		c := newCluster()
		svc := c.service("web", noSelector)
		var pods []netip.AddrPort
		for n := 1; n <= 3; n++ {
			pods = append(pods, serve(c.Pods, netip.AddrPortFrom(lab.Pod(n), 8080)).addr)
		}
		for n, status := range map[int]int{1: http.StatusOK, 2: http.StatusServiceUnavailable} { // nothing listens on the third
			health := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) })}
			listener := c.Pods.Listen(netip.AddrPortFrom(lab.Pod(n), 9090).String())
			go func() { _ = health.Serve(listener) }()
			DeferCleanup(health.Close)
		}
		c.write(c.slice("web", "a", endpoint(lab.Pod(1)), endpoint(lab.Pod(2)), endpoint(lab.Pod(3))))
		c.usher()
		whom := c.whom(svc)
		// annotate sets these annotations about probes on the Service, each as NAME=VALUE, and removes all others.
		annotate := func(annotations ...string) {
			GinkgoHelper()
			c.update("web", func(s *corev1.Service) {
				s.Annotations = map[string]string{}
				for _, a := range annotations {
					name, value, _ := strings.Cut(a, "=")
					s.Annotations[name] = value
				}
			})
		}
		all := map[netip.AddrPort]int{pods[0]: 4, pods[1]: 4, pods[2]: 4}
		two := map[netip.AddrPort]int{pods[0]: 6, pods[1]: 6}
		one := map[netip.AddrPort]int{pods[0]: 12}
		Eventually(whom).WithTimeout(soon).Should(Equal(all))

		By("setting usher's annotations")
		annotate(usher+"=tcp:9090", usher+"-interval=1s", usher+"-fall=1")
		Eventually(whom).WithTimeout(soon).Should(Equal(two))
		annotate(usher+"=http:/healthz:9090", usher+"-interval=1s", usher+"-fall=1")
		Eventually(whom).WithTimeout(soon).Should(Equal(one))

		By("reporting invalid annotations, and probing no endpoint")
		annotate(usher+"=often", usher+"-interval=1", usher+"-fall=0")
		Eventually(c.warnings("web")).WithTimeout(soon).Should(ContainElements(
			ContainSubstring(`metadata.annotations[usher.io/probe]: Invalid value: "often": must be none, tcp[:PORT],`),
			ContainSubstring(`metadata.annotations[usher.io/probe-interval]: Invalid value: "1": must be a duration from 1s to 1h`),
			ContainSubstring(`metadata.annotations[usher.io/probe-fall]: Invalid value: "0": must be a number from 1 to 100`)))
		Eventually(whom).WithTimeout(soon).Should(Equal(all))

		By("setting AWS's annotations")
		annotate(aws+"protocol=HTTP", aws+"port=9090", aws+"interval=1", aws+"unhealthy-threshold=1")
		Eventually(whom).WithTimeout(soon).Should(Equal(one))
		annotate(aws+"protocol=TCP", aws+"port=9090", aws+"interval=1", aws+"unhealthy-threshold=1")
		Eventually(whom).WithTimeout(soon).Should(Equal(two))
		annotate(usher+"=none", aws+"protocol=TCP", aws+"port=9090")
		Eventually(whom).WithTimeout(soon).Should(Equal(all))
		annotate(aws+"protocol=ICMP", aws+"interval=1")
		Eventually(c.warnings("web")).WithTimeout(soon).Should(ContainElement(ContainSubstring(`healthcheck-protocol]: Unsupported value: "ICMP"`)))

		By("removing an annotation")
		annotate(usher+"=tcp:9090", usher+"-interval=1s", usher+"-fall=1")
		Eventually(whom).WithTimeout(soon).Should(Equal(two))
		annotate()
		Eventually(whom).WithTimeout(soon).Should(Equal(all))
	})
})
