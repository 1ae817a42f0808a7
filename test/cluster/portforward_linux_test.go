package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gbytes"
	"github.com/onsi/gomega/gexec"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/usherproxy/usher/proxy/admin/api"
	"github.com/usherproxy/usher/test/cluster/control"
	"github.com/usherproxy/usher/test/lab"
)

// developer creates a user who may see Services and use pods/portforward with these verbs. It returns the user's
// kubeconfig.
func (c *cluster) developer(verbs ...string) string {
	GinkgoHelper()
	ctx, name := context.Background(), "developer-"+c.namespace
	subject := []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: name}}
	allow := func(role string, rule rbacv1.PolicyRule) {
		meta := metav1.ObjectMeta{Name: name + "-" + role}
		object := &rbacv1.ClusterRole{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{rule}}
		Expect(c.api.RbacV1().ClusterRoles().Create(ctx, object, metav1.CreateOptions{})).Error().NotTo(HaveOccurred())
		binding := &rbacv1.ClusterRoleBinding{ObjectMeta: meta, Subjects: subject,
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: meta.Name}}
		Expect(c.api.RbacV1().ClusterRoleBindings().Create(ctx, binding, metav1.CreateOptions{})).Error().NotTo(HaveOccurred())
	}
	allow("services", rbacv1.PolicyRule{APIGroups: []string{"", "discovery.k8s.io"}, Resources: []string{"services", "endpointslices"}, Verbs: []string{"list", "watch"}})
	allow("events", rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"events"}, Verbs: []string{"create", "patch"}})
	if len(verbs) > 0 {
		allow("portforward", rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"pods/portforward"}, Verbs: verbs})
	}
	return plane.Kubeconfig(control.Identity{User: name}, plane.Server())
}

// patiently lengthens the attempts to connect: on a busy machine the API server and the kubelet take longer than the
// default timeouts, and usher then tries another Pod.
const patiently = "--dial-timeouts=20s,20s,20s"

// laptop starts 'kubectl usher connect' in the API server's namespace, which has no Pods. Cluster IPs are addresses
// there.
func (c *cluster) laptop(kubeconfig string, args ...string) *usher {
	GinkgoHelper()
	cmd := exec.Command(kubectlUsherRace(), append([]string{"connect", "--kubeconfig=" + kubeconfig, "--portal=address", "--socks=", "--trace", "--log-format=text"}, args...)...)
	u := &usher{cluster: c, Session: startIn(controlSpace, cmd)}
	DeferCleanup(func() {
		u.Interrupt() // removes the addresses that it installed
		Eventually(u.Session).WithTimeout(time.Minute).Should(gexec.Exit())
		Expect(string(u.Err.Contents())).NotTo(ContainSubstring("DATA RACE"))
		Expect(string(u.Err.Contents())).NotTo(ContainSubstring("panic:"))
	})
	return u.serving()
}

// kill closes a Pod's server and all its connections, as the end of its containers does, and returns their number.
func (s *server) kill() int {
	s.stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		_ = c.(*net.TCPConn).SetLinger(0)
		c.Close()
	}
	return len(s.conns)
}

// outputText returns usher's output: the trace of connections, line by line.
func (u *usher) outputText() string { return string(u.Out.Contents()) }

// refusedLate returns the number of failed connections whose Pod did not refuse within 0.2 s, as on a busy machine: usher
// then counts them as connected.
func refusedLate(laptop *lab.Dialer) (n int) {
	GinkgoHelper()
	answer, err := get(laptop, adminURL+"/api/v1/connections?outcome=failed&limit=1000")
	Expect(err).NotTo(HaveOccurred())
	var list api.ConnectionList
	Expect(json.Unmarshal([]byte(answer.Body), &list)).To(Succeed())
	for _, c := range list.Items {
		if len(c.Attempts) == 0 {
			continue
		}
		last := c.Attempts[len(c.Attempts)-1]
		if last.Result == "connected" && last.DurationMs >= 200 && c.BytesToClient == 0 { // a Pod's first bytes are its name
			n++
		}
	}
	return n
}

