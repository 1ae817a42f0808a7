package test

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gbytes"
	"github.com/onsi/gomega/gexec"

	"github.com/usherproxy/usher/test/lab"
)

var _ = Describe("manifests", func() {
	var (
		l      *lab.Lab
		pod    *lab.Dialer
		dir    string
		web    service
		first  *backend
		second *backend
	)
	BeforeEach(func() {
		l = lab.New()
		pod = l.Pods.NewDialer(4)
		dir = manifestsDir()
		first, second = startBackend(l.Pods, lab.Pod(1), 8080), startBackend(l.Pods, lab.Pod(2), 8080)
		web = service{name: "web", clusterIP: clusterIP, port: 80, endpoints: []netip.AddrPort{first.addr}}
		web.write(dir)
	})
	answers := func(vip string) func() (netip.AddrPort, error) {
		return func() (netip.AddrPort, error) { return ask(pod, vip) }
	}

	It("are served after they change, and no longer after they are removed", func() {
		u := startUsher(l.Node, dir, "--portal=address", "--portal-check-interval=200ms")
		Expect(ask(pod, web.vip())).To(Equal(first.addr))

		web.endpoints = []netip.AddrPort{second.addr}
		web.write(dir)
		Eventually(answers(web.vip())).WithTimeout(time.Minute).Should(Equal(second.addr))

		other := service{name: "other", clusterIP: "10.96.0.11", port: 8000, endpoints: web.endpoints}
		other.write(dir)
		Eventually(answers(other.vip())).WithTimeout(time.Minute).Should(Equal(second.addr))

		Expect(os.Remove(filepath.Join(dir, "other.yaml"))).To(Succeed())
		Eventually(func() error {
			c, err := pod.Dial("", other.vip(), 200*time.Millisecond)
			if err == nil {
				c.Close()
			}
			return err
		}).WithTimeout(time.Minute).Should(HaveOccurred())
		// A VIP stays local until its last connection has ended.
		Eventually(func() string { return lab.State(l.Node) }).WithTimeout(time.Minute).ShouldNot(ContainSubstring("10.96.0.11"))
		Expect(ask(pod, web.vip())).To(Equal(second.addr))
		u.stop()
	})

	DescribeTable("with ServiceCIDRs make usher refuse clients of unused addresses until the ranges change",
		func(mode ...string) {
			forward(l.Node)
			six := service{name: "six", clusterIP: "fd00:10:96::10", port: 80, endpoints: []netip.AddrPort{startBackend(l.Pods, lab.Pod6(1), 8080).addr}}
			six.write(dir)
			cidrs := filepath.Join(dir, "cidrs.yaml")
			become := func(all string) {
				writeFile(cidrs+".new", "apiVersion: networking.k8s.io/v1\nkind: ServiceCIDR\nmetadata: {name: kubernetes}\nspec: {cidrs: ["+all+"]}\n")
				Expect(os.Rename(cidrs+".new", cidrs)).To(Succeed())
			}
			before := lab.State(l.Node)
			become("10.97.0.0/16, 'fd00:10:97::/112'")
			u := startUsher(l.Node, dir, mode...)
			node := l.Node.NewDialer(1)
			fails := func(vip string) func() time.Duration {
				return func() time.Duration {
					for _, from := range []*lab.Dialer{node, pod} {
						began := time.Now()
						_, err := from.Dial("", vip, 4*time.Second)
						Expect(err).To(HaveOccurred())
						// A process on the node may get the rejection only with its second SYN.
						if took := time.Since(began); took > 3*time.Second {
							return took
						}
					}
					return 0
				}
			}
			for _, vip := range []string{"10.97.3.3:80", "[fd00:10:97::33]:80"} {
				Eventually(fails(vip)).WithTimeout(time.Minute).Should(BeZero(), vip)
			}
			Expect(fails("10.96.3.3:80")()).NotTo(BeZero(), "outside the ranges")
			become("10.96.0.0/16, 'fd00:10:96::/112'")
			for _, vip := range []string{"10.96.3.3:80", "[fd00:10:96::33]:80"} {
				Eventually(fails(vip)).WithTimeout(time.Minute).Should(BeZero(), vip)
			}
			Expect(fails("10.97.3.3:80")()).NotTo(BeZero(), "no longer in the ranges")
			Expect(ask(pod, web.vip())).To(Equal(first.addr))
			Expect(ask(node, six.vip())).To(Equal(six.endpoints[0]))

			u.stop()
			Eventually(launch(l.Node, exec.Command(usherBinary, "cleanup"), "")).WithTimeout(time.Minute).Should(gexec.Exit(0))
			Expect(lab.State(l.Node)).To(Equal(before))
		},
		Entry("iptables", "--portal=iptables"),
		Entry("nftables", "--portal=nftables"),
		Entry("address", "--portal=address"),
	)

	It("passed to 'usher check --diff' change nothing, and their differences to served Services are printed", func() {
		u := startUsher(l.Node, dir, "--portal=address", "--scheduler=p2c", "--max-connection-age=1h")
		planned := manifestsDir()
		web.endpoints = []netip.AddrPort{second.addr}
		web.metadata = `, annotations: {usher.io/max-connection-age: 2h, usher.io/weight: "*=3"}`
		web.write(planned)
		out, errs, code := askUsher(l.Node, "check", "--diff", planned)
		Expect(code).To(BeZero(), errs)
		Expect(out).To(ContainSubstring("compared with usher at 127.0.0.1:10249"))
		Expect(out).To(ContainSubstring("~ default/web"))
		Expect(out).To(MatchRegexp(`(?m)^  -  %s +for all clients$`, regexp.QuoteMeta(first.addr.String())))
		Expect(out).To(MatchRegexp(`(?m)^  \+  %s +for all clients, weight 3$`, regexp.QuoteMeta(second.addr.String())))
		Expect(out).To(MatchRegexp(`(?m)^  ~  max-connection-age +2h\n +was: 1h$`))
		Expect(out).NotTo(ContainSubstring("scheduler"), "the default is the running instance's")
		Expect(out).To(HaveSuffix("1 service port: 0 added, 0 removed, 1 changed, 0 unchanged.\n"))
		Expect(ask(pod, web.vip())).To(Equal(first.addr), "unchanged")

		out, _, code = askUsher(l.Node, "check", "--diff", dir)
		Expect(code).To(BeZero())
		Expect(out).To(HaveSuffix("1 service port: 0 added, 0 removed, 0 changed, 1 unchanged.\n"))

		web.port = 70000
		web.write(planned)
		out, errs, code = askUsher(l.Node, "check", "--diff", planned)
		Expect(code).To(Equal(1))
		Expect(out).To(HaveSuffix("1 service port: 0 added, 0 removed, 0 changed, 1 unchanged.\n"), "an invalid Service stays unchanged")
		Expect(errs).To(ContainSubstring("warning: the comparison covers only objects that could be read and are valid"))
		other := service{name: "other", clusterIP: "10.96.0.11", port: 8000, endpoints: web.endpoints}
		other.write(planned)
		writeFile(filepath.Join(planned, "web.yaml"), "kind: [\n---\nkind: ConfigMap\n")
		out, errs, code = askUsher(l.Node, "check", "--diff", planned)
		Expect([]any{out, code}).To(Equal([]any{"", 1}))
		Expect(errs).To(ContainSubstring("web.yaml, document 1, line 2: did not find"))
		Expect(errs).To(HaveSuffix("cannot compare: failed to read " + filepath.Join(planned, "web.yaml") + "\n"))
		Expect(os.Rename(filepath.Join(planned, "web.yaml"), filepath.Join(planned, "web.txt"))).To(Succeed())
		out, _, _ = askUsher(l.Node, "check", "--diff", planned)
		Expect(out).To(ContainSubstring("1 added, 1 removed"))
		text, err := os.ReadFile(filepath.Join(planned, "other.yaml"))
		Expect(err).NotTo(HaveOccurred())
		writeFile(filepath.Join(planned, "other.yaml"), string(text)+"---\nkind: [\n")
		out, _, _ = askUsher(l.Node, "check", "--diff", planned)
		Expect(out).To(ContainSubstring("1 added, 0 removed"), "an unreadable document may be any Service")
		out, errs, code = askUsher(l.Node, "check", "--diff", "/nonexistent")
		Expect([]any{out, code}).To(Equal([]any{"", 1}))
		Expect(errs).To(HaveSuffix("cannot compare: failed to read /nonexistent\n"))

		u.stop()
		out, errs, code = askUsher(l.Node, "check", "--diff", dir, "-o", "json")
		Expect(code).To(BeZero(), errs)
		Expect(out).To(ContainSubstring(`"change": "add"`))
	})

	for _, mode := range []string{"iptables", "nftables", "address"} {
		It("get stable node ports, and follow topology keys, over IPv4 and IPv6, with the portal "+mode, func() {
			startBackend(l.Pods, lab.Pod6(1), 8080)
			startBackend(l.Pods, lab.Pod6(2), 8080)
			families := []struct {
				name, vip, node, listens string
				of                       func(int) netip.Addr
			}{
				{"IPv4", clusterIP, lab.NodeOut4, `0\.0\.0\.0`, lab.Pod},
				{"IPv6", "fd00:10:96::10", lab.NodeOut6, `\[::\]`, lab.Pod6},
			}
			text := "apiVersion: v1\nkind: Node\nmetadata: {name: near, labels: {example.com/rack: \"7\"}}\n"
			for _, f := range families {
				text += fmt.Sprintf(`---
apiVersion: v1
kind: Service
metadata: {name: web-%[1]s}
spec: {clusterIP: "%[2]s", type: NodePort, ports: [{port: 80}], topologyKeys: [example.com/rack]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-%[1]s-1, labels: {kubernetes.io/service-name: web-%[1]s}}
addressType: %[3]s
ports: [{name: "", port: 8080}]
endpoints:
- {addresses: ["%[4]s"], nodeName: far}
- {addresses: ["%[5]s"], nodeName: near}
`, strings.ToLower(f.name), f.vip, f.name, f.of(1), f.of(2))
			}
			dir := manifestsDir()
			writeFile(filepath.Join(dir, "all.yaml"), text)
			had := map[string]string{} // node ports by family
			for range 2 {
				u := startUsher(l.Node, dir, "--portal="+mode, "--node-labels=example.com/rack=7")
				checked, errs, code := askUsher(l.Node, "check", "--diff", dir, "-o", "json", "--node-labels=example.com/rack=7", "--admin-address=127.0.0.1:1")
				Expect(code).To(BeZero(), errs)
				for _, f := range families {
					near := netip.AddrPortFrom(f.of(2), 8080)
					out, errs, code := askUsher(l.Node, "get", "services", "web-"+strings.ToLower(f.name), "-o", "yaml")
					Expect(code).To(BeZero(), errs)
					Expect(out).To(ContainSubstring("key: example.com/rack"))
					port := regexp.MustCompile(`NodePort ` + f.listens + `:(3\d{4})"`).FindStringSubmatch(checked)
					Expect(port).NotTo(BeNil(), checked)
					if had[f.name] == "" {
						had[f.name] = port[1]
					}
					Expect(port[1]).To(Equal(had[f.name]))
					for range 4 {
						Expect(ask(pod, net.JoinHostPort(f.vip, "80"))).To(Equal(near))
						Expect(ask(pod, net.JoinHostPort(f.node, had[f.name]))).To(Equal(near))
					}
				}
				u.stop()
			}
		})
	}

	It("that are invalid do not affect served Services, and the log has file and document", func() {
		u := startUsher(l.Node, dir, "--portal=address")
		bad := web
		bad.port = 70000
		bad.write(dir)
		Eventually(u.Err).WithTimeout(time.Minute).Should(gbytes.Say(`web.yaml, document 1, Service default/web: spec.ports\[0\].port: Invalid value: 70000: must be between 1 and 65535, inclusive`))
		Expect(ask(pod, web.vip())).To(Equal(first.addr))

		writeFile(filepath.Join(dir, "rubbish.yaml"), "{{{")
		Eventually(u.Err).WithTimeout(time.Minute).Should(gbytes.Say("rubbish.yaml"))
		Expect(ask(pod, web.vip())).To(Equal(first.addr))

		web.endpoints = []netip.AddrPort{second.addr}
		web.write(dir)
		Eventually(answers(web.vip())).WithTimeout(time.Minute).Should(Equal(second.addr))
	})

	It("without a cluster IP get one, the same after each restart", func() {
		noIP := service{name: "auto", port: 80, endpoints: []netip.AddrPort{first.addr}}
		text := strings.Replace(noIP.yaml(), "  clusterIP: \"\"\n", "", 1)
		writeFile(filepath.Join(dir, "auto.yaml"), text)
		vip := func() string {
			u := startUsher(l.Node, dir, "--portal=none")
			defer u.stop()
			Eventually(u.Out).Should(gbytes.Say(`default/auto +main 80/TCP +10\.`))
			line := string(u.Out.Contents())
			return strings.Fields(line[strings.Index(line, "default/auto"):])[3]
		}
		once := vip()
		Expect(netip.MustParsePrefix("10.96.0.0/12").Contains(netip.MustParseAddrPort(once).Addr())).To(BeTrue())
		Expect(vip()).To(Equal(once))
	})

	It("are served on a loopback address with --portal=none", func() {
		web.endpoints = []netip.AddrPort{startBackend(l.Node, netip.MustParseAddr("127.0.0.1"), 8080).addr}
		web.spec = "  type: LoadBalancer\n  externalTrafficPolicy: Local\n  healthCheckNodePort: 32004\n"
		web.write(dir)
		before := lab.State(l.Node)
		u := startUsher(l.Node, dir, "--portal=none")
		listens := regexp.MustCompile(`127\.\d+\.\d+\.\d+:80 `)
		Eventually(u.Out).Should(gbytes.Say(listens.String()))
		at := strings.TrimSpace(string(listens.Find(u.Out.Contents())))
		Expect(ask(l.Node.NewDialer(1), at)).To(Equal(web.endpoints[0]))
		Expect(l.Node.NewDialer(1).Dial("", "127.0.0.1:32004", 10*time.Second)).Error().To(refused, "no load balancer needs a health check node port")
		Expect(lab.State(l.Node)).To(Equal(before))
	})

	It("with a port that cannot be served do not affect other ports", func() {
		taken := service{name: "taken", clusterIP: "10.96.0.12", port: 80, endpoints: []netip.AddrPort{first.addr}}
		l.Node.Output("ip", "route", "add", "local", "10.96.0.12/32", "dev", "lo")
		holder := l.Node.Listen("10.96.0.12:80")
		taken.write(dir)
		u := startUsher(l.Node, dir, "--portal=address", "--portal-check-interval=300ms")
		Expect(ask(pod, web.vip())).To(Equal(first.addr))
		Expect(string(u.Err.Contents())).To(MatchRegexp(`Service port is not served as configured.*address already in use.*default/taken`))

		By("retrying until the port can be served")
		holder.Close()
		Eventually(answers(taken.vip())).WithTimeout(time.Minute).Should(Equal(first.addr))
		Eventually(u.Err).Should(gbytes.Say("Problem with service port resolved"))
	})
})

