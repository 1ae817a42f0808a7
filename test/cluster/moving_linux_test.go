package cluster

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gbytes"
	"github.com/onsi/gomega/gexec"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/usherproxy/usher/test/cluster/control"
	"github.com/usherproxy/usher/test/lab"
)

// move is a node that migrates from kube-proxy to usher, or back. Like the DaemonSet controller and the kubelet, the
// spec starts and ends processes.
type move struct {
	*cluster
	config, mode string
	svc          *corev1.Service
	flow         net.Conn // a UDP client that stays from the start
	page         string   // the part of docs/kubernetes.md that remains to be done
	lost         map[string][]string
}

// step starts a step of the page, which is identified by the command in it.
func (m *move) step(command string) {
	GinkgoHelper()
	_, rest, found := strings.Cut(m.page, command)
	Expect(found).To(BeTrue(), "docs/kubernetes.md has no step %q here", command)
	m.page = rest
	By(command)
}

// resolve sends a UDP query as resolvers do, with one retry.
func resolve(c net.Conn) (err error) {
	for range 2 {
		if _, err = c.Write([]byte("?")); err == nil {
			_ = c.SetReadDeadline(time.Now().Add(5 * time.Second))
			_, err = c.Read(make([]byte, 1))
		}
		if err == nil {
			return nil
		}
	}
	return fmt.Errorf("UDP from %s: %w", c.LocalAddr(), err)
}

// under runs do while 300 clients/s connect from Pods, the node and outside, and others use UDP. It records the lost
// connections and exchanges. A UDP exchange is lost if its retry gets no answer either.
func (m *move) under(what string, do func()) {
	GinkgoHelper()
	var six string
	for _, ip := range m.svc.Spec.ClusterIPs[1:] {
		six = at(ip, 80)
	}
	loads := []*load{
		startLoad(m.pod, vip(m.svc), 120),
		startLoad(m.pod, six, 60),
		startLoad(m.node, vip(m.svc), 60),
		startLoad(m.outside, at(lab.NodeOut4, m.svc.Spec.Ports[0].NodePort), 60),
	}
	loads = append(loads, startExchanges(30, func() error {
		c, err := m.pod.DialUDP("", vipOf(m.svc, 53))
		if err != nil {
			return err
		}
		defer c.Close()
		return resolve(c)
	}))
	var asking sync.Mutex // one query at a time: there is one flow
	loads = append(loads, startExchanges(30, func() error {
		if !asking.TryLock() {
			return nil
		}
		defer asking.Unlock()
		return resolve(m.flow)
	}))
	all := func() {
		want := map[*load]int{}
		for _, l := range loads {
			want[l] = l.count() + 60
		}
		for l, n := range want {
			Eventually(l.count).WithTimeout(30 * time.Second).Should(BeNumerically(">=", n))
		}
	}
	all()
	do()
	all()
	count := 0
	for _, l := range loads {
		m.lost[what] = append(m.lost[what], l.stop()...)
		count += l.count()
	}
	AddReportEntry(what, fmt.Sprintf("%d connections and exchanges, %d lost", count, len(m.lost[what])))
}

// startKubeProxy starts kube-proxy and waits until it has installed its rules.
func (m *move) startKubeProxy() *gexec.Session {
	GinkgoHelper()
	s := startIn(m.Node, exec.Command(binaries.KubeProxy, "--config="+m.config))
	DeferCleanup(func() { s.Kill().Wait(30 * time.Second) })
	Eventually(m.kubeProxysRules).WithTimeout(time.Minute).Should(And(ContainSubstring(m.svc.Spec.ClusterIPs[0]), ContainSubstring(m.svc.Spec.ClusterIPs[1])))
	return s
}