var _ = Describe("kubectl usher connect --via=portforward", func() {
	var (
		c      *cluster
		k      *kubelet
		svc    *corev1.Service
		pods   []*kubernetesPod
		laptop *lab.Dialer // a client in the API server's namespace
	)
	BeforeEach(func() {
		c = newCluster()
		k = c.startKubelet()
		svc = c.service("web")
		pods = nil
		for n := 1; n <= 3; n++ {
			pods = append(pods, c.startPod("web", n, remote))
		}
		for _, p := range pods {
			c.awaitReady("web", p)
		}
		laptop = controlSpace.NewDialer(64)
	})
	all := func() []netip.AddrPort { return []netip.AddrPort{pods[0].addr, pods[1].addr, pods[2].addr} }
	// three makes three connections and returns their endpoints.
	three := func() (list []netip.AddrPort) {
		GinkgoHelper()
		for range 3 {
			name, err := ask(laptop, vip(svc))
			Expect(err).NotTo(HaveOccurred())
			list = append(list, name)
		}
		return list
	}

	It("lets a non-root user's command reach Services by name and port (kubectl usher exec)", func() {
		lab.UserNamespaces()
		for _, program := range []string{"bash", "setpriv"} {
			Expect(exec.LookPath(program)).Error().NotTo(HaveOccurred())
		}
		// The user can read all files that the command needs.
		dir := GinkgoT().TempDir()
		Expect(os.Chmod(dir, 0o755)).To(Succeed())
		program, kubeconfig := filepath.Join(dir, "kubectl-usher"), filepath.Join(dir, "kubeconfig")
		Expect(exec.Command("install", "-m", "755", kubectlUsherRace(), program).Run()).To(Succeed())
		Expect(exec.Command("install", "-m", "644", c.developer("get", "create"), kubeconfig).Run()).To(Succeed())
		script := fmt.Sprintf(`for i in 1 2 3; do exec 3<>/dev/tcp/web/%d; read -r name <&3; echo "$name"; exec 3>&-; done; echo "$WEB_SERVICE_HOST"`, svc.Spec.Ports[0].Port)
		// It has no --dial-timeouts: on a busy machine an attempt may take too long, so that the rotation skips a Pod.
		Eventually(func(g Gomega) {
			s := startIn(controlSpace.WithTun(0o666), asNobody(program, "exec", "--kubeconfig", kubeconfig, "-n", c.namespace, "--via=portforward", "--", "bash", "-euc", script))
			defer s.Kill()
			g.Eventually(s).WithTimeout(time.Minute).Should(gexec.Exit(0))
			said := strings.Fields(string(s.Out.Contents()))
			g.Expect(said).To(ConsistOf(pods[0].addr.String(), pods[1].addr.String(), pods[2].addr.String(), svc.Spec.ClusterIP))
			g.Expect(s.Err.Contents()).To(BeEmpty())
		}).WithTimeout(2 * time.Minute).Should(Succeed())
	})

	It("falls back from WebSocket to SPDY, for which the verb create is enough", func() {
		c.laptop(c.developer("create"), "--via=portforward", patiently)
		Expect(three()).To(ConsistOf(all()))
	})

	It("uses all Pods in rotation with permissions only for Services, Events and port-forward, and loses only the open streams of a Pod that is removed under load", func() {
		u := c.laptop(c.developer("get", "create"), "--via=portforward", "--trace=false", patiently)
		Expect(three()).To(ConsistOf(all()))
		Expect(k.forwarded.Load()).To(BeEquivalentTo(3))
		open, err := connect(laptop, vip(svc))
		Expect(err).NotTo(HaveOccurred())
		victim, others := pods[0], pods[1:]
		if open.server == victim.addr {
			victim, others = pods[1], []*kubernetesPod{pods[0], pods[2]}
		}
		l := startLoad(laptop, vip(svc), 50)
		l.more(100)
		broken := victim.kill()
		l.more(50) // the Pod is still listed
		victim.remove()
		l.more(100)
		failed, late := len(l.stop()), refusedLate(laptop)
		Expect(failed).To(BeNumerically("<=", broken+late), "%d were refused late: %s", late, l.failures)
		Expect(open.works()).To(Succeed(), "connections to other Pods continue")
		for _, p := range others {
			Expect(p.connections()).NotTo(BeZero())
		}
		AddReportEntry("connections", fmt.Sprintf("%d, of which %d were open to the Pod that went, and %d failed", l.count(), broken, len(l.failures)))
		Expect(u.Session).NotTo(gexec.Exit())
		Expect(string(u.Err.Contents())).NotTo(MatchRegexp("(?i)forbidden"))
	})

	It("tries the next Pod if one refuses, with the data that the client has sent", func() {
		u := c.laptop(c.developer("get", "create"), "--via=portforward", "--quarantine=1h", "--quarantine-max=1h", patiently)
		pods[0].stop()
		for range 3 {
			client, err := laptop.Dial("", vip(svc), 3*time.Second)
			Expect(err).NotTo(HaveOccurred())
			_, err = client.Write([]byte("question"))
			Expect(err).NotTo(HaveOccurred())
			name, err := readName(client)
			Expect(err).NotTo(HaveOccurred())
			Expect(name).To(BeElementOf(pods[1].addr, pods[2].addr))
			answer := make([]byte, len("question"))
			_, err = io.ReadFull(client, answer)
			Expect(err).NotTo(HaveOccurred())
			Expect(string(answer)).To(Equal("question"))
			client.Close()
		}
		Eventually(u.outputText).WithTimeout(soon).Should(ContainSubstring("web-1 (round robin): connection refused after"))
		Expect(strings.Count(u.outputText(), ": connection refused after")).To(Equal(1), "after that it is in quarantine")
	})

	It("carries 1 MiB in both directions and the Pod's FIN, reaches Pods that were replaced under the same names, and resets clients of a Pod that exits", func() {
		other := c.service("other", noSelector)
		c.write(c.slice("other", "a", endpoint(lab.Pod(1))))
		// Not patiently: after all Pods have failed, usher waits for the end of the time slot.
		u := c.laptop(c.developer("get", "create"), "--via=portforward")
		open, err := connect(laptop, vip(svc))
		Expect(err).NotTo(HaveOccurred())
		Expect(open.SetDeadline(time.Now().Add(30 * time.Second))).To(Succeed())
		question := strings.Repeat("0123456789abcdef", 1<<16)
		go func() { _, _ = io.Copy(open, strings.NewReader(question)) }()
		answer := make([]byte, len(question))
		_, err = io.ReadFull(open, answer)
		Expect(err).NotTo(HaveOccurred())
		Expect(string(answer) == question).To(BeTrue())
		Expect(open.Conn.(*net.TCPConn).CloseWrite()).To(Succeed())
		_, err = open.Read(make([]byte, 1))
		Expect(err).To(MatchError(io.EOF))
		Eventually(u.Out).Should(gbytes.Say(`closed after .* client-closed, %d bytes to `, len(question)))

		By("reporting an endpoint that is not a Pod")
		Eventually(failure(laptop, vip(other))).WithTimeout(soon).Should(HaveOccurred())
		Eventually(u.Out).Should(gbytes.Say("the EndpointSlice names no Pod for 10.244.0.11"))

		By("reporting UDP Services, which it does not support")
		c.service("web-udp", func(s *corev1.Service) {
			s.Spec.Selector = map[string]string{"app": "web"}
			s.Spec.Ports[0].Protocol = corev1.ProtocolUDP
		})
		Eventually(u.Err).WithTimeout(soon).Should(gbytes.Say("Service port is not served as configured.*only TCP is supported: port-forward supports only TCP.*ProtocolNotServed"))
		Eventually(func(g Gomega) {
			list, err := c.api.EventsV1().Events(c.namespace).List(context.Background(), metav1.ListOptions{})
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(list.Items).To(ContainElement(And(HaveField("Reason", "ProtocolNotServed"), HaveField("Regarding.Name", "web-udp"))))
		}).WithTimeout(soon).Should(Succeed())

		By("reaching replaced Pods, while clients keep trying")
		seen := map[netip.AddrPort]bool{}
		Eventually(func() []netip.AddrPort {
			for _, name := range three() {
				seen[name] = true
			}
			return slices.Collect(maps.Keys(seen))
		}).WithTimeout(soon).Should(ConsistOf(all()))
		k.replaced.Add(1)
		clear(seen)
		Eventually(func() []netip.AddrPort {
			if name, err := ask(laptop, vip(svc)); err == nil {
				seen[name] = true
			}
			return slices.Collect(maps.Keys(seen))
		}).WithTimeout(soon).Should(ConsistOf(all()))

		By("resetting the client if the Pod exits during a response")
		open, err = connect(laptop, vip(svc))
		Expect(err).NotTo(HaveOccurred())
		for _, p := range pods {
			p.kill()
		}
		Expect(open.SetDeadline(time.Now().Add(10 * time.Second))).To(Succeed())
		_, err = open.Read(make([]byte, 1))
		Expect(err).To(MatchError(syscall.ECONNRESET))
	})

	It("reports missing permissions", func() {
		u := c.laptop(c.developer(), "--via=portforward", patiently)
		Expect(ask(laptop, vip(svc))).Error().To(MatchError(syscall.ECONNRESET))
		Eventually(u.Err).Should(gbytes.Say("forbids port-forward; to allow it: kubectl create role usher-portforward --verb=get,create --resource=pods/portforward -n " + c.namespace))
		Eventually(u.Out).Should(gbytes.Say("port-forward is forbidden: requires get and create on pods/portforward in namespace " + c.namespace))
		Eventually(u.Out).Should(gbytes.Say("closed after "))
		Expect(string(u.Out.Contents())).NotTo(ContainSubstring("attempt 2"), "no other Pod is tried")
	})

	Describe("replaced by --via=auto", func() {
		It("connects through the API server if Pods do not answer", func() {
			c.laptop(c.developer("get", "create"), "--via=auto", patiently)
			Expect(three()).To(ConsistOf(all()))
			Expect(k.forwarded.Load()).To(BeEquivalentTo(3))
		})
		It("connects directly if Pods answer, without permission for port-forward", func() {
			c.connect("--via=auto", "--kubeconfig="+c.developer(), "--node-name=")
			for range 3 {
				Expect(ask(c.pod, vip(svc))).Error().NotTo(HaveOccurred())
			}
			Expect(k.forwarded.Load()).To(BeZero())
		})
	})
})