var _ = Describe("a rejected manifest", func() {
	It("is reported by 'get services' and the status until it is corrected", func() {
		l := lab.New()
		first := startBackend(l.Pods, lab.Pod(1), 8080)
		dir := GinkgoT().TempDir()
		web := service{name: "web", clusterIP: "10.96.0.10", port: 80, endpoints: []netip.AddrPort{first.addr}}
		web.write(dir)
		wrong := filepath.Join(dir, "wrong.yaml")
		writeFile(wrong, service{name: "wrong", clusterIP: "nonsense", port: 80}.yaml())
		writeFile(filepath.Join(dir, "others.yaml"), "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings}\n---\napiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}\n")
		startUsher(l.Node, dir) // these specs ignore the other clients
		get := func() string { return l.Node.Output(usherBinary, "get", "services", "-A", "-o", "wide") }
		attention := func() string { return l.Node.Output("curl", "-s", "http://127.0.0.1:10249/api/v1/status") }
		Expect(get()).To(MatchRegexp(`default +wrong +rejected .*ManifestRejected: .*wrong.yaml, document 1: spec.clusterIP`))
		Eventually(attention).Should(ContainSubstring(`"attention":"1 Service needs attention: default/wrong"`))

		By("serving the last valid version of another manifest")
		web.port = 0
		writeFile(filepath.Join(dir, "web.yaml"), web.yaml())
		Eventually(get).WithTimeout(time.Minute).Should(MatchRegexp(`default +web +ok .*ManifestRejected: .*web.yaml, document 1: spec.ports`))

		web.port = 80
		writeFile(filepath.Join(dir, "web.yaml"), web.yaml())
		writeFile(wrong, service{name: "wrong", clusterIP: "10.96.0.11", port: 80, endpoints: []netip.AddrPort{first.addr}}.yaml())
		Eventually(attention).WithTimeout(30 * time.Second).Should(ContainSubstring(`"attention":"no problems"`))
		Expect(get()).NotTo(Or(ContainSubstring("rejected"), ContainSubstring("ManifestRejected")))
	})
})