// kubeProxysRules returns rules that kube-proxy has on the node.
func (m *move) kubeProxysRules() string {
	if m.mode == "nftables" {
		return m.Node.Output("sh", "-c", "(nft list map ip kube-proxy service-ips; nft list map ip6 kube-proxy service-ips) 2>&1 || true")
	}
	return m.Node.Output("sh", "-c", "(iptables-save -t nat; ip6tables-save -t nat) | grep KUBE-SVC || true")
}

// endKubeProxy stops kube-proxy as a kubelet does.
func endKubeProxy(s *gexec.Session) {
	GinkgoHelper()
	s.Terminate()
	Eventually(s).WithTimeout(time.Minute).Should(gexec.Exit())
}

// startUsher starts usher with the arguments of deploy/kustomize-kubeadm and more.
func (m *move) startUsher(more ...string) *usher {
	GinkgoHelper()
	args := daemonSet().Spec.Template.Spec.Containers[0].Args
	Expect(args).To(ContainElements("--take-over", "--keeper"))
	for i := range args {
		args[i] = strings.ReplaceAll(args[i], "$(NODE_NAME)", here)
	}
	args = append(slices.Concat(args, more), "--config="+m.config, "--healthz-address=:"+healthzPort, "--admin-address=127.0.0.1:10249", "--kubeconfig="+leastRole(plane.Server()), "--log-format=text")
	u := &usher{cluster: m.cluster, Session: startIn(m.Node, exec.Command(usherReleased, args...))}
	DeferCleanup(func() {
		u.Terminate() // the keeper ends its usher process, too
		u.Wait(time.Minute)
		Expect(string(u.Err.Contents())).NotTo(ContainSubstring("panic:"))
	})
	return u.serving()
}

// ushersRules returns the rules that usher has on the node.
func (m *move) ushersRules() (rules []string) {
	for _, command := range []string{"iptables-save", "ip6tables-save", "nft list ruleset", "ip rule", "ip -6 rule"} {
		for line := range strings.Lines(m.Node.Output("sh", "-c", command+" 2>/dev/null")) {
			if strings.Contains(strings.ToLower(line), "usher") || strings.Contains(line, "192.0.0.117") {
				rules = append(rules, line)
			}
		}
	}
	return rules
}

// echo starts an echo server for datagrams.
func (m *move) echo(addr netip.AddrPort) {
	GinkgoHelper()
	lab.Echo(m.Pods.ListenUDP(addr.String()))
}

// connections opens long connections from all kinds of clients.
func (m *move) connections() (open []*connection) {
	GinkgoHelper()
	for _, from := range []struct {
		d   *lab.Dialer
		vip string
	}{{m.pod, vip(m.svc)}, {m.pod, at(m.svc.Spec.ClusterIPs[1], 80)}, {m.node, vip(m.svc)}, {m.outside, at(lab.NodeOut4, m.svc.Spec.Ports[0].NodePort)}} {
		c, err := connect(from.d, from.vip)
		Expect(err).NotTo(HaveOccurred())
		open = append(open, c)
	}
	return open
}

func expectAlive(open []*connection) {
	GinkgoHelper()
	for _, c := range open {
		Expect(c.works()).To(Succeed(), "%s to %s", c.LocalAddr(), c.RemoteAddr())
	}
}

