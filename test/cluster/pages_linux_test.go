package cluster

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gbytes"
	"github.com/onsi/gomega/gexec"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/usherproxy/usher/test/cluster/control"
	"github.com/usherproxy/usher/test/documents"
	"github.com/usherproxy/usher/test/lab"
)

// nobody is a user without any privilege.
const nobody = 65534

// asNobody returns a command that runs as nobody.
func asNobody(program string, args ...string) *exec.Cmd {
	user := fmt.Sprint(nobody)
	return exec.Command("setpriv", append([]string{"--reuid=" + user, "--regid=" + user, "--clear-groups", program}, args...)...)
}

// reader is a user who runs the commands of a page in a folder with the examples and the programs. Commands with sudo
// run as root, all others as nobody.
type reader struct {
	page *documents.Page
	node *lab.Namespace
	home string
}

// newReader returns a reader on the node of c.
func (c *cluster) newReader(page string) *reader {
	GinkgoHelper()
	p, err := documents.ReadPage(control.Root(), page)
	Expect(err).NotTo(HaveOccurred())
	r := &reader{page: p, node: c.Node.WithTun(0o666), home: GinkgoT().TempDir()}
	Expect(os.CopyFS(filepath.Join(r.home, "examples"), os.DirFS(filepath.Join(control.Root(), "examples")))).To(Succeed())
	Expect(os.MkdirAll(filepath.Join(r.home, "bin"), 0o755)).To(Succeed())
	for name, program := range map[string]string{"usher": usherRace, "kubectl-usher": kubectlUsherRace(), "kubectl": binaries.Kubectl} {
		Expect(exec.Command("install", "-m", "755", program, filepath.Join(r.home, "bin", name)).Run()).To(Succeed())
	}
	Expect(os.Chmod(r.home, 0o755)).To(Succeed())
	Expect(exec.Command("chown", "-R", fmt.Sprintf("%d:%[1]d", nobody), r.home).Run()).To(Succeed())
	return r
}

// start starts a command of the page, with further lines for its standard input. The end of the spec ends it with all
// that it has started.
func (r *reader) start(command string, input ...string) *gexec.Session {
	GinkgoHelper()
	for _, line := range append([]string{command}, input...) {
		Expect(r.page.Use(line)).To(Succeed())
	}
	return r.startAs(command, input...)
}

func (r *reader) startAs(command string, input ...string) *gexec.Session {
	GinkgoHelper()
	command, root := strings.CutPrefix(command, "sudo ")
	if strings.HasPrefix(command, "for ") {
		command += "; wait"
	} else if !strings.ContainsAny(command, "|;$") {
		command = "exec " + command // signals reach the program
	}
	cmd := asNobody("bash", "-c", command)
	if root {
		cmd = exec.Command("bash", "-c", command)
	}
	cmd.Dir = r.home
	cmd.Env = append(os.Environ(), "HOME="+r.home, "PATH="+r.home+"/bin:"+os.Getenv("PATH"), "GORACE=atexit_sleep_ms=0")
	cmd.Stdin = strings.NewReader(strings.Join(append(input, ""), "\n"))
	s := startIn(r.node, cmd)
	DeferCleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) // the group may have ended
		Eventually(s).WithTimeout(time.Minute).Should(gexec.Exit())
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		Expect(string(s.Err.Contents())).NotTo(ContainSubstring("DATA RACE"))
	})
	return s
}

// startPage starts a command of the page as root, after replacements (see strings.NewReplacer).
func (r *reader) startPage(command string, replacements ...string) *gexec.Session {
	GinkgoHelper()
	Expect(r.page.Use(command)).To(Succeed())
	return r.startAs("sudo " + strings.NewReplacer(replacements...).Replace(command))
}

// run runs a command of the page, which must succeed, and returns its output.
func (r *reader) run(command string, input ...string) string {
	GinkgoHelper()
	return r.succeeds(r.start(command, input...))
}