var _ = Describe("usher check", func() {
	It("finds no errors in the examples", func() {
		out, err := exec.Command(usherBinary, "check", filepath.Join(root(), "examples")).CombinedOutput()
		Expect(err).NotTo(HaveOccurred(), string(out))
		Expect(string(out)).To(ContainSubstring("0 errors"))
	})

	It("reports all errors at once and fails", func() {
		dir := GinkgoT().TempDir()
		writeFile(filepath.Join(dir, "a.yaml"), service{name: "UPPER", clusterIP: "10.0.0.1", port: 80}.yaml())
		writeFile(filepath.Join(dir, "b.yaml"), service{name: "web", clusterIP: "nonsense", port: 0}.yaml())
		cmd := exec.Command(usherBinary, "check", dir)
		session, err := gexec.Start(cmd, GinkgoWriter, GinkgoWriter)
		Expect(err).NotTo(HaveOccurred())
		Eventually(session).WithTimeout(30 * time.Second).Should(gexec.Exit(1))
		said := string(session.Err.Contents())
		Expect(said).To(ContainSubstring("a.yaml, document 1, Service default/UPPER: metadata.name"))
		Expect(said).To(ContainSubstring("b.yaml, document 1, Service default/web: spec.ports[0].port"))
		Expect(said).To(ContainSubstring("nonsense"))
	})
})

