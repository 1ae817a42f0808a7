package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gbytes"
	"github.com/onsi/gomega/gexec"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/usherproxy/usher/test/cluster/control"
	"github.com/usherproxy/usher/test/lab"
)

// These are the permissions needed to query the usher instances of a cluster, as docs/kubectl.md lists them.
var (
	listPods    = rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"list"}}
	portForward = rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"pods/portforward"}, Verbs: []string{"get", "create"}}
)

// person creates a user with only these permissions, in kube-system. The user's kubeconfig selects the spec's
// namespace.
func (c *cluster) person(name string, rules ...rbacv1.PolicyRule) (kubeconfig string) {
	GinkgoHelper()
	ctx, meta := context.Background(), metav1.ObjectMeta{Name: name + "-" + c.namespace}
	Expect(c.api.RbacV1().Roles(roleNamespace).Create(ctx, &rbacv1.Role{ObjectMeta: meta, Rules: rules}, metav1.CreateOptions{})).Error().NotTo(HaveOccurred())
	binding := &rbacv1.RoleBinding{ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: meta.Name},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: meta.Name}}}
	Expect(c.api.RbacV1().RoleBindings(roleNamespace).Create(ctx, binding, metav1.CreateOptions{})).Error().NotTo(HaveOccurred())
	config, err := clientcmd.LoadFromFile(plane.Kubeconfig(control.Identity{User: meta.Name}, plane.Server()))
	Expect(err).NotTo(HaveOccurred())
	config.Contexts["test"].Namespace = c.namespace
	kubeconfig = filepath.Join(GinkgoT().TempDir(), "kubeconfig")
	Expect(clientcmd.WriteToFile(*config, kubeconfig)).To(Succeed())
	return kubeconfig
}

// usherPods makes the usher instances of these Nodes reachable through the API server. hosts has a client on each.
func (c *cluster) usherPods(hosts map[string]*lab.Dialer) {
	GinkgoHelper()
	k := c.newKubelet()
	k.hosts = hosts
	for node := range hosts {
		updateNodeStatus(node, k.status)
		DeferCleanup(updateNodeStatus, node, func(n *corev1.Node) { n.Status = corev1.NodeStatus{} })
		c.usherPod(node)
	}
}

// usherPod creates the Pod that the DaemonSet would create on a Node, in the state in which usher runs.
func (c *cluster) usherPod(node string) {
	GinkgoHelper()
	ctx, pods := context.Background(), c.api.CoreV1().Pods(roleNamespace)
	pod, err := pods.Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "usher-" + node, Labels: map[string]string{"app.kubernetes.io/name": "usher"}},
		Spec:       corev1.PodSpec{NodeName: node, HostNetwork: true, Containers: []corev1.Container{{Name: "usher", Image: "none"}}},
	}, metav1.CreateOptions{})
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func() {
		Expect(pods.Delete(ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)})).To(Succeed())
	})
	pod.Status.Phase = corev1.PodRunning
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	Expect(pods.UpdateStatus(ctx, pod, metav1.UpdateOptions{})).Error().NotTo(HaveOccurred())
}

