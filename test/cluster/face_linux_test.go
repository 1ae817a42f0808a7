package cluster

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gbytes"
	"github.com/onsi/gomega/gexec"
	corev1 "k8s.io/api/core/v1"

	"github.com/usherproxy/usher/test/lab"
)

var _ = Describe("usher's external interface:", func() {
	var (
		c              *cluster
		healthz, livez = "http://" + lab.NodeOut4 + ":" + healthzPort + "/healthz", "http://" + lab.NodeOut4 + ":" + healthzPort + "/livez"
	)
	BeforeEach(func() { c = newCluster() })

	It("/healthz and /livez on every address: 200, with the times; /proxyMode, /metrics and /configz on loopback; Events", func() {
		c.usher()
		for _, url := range []string{healthz, livez} {
			answer, err := get(c.outside, url)
			Expect(err).NotTo(HaveOccurred())
			Expect(answer).To(code(200))
			for _, field := range []string{"lastUpdated", "currentTime"} {
				at, err := time.Parse(time.RFC3339, fmt.Sprint(answer.fields()[field]))
				Expect(err).NotTo(HaveOccurred(), answer.Body)
				Expect(time.Since(at)).To(BeNumerically("<", time.Minute))
			}
		}

		By("serving the rest only on the node's loopback")
		Expect(get(c.node, adminURL+"/proxyMode")).To(And(code(200), HaveField("Body", "userspace")))
		metrics, err := get(c.node, adminURL+"/metrics")
		Expect(err).NotTo(HaveOccurred())
		for _, name := range []string{"kubeproxy_sync_proxy_rules_duration_seconds_count", "kubeproxy_sync_proxy_rules_last_timestamp_seconds",
			"rest_client_requests_total", "rest_client_request_duration_seconds_count", "usher_services"} {
			Expect(metrics.Body).To(MatchRegexp(`(?m)^` + name + `(\{[^}]*\})? [0-9.e+]+$`))
		}
		Expect(get(c.node, adminURL+"/configz")).To(code(200))
		Expect(get(c.outside, "http://"+lab.NodeOut4+":10249/metrics")).Error().To(HaveOccurred())

		By("reporting in Events a port that cannot be served and the reason, while other ports are served")
		svc := c.service("assoc", func(s *corev1.Service) {
			s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: "sctp", Port: 5000, Protocol: corev1.ProtocolSCTP})
		})
		pod := c.startPod("assoc", 1, here)
		Eventually(answers(c.pod, vip(svc))).WithTimeout(soon).Should(Equal(pod.addr))
		Eventually(c.warnings("assoc")).WithTimeout(soon).Should(ContainElement(And(ContainSubstring("assoc:sctp"), ContainSubstring("SCTP is not served"), ContainSubstring(here))))
		metrics, err = get(c.node, adminURL+"/metrics")
		Expect(err).NotTo(HaveOccurred())
		Expect(metrics.Body).To(MatchRegexp(`(?m)^usher_service_port_problems\{reason="\w+"\} 1$`))
	})

	It("/healthz returns 503 while the node has the taint ToBeDeletedByClusterAutoscaler or is being deleted; /livez returns 200", func() {
		createNode("doomed", func(n *corev1.Node) { n.Finalizers = []string{"usher.example/test"} })
		DeferCleanup(func() {
			updateNode("doomed", func(n *corev1.Node) { n.Finalizers = nil })
			deleteNode("doomed")
		})
		c.usher("--node-name=doomed")
		Expect(get(c.outside, healthz)).To(code(200))
		updateNode("doomed", func(n *corev1.Node) {
			n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: "ToBeDeletedByClusterAutoscaler", Value: "1", Effect: corev1.TaintEffectNoSchedule})
		})
		Eventually(getting(c.outside, healthz)).WithTimeout(soon).Should(code(503))
		Expect(get(c.outside, livez)).To(code(200))
		updateNode("doomed", func(n *corev1.Node) { n.Spec.Taints = nil })
		Eventually(getting(c.outside, healthz)).WithTimeout(soon).Should(code(200))
		deleteNode("doomed")
		Eventually(getting(c.outside, healthz)).WithTimeout(soon).Should(code(503))
		Expect(get(c.outside, livez)).To(code(200))
	})

	It("cleanup removes everything that usher created, and nothing else", func() {
		c.Node.Output("iptables", "-t", "nat", "-A", "PREROUTING", "-d", "198.18.0.1", "-p", "tcp", "--dport", "99", "-j", "REDIRECT", "--to-ports", "98")
		c.Node.Output("ip6tables", "-t", "nat", "-L") // creates the tables, so that they exist before usher starts, too
		c.Node.Output("iptables", "-t", "mangle", "-L")
		c.Node.Output("ip6tables", "-t", "mangle", "-L")
		c.Node.Output("iptables", "-t", "filter", "-L")
		c.Node.Output("ip6tables", "-t", "filter", "-L")
		before := lab.State(c.Node)
		both := corev1.IPFamilyPolicyRequireDualStack
		svc := c.service("web", loadBalancer, externalLocal, func(s *corev1.Service) {
			s.Spec.IPFamilyPolicy, s.Spec.ExternalIPs = &both, []string{externalIP}
		})
		c.service("empty")
		c.ingress("web", nil)
		pod := c.startPod("web", 1, here)
		for _, portal := range []string{"iptables", "nftables", "address"} {
			u := c.usher("--portal=" + portal)
			Eventually(answers(c.outside, at(externalIP, 80))).WithTimeout(soon).Should(Equal(pod.addr))
			Expect(ask(c.pod, vip(svc))).To(Equal(pod.addr))
			Expect(lab.State(c.Node)).NotTo(Equal(before))
			u.stop()
			session := startIn(c.Node, exec.Command(usherRace, "cleanup"))
			Eventually(session).WithTimeout(time.Minute).Should(gexec.Exit(0))
			Expect(lab.State(c.Node)).To(Equal(before), portal)
		}
	})
})