var _ = Describe("usher demo --once", func() {
	for _, mode := range []string{"auto", "iptables", "nftables", "address"} {
		It("serves the cluster IP as root, without a default route, shows a retry, and leaves nothing behind, with --portal="+mode, func() {
			l := lab.New()
			l.Node.Output("ip", "route", "del", "default")
			before := lab.State(l.Node)
			u := launch(l.Node, exec.Command(usherBinary, "demo", "--once", "--portal="+mode), "")
			Eventually(u).WithTimeout(2 * time.Minute).Should(gexec.Exit(0))
			for _, line := range []string{
				`accepted .* → 10\.96\.0\.10:80`,
				`refusing-2 .*: connection refused after`,
				`attempt 2 → .*: connected in`,
				`blackhole-2 .*: no answer after`,
				`attempt 2 → .*: connected in`,
				`sticky-. \(affinity\): connected in`,
				`echo-1 .*: answered in`,
				`request refused after .*, as expected`,
				"All 12 requests had the expected outcome",
			} {
				Expect(u.Out).To(gbytes.Say(line))
			}
			Expect(lab.State(l.Node)).To(Equal(before))
		})
	}

	It("needs no root", func() {
		demo := exec.Command(usherBinary, "demo", "--once")
		if os.Geteuid() == 0 {
			demo = asNobody(usherForNobody(), "demo", "--once")
		}
		u := launch(nil, demo, "")
		Eventually(u).WithTimeout(2 * time.Minute).Should(gexec.Exit(0))
		Expect(u.Out).To(gbytes.Say(`accepted .* → 127\.\d+\.\d+\.\d+:`))
		Expect(u.Out).To(gbytes.Say(`All 11 requests had the expected outcome`))
	})
})