var _ = Describe("kubectl usher, run outside the cluster,", func() {
	var (
		c          *cluster
		svc        *corev1.Service
		pods       []*kubernetesPod
		onHere     *usher
		laptop     *lab.Dialer // a client on the Node "elsewhere"
		kubeconfig string
		names      string // folder with kubectl's plugin under both names
	)
	BeforeEach(func() {
		c = newCluster()
		// The other Node is the API server's host, from which clients also reach Pods.
		controlSpace.Output("ip", "route", "add", "10.244.0.0/24", "via", "198.51.100.2", "dev", "node", "onlink", "src", controlAddress.String())
		c.Node.Output("sysctl", "-qw", "net.ipv4.ip_forward=1")
		laptop = controlSpace.NewDialer(8)
		c.usherPods(map[string]*lab.Dialer{here: c.node, elsewhere: laptop})
		svc, pods = c.service("web"), nil
		for n := 1; n <= 2; n++ {
			pods = append(pods, c.startPod("web", n, here))
			c.awaitReady("web", pods[n-1])
		}
		onHere = c.usher()
		c.laptop(leastRole(plane.Server()), "--node-name="+elsewhere, "--via=direct", "--trace=false")
		kubeconfig = c.person("operator", listPods, portForward)
		names = GinkgoT().TempDir()
		for _, name := range []string{"kubectl-usher", "kubectl_complete-usher"} {
			Expect(os.Symlink(kubectlUsherRace(), filepath.Join(names, name))).To(Succeed())
		}
	})
	// start starts a program where the API server is reachable, as the user of the kubeconfig.
	start := func(kubeconfig, program string, args ...string) *gexec.Session {
		GinkgoHelper()
		cmd := exec.Command(program, args...)
		cmd.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig, "PATH="+names+":"+os.Getenv("PATH"))
		s := startIn(controlSpace, cmd)
		DeferCleanup(func() {
			s.Kill().Wait(30 * time.Second)
			Expect(string(s.Err.Contents())).NotTo(ContainSubstring("DATA RACE"))
		})
		return s
	}
	// says runs the plugin, expects an exit code, and returns the output.
	says := func(code int, args ...string) (out, errors string) {
		GinkgoHelper()
		s := start(kubeconfig, filepath.Join(names, "kubectl-usher"), args...)
		Eventually(s).WithTimeout(30 * time.Second).Should(gexec.Exit(code))
		return string(s.Out.Contents()), string(s.Err.Contents())
	}
	// clients makes the given number of connections on each Node.
	clients := func(onHere, onElsewhere int) {
		GinkgoHelper()
		for range onHere {
			Expect(ask(c.pod, vip(svc))).Error().NotTo(HaveOccurred())
		}
		for range onElsewhere {
			Expect(ask(laptop, vip(svc))).Error().NotTo(HaveOccurred())
		}
	}

	It("shows the state of all nodes, merged or by node, as a kubectl plugin and directly, and reports missing permissions", func() {
		clients(3, 2)
		Eventually(func() string { // until the connections have ended
			out, _ := says(0, "get", "services")
			Expect(strings.Fields(strings.Split(out, "\n")[0])).NotTo(ContainElement("NODE"), "all nodes have the same state")
			return out
		}).WithTimeout(soon).Should(MatchRegexp(`(?m)^web +ok +[0-9:]+ +%s +80/TCP +2/2 +0 +5 +0 +0$`, svc.Spec.ClusterIP))
		out, _ := says(0, "get", "services", "--per-node")
		Expect(out).To(MatchRegexp(`(?m)^elsewhere +web +ok .* 2 +0 +0\nhere +web +ok .* 3 +0 +0$`))
		out, _ = says(0, "get", "services", "--node", elsewhere, "-o", "json")
		var list struct {
			Items []struct {
				Name  string
				Nodes []struct {
					Node        string
					Connections int
				}
			}
		}
		Expect(json.Unmarshal([]byte(out), &list)).To(Succeed())
		Expect(list.Items).To(HaveLen(1))
		Expect(list.Items[0].Nodes).To(HaveExactElements(And(HaveField("Node", elsewhere), HaveField("Connections", 2))))

		for _, command := range [][]string{{binaries.Kubectl, "usher"}, {filepath.Join(names, "kubectl-usher")}} {
			s := start(kubeconfig, command[0], append(command[1:], "trace", "web", "--follow=false")...)
			Eventually(s).WithTimeout(30 * time.Second).Should(gexec.Exit(0))
			lines := strings.Split(strings.TrimSpace(string(s.Out.Contents())), "\n")
			listed := map[string]int{}
			var accepted []string // times; the connections of a client are sequential
			for _, line := range lines {
				words := strings.Fields(line)
				if strings.Contains(line, " accepted ") || strings.Contains(line, "connected to") {
					listed[words[1]]++
				}
				if strings.Contains(line, " accepted ") {
					accepted = append(accepted, words[0])
				}
			}
			Expect(slices.IsSorted(accepted)).To(BeTrue(), "in chronological order:\n%s", strings.Join(lines, "\n"))
			Expect(listed).To(And(HaveKey(here), HaveKey(elsewhere), HaveLen(2)), strings.Join(lines, "\n"))
		}

		out, _ = says(0, "get", "connections", "--state=all")
		Expect(strings.Count(out, "\nhere ")).To(Equal(3))
		Expect(strings.Count(out, "\nelsewhere ")).To(Equal(2))
		out, _ = says(0, "get", "connection", "1")
		Expect(out).To(And(ContainSubstring("On node here"), ContainSubstring("On node elsewhere")))
		_, errors := says(1, "get", "connection", "999")
		Expect(errors).To(ContainSubstring("no node has connection 999"))
		_, errors = says(1, "get", "services", "wbe")
		Expect(errors).To(ContainSubstring("no Service %s/wbe is served; did you mean web?", c.namespace))
		out, _ = says(0, "__complete", "get", "services", "--node", "")
		Expect(out).To(HavePrefix("elsewhere\nhere\n"))
		out, _ = says(0, "explain", "web", "--client", "10.244.0.50")
		Expect(out).To(ContainSubstring("On elsewhere"))

		By("using the user's permissions, and reporting missing permissions and nodes without usher")
		operator := kubeconfig
		kubeconfig = c.person("nobody")
		_, errors = says(1, "get", "services")
		Expect(errors).To(And(HavePrefix("usher: list Pods in namespace kube-system is forbidden"),
			ContainSubstring("kubectl -n kube-system create role usher-list --verb=list --resource=pods")))
		kubeconfig = c.person("lister", listPods)
		for _, args := range [][]string{{"get", "services"}, {"dashboard", "--address=127.0.0.1:0"}, {"trace"}, {"trace", "--follow=false"}, {"get", "connection", "1"}} {
			_, errors = says(1, args...)
			Expect(errors).To(And(HavePrefix("usher: port-forward to Pods in namespace kube-system is forbidden"),
				ContainSubstring("kubectl -n kube-system create role usher-ask --verb=get,create --resource=pods/portforward")), fmt.Sprint(args))
			Expect(strings.Count(errors, "forbidden")).To(BeNumerically("<=", 3), "not for each node: %s", errors)
		}
		kubeconfig = operator
		_, errors = says(1, "get", "services", "--node", "other")
		Expect(errors).To(MatchRegexp(`^usher: usher is not running on node other: no Pod there with the label app.kubernetes.io/name=usher in namespace kube-system of https://.*; nodes with one: elsewhere, here\n$`))
		_, errors = says(2, "get", "services", "--local", "--node", "other")
		Expect(errors).To(ContainSubstring("--node cannot be combined with --local"))
	})

	It("shows whether an endpoint is in quarantine because of its Pod or one node", func() {
		controlSpace.Output("ip", "route", "add", "unreachable", pods[0].addr.Addr().String())
		DeferCleanup(func() { controlSpace.Output("ip", "route", "delete", "unreachable", pods[0].addr.Addr().String()) })
		watching := start(kubeconfig, filepath.Join(names, "kubectl-usher"), "get", "services", "-w")
		Eventually(watching.Out).WithTimeout(3 * soon).Should(gbytes.Say(`web +ok `))
		clients(4, 4)
		Eventually(watching.Out).WithTimeout(3 * soon).Should(gbytes.Say(`web +degraded on 1 of 2 `))
		out, _ := says(0, "get", "endpoints", "web")
		Expect(out).To(MatchRegexp(`(?m)^web +main +%s +web-1 +quarantined on 1 of 2 +elsewhere `, pods[0].addr))
		Expect(out).To(MatchRegexp(`(?m)^web +main +%s +web-2 +ready +- `, pods[1].addr))
		out, _ = says(1, "diagnose", "web")
		Expect(out).To(MatchRegexp(`(?s)web-1.*on: +node elsewhere`))
		Expect(out).NotTo(ContainSubstring("node here"))

		// The dashboard shows all nodes in a browser.
		serving := start(kubeconfig, filepath.Join(names, "kubectl-usher"), "dashboard", "--address=127.0.0.1:0")
		Eventually(serving.Out).WithTimeout(3 * soon).Should(gbytes.Say(`Open http://\S+/ in a browser: 2 nodes\.`))
		page := strings.Fields(string(serving.Out.Contents()))[1]
		read := func(g Gomega, path string, into any) {
			GinkgoHelper()
			res, err := laptop.Client().Get(page + path)
			g.Expect(err).NotTo(HaveOccurred())
			defer res.Body.Close()
			g.Expect(res.StatusCode).To(Equal(http.StatusOK), path)
			g.Expect(json.NewDecoder(res.Body).Decode(into)).To(Succeed())
		}
		var seen struct {
			Findings []struct{ Fault, Endpoint, Node string }
		}
		Eventually(func(g Gomega) { // a node that answers late is left out
			seen.Findings = nil
			read(g, "api/v1/cluster/services/"+c.namespace+"/web", &seen)
			g.Expect(seen.Findings).To(HaveExactElements(And(HaveField("Node", elsewhere), HaveField("Endpoint", pods[0].addr.String()), HaveField("Fault", "path"))))
		}).WithTimeout(3*soon).Should(Succeed(), "a Pod that answers the other node, from a node that reaches the other Pod")
		var status struct{ PortalMode string }
		read(Default, "nodes/"+elsewhere+"/api/v1/status", &status)
		Expect(status.PortalMode).NotTo(BeEmpty())

		// A fault of the Pod itself shows on all nodes.
		pods[1].stop()
		Eventually(failure(c.pod, vip(svc))).WithTimeout(soon).ShouldNot(HaveOccurred())
		clients(4, 0)
		_ = failure(laptop, vip(svc))()
		out, _ = says(0, "get", "endpoints", "web")
		Expect(out).To(MatchRegexp(`(?m)^web +main +%s +web-2 +quarantined +- `, pods[1].addr))
		Eventually(func(g Gomega) []string { // the page shows its last known state until it has a newer one
			seen.Findings = nil
			read(g, "api/v1/cluster/services/"+c.namespace+"/web", &seen)
			var listed []string
			for _, f := range seen.Findings {
				listed = append(listed, f.Fault+" "+f.Endpoint)
			}
			return listed
		}).WithTimeout(30 * time.Second).Should(ContainElement("pod " + pods[1].addr.String()))
	})

	It("names nodes that do not answer, shows the others, and retries in trace", func() {
		clients(1, 1)
		following := start(kubeconfig, filepath.Join(names, "kubectl-usher"), "trace", "web", "--since=1h")
		Eventually(func() string { // until the trace shows it
			clients(1, 1)
			return string(following.Out.Contents())
		}).WithTimeout(30 * time.Second).Should(And(MatchRegexp(`(?m)^\S+ here +`), MatchRegexp(`(?m)^\S+ elsewhere +`)))
		onHere.stop()
		Eventually(following.Err).WithTimeout(soon).Should(gbytes.Say("node here: .*; retrying"))
		out, errors := says(1, "get", "services")
		Expect(out).To(ContainSubstring("web"))
		Expect(errors).To(MatchRegexp("^usher: node here: cannot connect to usher: .+\n$"))
		_, errors = says(1, "get", "services", "--node", here)
		Expect(errors).To(MatchRegexp("^usher: node here: cannot connect to usher: .+\n$"))

		c.usher()
		before := strings.Count(string(following.Out.Contents()), " here ")
		Eventually(func() int {
			clients(1, 0)
			return strings.Count(string(following.Out.Contents()), " here ")
		}).WithTimeout(30 * time.Second).Should(BeNumerically(">", before))
		listed := map[string]int{}
		for line := range strings.Lines(string(following.Out.Contents())) {
			listed[line]++
		}
		Expect(listed).To(HaveEach(1), "no event is shown twice, neither a past one nor after a restart")
		Expect(listed).To(HaveKey(MatchRegexp(`^\S+ elsewhere +.*#1 .* accepted `)), "events before the command started")
	})
})