var _ = Describe("a node that migrates from kube-proxy to usher and back, by the steps of docs/kubernetes.md,", func() {
	for _, mode := range []string{"iptables", "nftables"} {
		It("loses no connection and no datagram that is sent again, with kube-proxy in mode "+mode, func() {
			page, err := os.ReadFile(filepath.Join(control.Root(), "docs", "kubernetes.md"))
			Expect(err).NotTo(HaveOccurred())
			m := &move{cluster: newCluster(), mode: mode, page: string(page), lost: map[string][]string{}}
			updateNodeStatus(here, func(n *corev1.Node) {
				n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: lab.NodeOut4}, {Type: corev1.NodeInternalIP, Address: lab.NodeOut6}}
			})
			DeferCleanup(updateNodeStatus, here, func(n *corev1.Node) { n.Status.Addresses = nil })
			m.Node.Output("sysctl", "-qw", "net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1")
			// Clients and endpoints share a namespace here, so answers return through the node only if it masquerades.
			// Settings of the whole machine stay as they are.
			m.config = filepath.Join(GinkgoT().TempDir(), "config.conf")
			Expect(os.WriteFile(m.config, fmt.Appendf(nil, `apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: %s
hostnameOverride: %s
clientConnection: {kubeconfig: %s}
clusterCIDR: 10.244.0.0/16,fd00:244::/56
conntrack: {maxPerCore: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
iptables: {masqueradeAll: true}
nftables: {masqueradeAll: true}
`, mode, here, plane.Kubeconfig(control.Admin, plane.Server())), 0o600)).To(Succeed())
			both := corev1.IPFamilyPolicyRequireDualStack
			m.svc = m.service("web", nodePort, func(s *corev1.Service) {
				s.Spec.IPFamilyPolicy = &both
				s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: "dns", Port: 53, Protocol: corev1.ProtocolUDP, TargetPort: intstr.FromInt32(5353)})
			})
			for n := 1; n <= 3; n++ {
				m.echo(netip.AddrPortFrom(lab.Pod(n), 5353))
				m.awaitReady("web", m.startPod("web", n, here))
			}
			Eventually(func() int { return len(m.slices("web")) }).WithTimeout(soon).Should(Equal(6)) // of both families

			proxy := m.startKubeProxy()
			early := m.connections()
			m.flow, err = m.pod.DialUDP("", vipOf(m.svc, 53))
			Expect(err).NotTo(HaveOccurred())
			DeferCleanup(m.flow.Close)

			m.step("## Migrate node by node")
			var u *usher
			m.under("to usher", func() {
				m.step("kubectl label node NODE kube-proxy=no")
				endKubeProxy(proxy)
				m.step("kubectl label node NODE usher=yes")
				u = m.startUsher()
				m.step("kube-proxy --cleanup")
				m.Node.Output(binaries.KubeProxy, "--cleanup")
			})
			m.step("curl http://127.0.0.1:10249/proxyMode")
			Eventually(getting(m.node, adminURL+"/proxyMode")).WithTimeout(soon).Should(HaveField("Body", "userspace"))
			m.step("curl -k https://10.96.0.1/version")
			Expect(m.Node.Output("curl", "-sk", "https://10.96.0.1/version")).To(ContainSubstring("gitVersion"))
			Expect(m.kubeProxysRules()).NotTo(ContainSubstring(m.svc.Spec.ClusterIP))
			expectAlive(early)

			m.step("## Roll back")
			late := m.connections()
			m.under("and back", func() {
				m.step("removeRules=true")
				former := u
				u = m.startUsher("--remove-rules")
				expectAlive(late) // the former process serves them
				m.step("kubectl label node NODE kube-proxy-")
				proxy = m.startKubeProxy()
				m.step("kubectl label node NODE usher-")
				more := m.connections()
				u.Terminate()
				former.Terminate() // either Pod may be the one that is removed
				Eventually(func() string { return m.Node.Output(usherReleased, "get", "portals", "-A") }).WithTimeout(soon).ShouldNot(ContainSubstring("redirect"))
				expectAlive(more) // they have the drain timeout to finish
				expectAlive(late)
				for _, c := range slices.Concat(more, late) {
					c.Close()
				}
			})
			Eventually(u.Session).WithTimeout(time.Minute).Should(gexec.Exit(0))
			Expect(u.Err).To(gbytes.Say("Stopped"))
			Expect(m.ushersRules()).To(BeEmpty())
			Eventually(getting(m.node, adminURL+"/proxyMode")).WithTimeout(time.Minute).Should(HaveField("Body", mode)) // so kube-proxy has its ports, too
			m.under("with kube-proxy", func() {})
			expectAlive(early)

			Expect(m.lost).To(HaveEach(BeEmpty()))
		})
	}
})