func (r *reader) succeeds(s *gexec.Session) string {
	GinkgoHelper()
	Eventually(s).WithTimeout(time.Minute).Should(gexec.Exit(0))
	return string(s.Out.Contents())
}

// interrupt ends a program as Ctrl-C does.
func interrupt(s *gexec.Session) {
	GinkgoHelper()
	s.Interrupt()
	Eventually(s).WithTimeout(time.Minute).Should(gexec.Exit(0))
}

// eventually runs a command of the page until its output contains text.
func (r *reader) eventually(command, text string) {
	GinkgoHelper()
	Expect(r.page.Use(command)).To(Succeed())
	Eventually(func() string {
		s := r.startAs(command)
		Eventually(s).WithTimeout(time.Minute).Should(gexec.Exit())
		return string(s.Out.Contents())
	}).WithTimeout(soon).WithPolling(200*time.Millisecond).Should(ContainSubstring(text), command)
}

// servers starts the endpoints of the examples on this machine.
const servers = "for p in 8081 8082 8083; do python3 -m http.server $p --bind 127.0.0.1 & done"

// startServers starts the page's servers.
func (r *reader) startServers() {
	GinkgoHelper()
	Expect(r.page.Use(servers)).To(Succeed())
	r.serve()
}

// serve starts the servers for a page that does not have the command.
func (r *reader) serve() {
	GinkgoHelper()
	r.startAs(servers)
	for _, port := range []string{"8081", "8082", "8083"} {
		Eventually(func() string { return r.node.Output("ss", "-Hltn") }).WithTimeout(soon).Should(ContainSubstring("127.0.0.1:" + port))
	}
}

// listing is part of what a server of the examples responds.
const listing = "Directory listing for /"

// become gives the reader the kubeconfig of a user.
func (r *reader) become(who control.Identity) {
	GinkgoHelper()
	Expect(os.MkdirAll(filepath.Join(r.home, ".kube"), 0o755)).To(Succeed())
	Expect(exec.Command("install", "-m", "644", plane.Kubeconfig(who, plane.Server()), filepath.Join(r.home, ".kube/config")).Run()).To(Succeed())
}

// inDefault returns c with the namespace default, whose Services and Pods of these apps it deletes at the end.
func (c *cluster) inDefault(apps ...string) *cluster {
	GinkgoHelper()
	standard := *c
	standard.namespace = metav1.NamespaceDefault
	DeferCleanup(func() {
		for _, app := range apps {
			standard.deleteService(app)
			Expect(c.api.CoreV1().Pods(standard.namespace).DeleteCollection(context.Background(), metav1.DeleteOptions{GracePeriodSeconds: new(int64)},
				metav1.ListOptions{LabelSelector: "app=" + app})).To(Succeed())
		}
	})
	return &standard
}

// block returns the lines of a block of the page from the one that begins with first.
func (r *reader) block(first string) string {
	GinkgoHelper()
	block, err := r.page.Block(first)
	Expect(err).NotTo(HaveOccurred())
	return block
}

var columns = regexp.MustCompile(` +`)

// words returns text with single spaces.
func words(text string) string { return columns.ReplaceAllString(text, " ") }

// website starts a Pod on a Node with a web server, and its Service.
func (c *cluster) website(name string, n int, node string) *corev1.Service {
	GinkgoHelper()
	listener := c.Pods.Listen(netip.AddrPortFrom(lab.Pod(n), 8081).String())
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, "%s in %s\n", name, c.namespace)
	})}
	go func() { _ = server.Serve(listener) }() // until the spec closes it
	DeferCleanup(server.Close)
	svc := c.service(name, func(s *corev1.Service) { s.Spec.Ports[0].TargetPort = intstr.FromInt32(8081) })
	c.awaitReady(name, c.startPod(name, n, node))
	return svc
}