var _ = Describe("kube-proxy's configuration file", func() {
	var c *cluster
	BeforeEach(func() { c = newCluster() })
	file := func(fields string) string {
		GinkgoHelper()
		path := filepath.Join(GinkgoT().TempDir(), "config.yaml")
		Expect(os.WriteFile(path, []byte("apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"+fields), 0o600)).To(Succeed())
		return path
	}
	// run runs usher with only the file.
	run := func(path string, args ...string) *gexec.Session {
		GinkgoHelper()
		session := startIn(c.Node, exec.Command(usherRace, append([]string{"run", "--portal=iptables", "--log-format=text", "--config=" + path}, args...)...))
		DeferCleanup(func() { session.Kill().Wait(30 * time.Second) })
		return session
	}

	It("is enough to run usher", func() {
		svc := c.service("web", nodePort)
		pod := c.startPod("web", 1, here)
		session := run(file(`
clientConnection: {kubeconfig: ` + leastRole(plane.Server()) + `}
hostnameOverride: ` + here + `
healthzBindAddress: 0.0.0.0:11256
metricsBindAddress: 127.0.0.1:11249
nodePortAddresses: [192.0.2.0/24]
clusterCIDR: 10.244.0.0/16
mode: userspace
`))
		Eventually(session.Err).WithTimeout(time.Minute).Should(gbytes.Say("Serving"))
		Eventually(answers(c.pod, vip(svc))).WithTimeout(soon).Should(Equal(pod.addr))
		Expect(ask(c.outside, at(lab.NodeOut4, svc.Spec.Ports[0].NodePort))).To(Equal(pod.addr))
		Expect(failure(c.pod, at("10.244.0.1", svc.Spec.Ports[0].NodePort))()).To(HaveOccurred())
		Expect(get(c.outside, "http://"+lab.NodeOut4+":11256/healthz")).To(code(200))
		Expect(get(c.node, "http://127.0.0.1:11249/proxyMode")).To(code(200))
	})

	It("is overridden by flags, and fields without effect cause warnings", func() {
		session := run(file(`
clientConnection: {kubeconfig: `+leastRole(plane.Server())+`}
healthzBindAddress: 0.0.0.0:11256
iptables: {masqueradeBit: 3}
clusterCIRD: 10.0.0.0/8
`), "--healthz-address=0.0.0.0:12256", "--hostname-override="+here, "--oom-score-adj=-999")
		Eventually(session.Err).WithTimeout(time.Minute).Should(gbytes.Say("Serving"))
		Expect(get(c.outside, "http://"+lab.NodeOut4+":12256/healthz")).To(code(200))
		Expect(string(session.Err.Contents())).To(And(MatchRegexp("(?i)masqueradeBit"), ContainSubstring("clusterCIRD"), ContainSubstring("--oom-score-adj")))
	})

	It("is rejected with the name of a field that has an invalid value or an unsupported mode", func() {
		for named, value := range map[string]string{"healthzBindAddress": "nowhere", "mode": "kernelspace"} {
			session := run(file(named + ": " + value + "\n"))
			Eventually(session).WithTimeout(soon).Should(gexec.Exit())
			Expect(session.ExitCode()).NotTo(BeZero())
			Expect(string(session.Err.Contents())).To(ContainSubstring(named))
		}
	})
})
