package cluster

import (
	"os/exec"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gexec"
	corev1 "k8s.io/api/core/v1"
)

var _ = Describe("the names of Services", func() {
	const resolver = "10.244.0.1" // the node's address for its Pods

	It("resolve for all kinds of Services, including unserved ones, and follow changes", func() {
		if _, err := exec.LookPath("dig"); err != nil {
			Skip("dig is not installed")
		}
		c := newCluster()
		// short returns a function for Eventually that returns dig's answer in a Pod.
		short := func(args ...string) func() ([]string, error) {
			return func() (lines []string, err error) {
				c.Pods.Do(func() error {
					var out []byte
					out, err = exec.Command("dig", append([]string{"+short", "+tries=3", "@" + resolver}, args...)...).Output()
					lines = strings.Fields(string(out))
					return nil
				})
				return lines, err
			}
		}
		suffix := "." + c.namespace + ".svc.cluster.local"

		web := c.service("web")
		foreign := c.service("foreign", func(s *corev1.Service) {
			s.Labels = map[string]string{"service.kubernetes.io/service-proxy-name": "other"}
		})
		c.service("db", func(s *corev1.Service) { s.Spec.ClusterIP = corev1.ClusterIPNone })
		c.service("outside", func(s *corev1.Service) {
			s.Spec.Type, s.Spec.ExternalName = corev1.ServiceTypeExternalName, "www.example.com"
		})
		pod := c.startPod("db", 1, elsewhere, func(p *corev1.Pod) { p.Spec.Hostname, p.Spec.Subdomain = "db-0", "db" })
		c.connect("--via=direct", "--dns="+resolver)

		Expect(short("web" + suffix)()).To(ConsistOf(web.Spec.ClusterIP))
		Expect(short("foreign" + suffix)()).To(ConsistOf(foreign.Spec.ClusterIP))
		Expect(short("kubernetes.default.svc.cluster.local")()).To(ConsistOf("10.96.0.1"))
		Expect(short("CNAME", "outside"+suffix)()).To(ConsistOf("www.example.com."))
		ip := pod.addr.Addr().String()
		Eventually(short("db" + suffix)).WithTimeout(soon).Should(ConsistOf(ip))
		Expect(short("db-0.db" + suffix)()).To(ConsistOf(ip))
		Expect(short("SRV", "_main._tcp.db"+suffix)()).To(Equal([]string{"0", "100", "8080", "db-0.db" + suffix + "."}))
		Expect(short("-x", ip)()).To(ConsistOf("db-0.db" + suffix + "."))

		By("following changes")
		pod.terminate()
		Eventually(short("db" + suffix)).WithTimeout(soon).Should(BeEmpty())
		c.deleteService("outside")
		Eventually(short("CNAME", "outside"+suffix)).WithTimeout(soon).Should(BeEmpty())
		Expect(short("web" + suffix)()).To(ConsistOf(web.Spec.ClusterIP))
	})

	It("are in the environment that kubectl usher env prints", func() {
		c := newCluster()
		svc := c.service("web")
		cmd := exec.Command(kubectlUsherRace(), "env", "-n", c.namespace, "--kubeconfig", leastRole(plane.Server()), "-o", "dotenv")
		session := startIn(c.Node, cmd)
		Eventually(session).WithTimeout(soon).Should(gexec.Exit(0))
		Expect(string(session.Out.Contents())).To(And(
			ContainSubstring("WEB_SERVICE_HOST="+svc.Spec.ClusterIP+"\n"),
			ContainSubstring("KUBERNETES_SERVICE_HOST=10.96.0.1\n")))
	})
})