var _ = Describe("a reader can run all commands of", func() {
	BeforeEach(func() {
		for _, program := range []string{"bash", "setpriv", "curl", "dig", "python3"} {
			Expect(exec.LookPath(program)).Error().NotTo(HaveOccurred())
		}
	})

	It("docs/manifests.md", func() {
		c := newCluster()
		c.service("web")
		r := c.newReader("manifests.md")
		r.become(control.Admin)

		r.run("usher check examples/")
		Expect(r.run("usher check --diff examples/")).To(MatchRegexp(`(\d+) service ports: (\d+) added, 0 removed, 0 changed, 0 unchanged\.\n$`))
		r.startServers()
		u := r.start("sudo usher run --manifests examples/")
		Eventually(u.Out).WithTimeout(soon).Should(gbytes.Say(`default/web`))
		Expect(r.succeeds(r.startAs("curl -sS http://10.96.0.10/"))).To(ContainSubstring(listing))
		Expect(r.run("kubectl get services,endpointslices,nodes -A -o yaml | usher check --diff -")).To(ContainSubstring("+ " + c.namespace + "/web:main"))
		interrupt(u)

		u = r.start("usher run --manifests examples/ --portal=none --trace")
		Eventually(u.Out).WithTimeout(soon).Should(gbytes.Say(`default/web .* 127\.[0-9.]+:8080 `))
		address := regexp.MustCompile(`default/web .* (127\.[0-9.]+:8080) `).FindStringSubmatch(string(u.Out.Contents()))
		Expect(r.succeeds(r.startAs("curl -sS http://" + address[1] + "/"))).To(ContainSubstring(listing))
		Eventually(u.Out).WithTimeout(soon).Should(gbytes.Say("established with 127.0.0.1:808"))
		interrupt(u)

		By("comparing a change with the running instance")
		const web = `
kind: Service
apiVersion: v1
metadata: {name: web}
spec: {clusterIP: 10.96.0.10, type: NodePort, externalTrafficPolicy: %s, ports: [{name: http, port: 80, nodePort: 30080}]}
---
kind: Service
apiVersion: v1
metadata: {name: cart}
spec: {clusterIP: 10.96.0.20, ports: [{name: http, port: 80}, {name: https, port: 443}]}
---
kind: EndpointSlice
apiVersion: discovery.k8s.io/v1
metadata: {name: web-1, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints: [{addresses: [10.1.0.7], nodeName: worker-2}%s]
`
		before, file := filepath.Join(r.home, "before.yaml"), filepath.Join(r.home, "web.yaml")
		Expect(os.WriteFile(before, fmt.Appendf(nil, web, "Cluster", ", {addresses: [10.1.0.8], nodeName: worker-2}"), 0o644)).To(Succeed())
		Expect(os.WriteFile(file, fmt.Appendf(nil, web, "Local", ""), 0o644)).To(Succeed())
		u = r.startAs("sudo usher run --manifests before.yaml --portal=iptables")
		Eventually(u.Out).WithTimeout(soon).Should(gbytes.Say(`default/web`))
		host, err := os.Hostname() // the page's host is worker-1
		Expect(err).NotTo(HaveOccurred())
		shown := strings.Replace(r.block("Node worker-1, portal iptables, compared"), "worker-1", strings.ToLower(host), 1)
		Expect(words(r.run("usher check --diff web.yaml"))).To(Equal(words(shown)))
		Expect(r.page.Unused()).To(BeEmpty())
	})

	It("docs/running.md", func() {
		c := newCluster()
		c.service("web")
		r := c.newReader("running.md")
		r.serve()
		r.become(control.Admin)

		first := r.startPage("usher run --manifests examples/")
		port := regexp.MustCompile(`0\.0\.0\.0:\d+`)
		row := port.ReplaceAllString(words(r.block("default/web")), "PORT")
		Eventually(func() string { return port.ReplaceAllString(words(string(first.Out.Contents())), "PORT") }).WithTimeout(soon).Should(ContainSubstring(row))
		next := r.startPage("usher run --take-over …", " …", " --manifests examples/")
		Eventually(first).WithTimeout(time.Minute).Should(gexec.Exit(0))
		Expect(r.succeeds(r.startAs("curl -sS http://10.96.0.10/"))).To(ContainSubstring(listing))
		Eventually(next.Terminate()).WithTimeout(time.Minute).Should(gexec.Exit(0))
		rules := func() string {
			return strings.ToLower(r.node.Output("sh", "-c", "nft list ruleset; ip rule; ip -6 rule; ip link"))
		}
		Expect(rules()).To(ContainSubstring("usher"))
		r.succeeds(r.startPage("usher cleanup"))
		Expect(rules()).NotTo(ContainSubstring("usher"))

		u := r.startPage("usher run --kubeconfig /etc/kubernetes/usher.conf --node-name worker-1", "/etc/kubernetes/usher.conf", filepath.Join(r.home, ".kube/config"), "worker-1", here)
		Eventually(u.Out).WithTimeout(time.Minute).Should(gbytes.Say(c.namespace + "/web"))
		interrupt(u)
		Expect(r.page.Unused()).To(BeEmpty())
	})

	It("docs/kubernetes.md that prepare a cluster, except those of Helm", func() {
		c := newCluster()
		r := c.newReader("kubernetes.md")
		r.become(control.Admin)
		c.inDefault("web").service("web")
		daemons := func(name string) *appsv1.DaemonSet {
			GinkgoHelper()
			d, err := c.api.AppsV1().DaemonSets(metav1.NamespaceSystem).Get(context.Background(), name, metav1.GetOptions{})
			Expect(err).NotTo(HaveOccurred())
			return d
		}
		Expect(os.CopyFS(filepath.Join(r.home, "deploy"), os.DirFS(filepath.Join(control.Root(), "deploy")))).To(Succeed())
		labels := map[string]string{"k8s-app": "kube-proxy"}
		proxy := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: "kube-proxy", Namespace: metav1.NamespaceSystem}, Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "kube-proxy", Image: "kube-proxy"}}}},
		}}
		Expect(c.api.AppsV1().DaemonSets(metav1.NamespaceSystem).Create(context.Background(), proxy, metav1.CreateOptions{})).Error().NotTo(HaveOccurred())
		DeferCleanup(func() {
			// The ServiceAccount and the role are those of all specs: see prepareCluster.
			c.Node.Output(filepath.Join(r.home, "bin/kubectl"), "--kubeconfig", filepath.Join(r.home, ".kube/config"), "-n", metav1.NamespaceSystem, "delete", "--ignore-not-found",
				"daemonset/kube-proxy", "daemonset/usher", "configmap/usher-api-server")
		})

		By("preparing a migration node by node")
		lines := strings.SplitAfterN(r.block("kubectl -n kube-system patch daemonset kube-proxy"), "\n", 4)
		Expect(r.page.Use(strings.TrimSpace(lines[0]))).To(Succeed())
		r.succeeds(r.startAs(strings.Join(lines[:3], "")))
		terms := daemons("kube-proxy").Spec.Template.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
		Expect(terms).To(Equal([]corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "kube-proxy", Operator: corev1.NodeSelectorOpNotIn, Values: []string{"no"}}}}}))

		By("deploying on all nodes at once")
		r.run(`kubectl -n kube-system patch daemonset kube-proxy --type=strategic -p '{"spec":{"template":{"spec":{"nodeSelector":{"kube-proxy":"disabled"}}}}}'`)
		Expect(daemons("kube-proxy").Spec.Template.Spec.NodeSelector).To(Equal(map[string]string{"kube-proxy": "disabled"}))
		r.run("kubectl -n kube-system create configmap usher-api-server --from-literal=KUBERNETES_SERVICE_HOST=192.0.2.10 --from-literal=KUBERNETES_SERVICE_PORT=6443")
		r.run("kubectl apply -k deploy/kustomize")
		Expect(daemons("usher").Spec.Template.Spec.Containers[0].Args).To(Equal(daemonSet().Spec.Template.Spec.Containers[0].Args))

		By("rolling back on all nodes at once")
		r.run(`kubectl -n kube-system patch daemonset kube-proxy --type=json -p '[{"op":"remove","path":"/spec/template/spec/nodeSelector/kube-proxy"}]'`)
		Expect(daemons("kube-proxy").Spec.Template.Spec.NodeSelector).To(BeEmpty())

		By("running alongside kube-proxy")
		r.run("kubectl label service web service.kubernetes.io/service-proxy-name=usher")
		Expect(r.page.Unused()).To(HaveEach(Or( // others are steps of a migration: see moving_linux_test.go
			HavePrefix("helm "), HavePrefix("kubectl label node NODE "), HavePrefix("kubectl debug node/NODE "), HavePrefix("kubectl -n kube-system rollout status "), HavePrefix("curl "))))
	})

	It("docs/laptop.md", func() {
		lab.UserNamespaces()
		c := newCluster()
		r := c.newReader("laptop.md")
		r.startServers()

		By("running commands on Services in files")
		shell := []string{"curl http://web/", "echo $WEB_SERVICE_HOST", "exit"}
		Expect(r.run("bin/kubectl-usher exec --manifests examples/web.yaml -- bash", shell...)).To(And(ContainSubstring(listing), HaveSuffix("\n10.96.0.10\n")))
		Expect(r.run(`eval "$(kubectl usher env --manifests examples/)"; echo $WEB_SERVICE_HOST`)).To(Equal("10.96.0.10\n"))
		u := r.startPage("usher run --manifests examples/web.yaml --portal=none")
		table := words(r.block("SERVICE"))
		Eventually(func() string { return words(string(u.Out.Contents())) }).WithTimeout(soon).Should(Equal(table))
		interrupt(u)
		u = r.start("sudo bin/kubectl-usher connect --manifests examples/ --dns 127.0.0.153")
		r.eventually("dig +short @127.0.0.153 web.default.svc.cluster.local", "10.96.0.10\n")
		r.eventually("dig +short @127.0.0.153 SRV _http._tcp.web.default.svc.cluster.local", "0 100 80 web.default.svc.cluster.local.\n")
		r.eventually("dig +short @127.0.0.153 -x 10.96.0.10", "web.default.svc.cluster.local.\n")
		interrupt(u)

		By("running commands on the Services of a cluster, with the page's role")
		c.startKubelet()
		shop := *c
		shop.namespace = "shop"
		shop.createNamespace()
		shop.website("cart", 1, remote)
		web := c.inDefault("web").website("web", 2, remote)
		admin := plane.Kubeconfig(control.Admin, plane.Server())
		role := filepath.Join(r.home, "role.yaml")
		Expect(os.WriteFile(role, []byte(r.block("apiVersion: rbac.authorization.k8s.io/v1")), 0o644)).To(Succeed())
		c.Node.Output(filepath.Join(r.home, "bin/kubectl"), "--kubeconfig", admin, "apply", "-f", role)
		binding := &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "usher-laptop"}, Subjects: []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: "laptop"}},
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "usher-laptop"}}
		Expect(c.api.RbacV1().ClusterRoleBindings().Create(context.Background(), binding, metav1.CreateOptions{})).Error().NotTo(HaveOccurred())
		DeferCleanup(func() {
			Expect(c.api.RbacV1().ClusterRoleBindings().Delete(context.Background(), binding.Name, metav1.DeleteOptions{})).To(Succeed())
			Expect(c.api.RbacV1().ClusterRoles().Delete(context.Background(), binding.RoleRef.Name, metav1.DeleteOptions{})).To(Succeed())
		})
		config, err := clientcmd.LoadFromFile(plane.Kubeconfig(control.Identity{User: "laptop"}, plane.Server()))
		Expect(err).NotTo(HaveOccurred())
		for _, name := range []string{"staging", "kind-dev"} {
			config.Contexts[name] = config.Contexts[config.CurrentContext]
		}
		Expect(clientcmd.WriteToFile(*config, filepath.Join(r.home, ".kube/config"))).To(Succeed())
		Expect(exec.Command("chown", "-R", fmt.Sprint(nobody), filepath.Join(r.home, ".kube")).Run()).To(Succeed())

		Expect(r.run("bin/kubectl-usher exec -- bash", "curl -k https://kubernetes.default/healthz")).To(Equal("ok"))
		Expect(r.run("bin/kubectl-usher exec --context staging -n shop -- bash", "curl http://cart/")).To(Equal("cart in shop\n"))
		u = r.start("kubectl usher connect --context staging")
		r.eventually("curl -x 127.0.0.1:1080 http://web.default/", "web in default\n")
		r.eventually("curl -x socks5h://127.0.0.1:1080 http://web.default/", "web in default\n")
		interrupt(u)
		u = r.startAs("env HTTPS_PROXY=http://127.0.0.1:1080 kubectl usher connect --context staging") // as proxy-env sets it
		Eventually(u.Out).WithTimeout(soon).Should(gbytes.Say(`default/web`))
		interrupt(u)
		u = r.start("sudo kubectl usher connect --kubeconfig ~/.kube/config --portal=auto")
		Eventually(u.Out).WithTimeout(soon).Should(gbytes.Say(`default/web`))
		Expect(r.succeeds(r.startAs("curl -sS http://" + web.Spec.ClusterIP + "/"))).To(Equal("web in default\n"))
		interrupt(u)
		r.run("kubectl usher env --context kind-dev -n shop -o dotenv > .env")
		Expect(os.ReadFile(filepath.Join(r.home, ".env"))).To(ContainSubstring("CART_SERVICE_PORT=80"))
		Expect(r.run("kubectl usher env web shop/cart --kubeconfig ~/.kube/config -o json")).To(And(ContainSubstring(`"WEB_SERVICE_PORT": "80"`), ContainSubstring(`"CART_SERVICE_PORT": "80"`)))

		By("acting as a node of the cluster")
		dump := c.Node.Output(filepath.Join(r.home, "bin/kubectl"), "--kubeconfig", admin, "get", "services,endpointslices,nodes", "-A", "-o", "yaml")
		Expect(os.WriteFile(filepath.Join(r.home, "all.yaml"), []byte(dump), 0o644)).To(Succeed())
		for _, command := range []string{
			"usher run --manifests all.yaml --portal=none --node-name worker-1",
			"usher run --manifests all.yaml --portal=none --node-labels topology.kubernetes.io/zone=a,topology.kubernetes.io/region=eu",
		} {
			u = r.start(command)
			Eventually(u.Out).WithTimeout(time.Minute).Should(gbytes.Say(`shop/cart`)) // with the Services of earlier specs
			interrupt(u)
		}
		Expect(r.run("usher check --diff all.yaml --node-name worker-1")).To(MatchRegexp(`(?m)^\+ shop/cart:main`))
		Expect(r.page.Unused()).To(BeEmpty())
	})

	It("docs/kubectl.md, except those that install", func() {
		lab.UserNamespaces()
		c := newCluster()
		c.usherPods(map[string]*lab.Dialer{here: c.node})
		shop := *c
		shop.namespace = "of-kubectl" // the page's shop; a namespace cannot be created again at once
		shop.createNamespace()
		web := shop.website("web", 1, here)
		c.usher()
		r := c.newReader("kubectl.md")
		r.become(control.Admin)
		as := func(command string) string {
			GinkgoHelper()
			Expect(r.page.Use(command)).To(Succeed())
			return strings.NewReplacer("-n shop", "-n "+shop.namespace, "NAME", "reader", "worker-1", here).Replace(command)
		}
		for _, command := range []string{
			"kubectl -n kube-system create role usher-list --verb=list --resource=pods",
			"kubectl -n kube-system create role usher-ask --verb=get,create --resource=pods/portforward",
			"kubectl -n kube-system create rolebinding usher-list --role=usher-list --user=NAME",
			"kubectl -n kube-system create rolebinding usher-ask --role=usher-ask --user=NAME",
		} {
			r.succeeds(r.startAs(as(command)))
		}
		DeferCleanup(func() {
			for _, name := range []string{"usher-list", "usher-ask"} {
				Expect(c.api.RbacV1().RoleBindings(roleNamespace).Delete(context.Background(), name, metav1.DeleteOptions{})).To(Succeed())
				Expect(c.api.RbacV1().Roles(roleNamespace).Delete(context.Background(), name, metav1.DeleteOptions{})).To(Succeed())
			}
		})
		exec := r.startAs(strings.Replace(as("kubectl usher exec -n shop -- npm run dev"), "npm run dev", "curl -sS http://web/", 1))
		Expect(r.succeeds(exec)).To(Equal("web in " + shop.namespace + "\n"))
		connecting := r.start("kubectl usher connect")
		Expect(r.succeeds(r.startAs("curl -sS --retry 20 --retry-connrefused --retry-delay 1 -x 127.0.0.1:1080 http://web." + shop.namespace + "/"))).To(Equal("web in " + shop.namespace + "\n"))
		interrupt(connecting)

		r.become(control.Identity{User: "reader"})
		Expect(r.run("kubectl usher get services -A")).To(MatchRegexp(`(?m)^%s +web +ok `, shop.namespace))
		Expect(r.succeeds(r.startAs(as("kubectl usher get endpoints web -n shop")))).To(MatchRegexp(`(?m)^web .*:8081 +web-1 +ready `))
		tracing := r.startAs(as("kubectl usher trace web -n shop"))
		Eventually(func() string {
			Expect(r.succeeds(r.startAs("curl -sS http://" + web.Spec.ClusterIP + "/"))).To(Equal("web in " + shop.namespace + "\n"))
			return string(tracing.Out.Contents())
		}).WithTimeout(30 * time.Second).Should(ContainSubstring(" established with "))
		diagnosing := r.startAs(as("kubectl usher diagnose web -n shop"))
		Eventually(diagnosing).WithTimeout(time.Minute).Should(gexec.Exit(0), "there is nothing to find")
		showing := r.start("kubectl usher dashboard")
		Eventually(showing.Out).WithTimeout(soon).Should(gbytes.Say(`Open http://\S+/ in a browser: 1 node\.`))
		top := r.startAs("env TERM=xterm timeout 60 script -qec 'stty rows 24 cols 80; " + as("kubectl usher top --node worker-1") + "' /dev/null")
		Eventually(top.Out).WithTimeout(time.Minute).Should(gbytes.Say("web"))
		Expect(r.page.Unused()).To(ConsistOf( // specs of the packages and of krew's manifest run these
			"sudo install kubectl-usher /usr/local/bin/", HavePrefix("sudo ln -s kubectl-usher "), HavePrefix("kubectl krew install "), HavePrefix("kubectl usher ──▶ ")))
	})

	It("docs/services.md", func() {
		c := newCluster()
		standard := c.inDefault("web", "db")
		web := standard.service("web")
		standard.service("db")
		var pods []*kubernetesPod
		for n := 1; n <= 2; n++ {
			pods = append(pods, standard.startPod("web", n, here))
			standard.awaitReady("web", pods[n-1])
		}
		c.usherPods(map[string]*lab.Dialer{here: c.node})
		c.usher()
		r := c.newReader("services.md")
		r.become(control.Admin)
		counts := standard.whom(web)
		Eventually(counts).WithTimeout(soon).Should(HaveLen(2))
		r.run("kubectl annotate service web usher.io/weight=web-1=0")
		Eventually(counts).WithTimeout(soon).Should(Equal(map[netip.AddrPort]int{pods[1].addr: 12}))
		r.run("kubectl usher get connections web --endpoint web-1")
		r.run("kubectl annotate service web usher.io/weight-")
		Eventually(counts).WithTimeout(soon).Should(HaveLen(2))
		r.run("kubectl annotate service web usher.io/topology-keys='kubernetes.io/hostname,topology.kubernetes.io/zone,*'")
		r.run("kubectl annotate service web usher.io/client-address=node")
		r.run(`kubectl patch service db -p '{"spec":{"sessionAffinity":"ClientIP"}}'`)
		Eventually(func() string { return r.succeeds(r.startAs("usher get services db -o json")) }).WithTimeout(soon).Should(ContainSubstring(`"affinitySeconds": 10800`))
		Eventually(func() string { return r.succeeds(r.startAs("usher explain web --client 10.244.0.50")) }).WithTimeout(soon).Should(ContainSubstring("node's address"))
		Expect(r.page.Unused()).To(BeEmpty())
	})

	It("docs/troubleshooting.md and docs/observing.md", func() {
		Expect(exec.LookPath("jq")).Error().NotTo(HaveOccurred())
		c := newCluster()
		standard := c.inDefault("web")
		web := standard.website("web", 1, here)
		log := filepath.Join(GinkgoT().TempDir(), "access.log")
		c.usher("--access-log=" + log)
		r := c.newReader("troubleshooting.md")
		for range 50 {
			Expect(get(c.pod, "http://"+web.Spec.ClusterIP+"/")).Error().NotTo(HaveOccurred())
		}
		for _, command := range []string{"usher diagnose", "usher diagnose web", "usher diagnose web --client 10.1.2.3"} {
			s := r.start(command)
			Eventually(s).WithTimeout(time.Minute).Should(gexec.Exit())
			Expect(s.ExitCode()).To(Or(Equal(0), Equal(1)), "with or without findings")
		}
		Expect(r.run("usher get services -A -o wide")).To(MatchRegexp(`(?m)^default +web +ok `))
		Expect(r.run("usher explain web --client 10.1.2.3")).To(ContainSubstring("10.244.0.11:8081"))
		r.run("usher get connections web --slower-than 200ms --sort first-byte -o wide")
		Expect(r.run("usher get connection 42")).To(ContainSubstring("default/web"))
		Expect(r.run("usher get endpoints web")).To(MatchRegexp(`(?m)^web .* ready `))
		r.run("usher get connections web --outcome failed,retried,no-response --last 1h -o wide")
		Expect(os.Chmod(filepath.Dir(log), 0o755)).To(Succeed())
		Expect(os.Chmod(log, 0o644)).To(Succeed())
		for command, shows := range map[string]string{
			`jq -r '.attempts[]? | select(.error) | "\(.endpoint) \(.error)"' FILE | sort | uniq -c | sort -rn`:   `^$`,
			`jq -r 'select(.service == "default/web") | "\(.endpoint) \(.end)"' FILE | sort | uniq -c | sort -rn`: `(?m)^ +\d+ 10\.244\.0\.11:8081 \S+$`,
			`jq -c 'select(.connectMs > 200) | {time, client, connectMs, attempts}' FILE`:                         `^(\{.*\}\n)*$`,
		} {
			Expect(r.page.Use(command)).To(Succeed())
			Expect(r.succeeds(r.startAs(strings.Replace(command, "FILE", log, 1)))).To(MatchRegexp(shows), command)
		}
		Expect(r.page.Unused()).To(ConsistOf(HavePrefix("kubectl -n kube-system exec POD -- "), HavePrefix("kubectl -n kube-system logs POD ")), "those need a container runtime")

		page, err := documents.ReadPage(control.Root(), "observing.md")
		Expect(err).NotTo(HaveOccurred())
		r.page = page
		Expect(r.run("curl -s localhost:10249/api/v1/services/default/web")).To(ContainSubstring(`"state"`))
		Expect(r.run("curl -s 'localhost:10249/api/v1/explain?service=web&client=192.0.2.2'")).To(ContainSubstring("10.244.0.11:8081"))
		Expect(r.run("curl -s 'localhost:10249/api/v1/connections?outcome=failed,slow&last=1h&sort=first-byte'")).To(ContainSubstring(`"items"`))
		events := r.start("curl -sN 'localhost:10249/api/v1/events?service=default/web&outcome=retry,failed'")
		Consistently(events).WithTimeout(time.Second).ShouldNot(gexec.Exit(), "it follows")
		Expect(r.page.Unused()).To(BeEmpty())
	})
})
