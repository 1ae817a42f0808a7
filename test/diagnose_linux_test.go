package test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gbytes"
	"github.com/onsi/gomega/gexec"

	"github.com/usherproxy/usher/test/lab"
)

// unbroken returns the output of usher diagnose without line breaks.
func unbroken(s *gexec.Session) string {
	return strings.Join(strings.Fields(string(s.Out.Contents())), " ")
}

var _ = Describe("usher diagnose", func() {
	var l *lab.Lab
	var dir string
	diagnose := func(code int, args ...string) *gexec.Session {
		GinkgoHelper()
		cmd := exec.Command(usherBinary, append([]string{"diagnose"}, args...)...)
		var s *gexec.Session
		l.Node.Do(func() (err error) {
			s, err = gexec.Start(cmd, GinkgoWriter, GinkgoWriter)
			return err
		})
		Eventually(s).WithTimeout(time.Minute).Should(gexec.Exit(code))
		return s
	}
	BeforeEach(func() {
		l = lab.New()
		dir = manifestsDir()
	})
	write := func(name string, number int, endpoints ...netip.AddrPort) service {
		s := service{name: name, clusterIP: netip.AddrFrom4([4]byte{10, 96, 0, byte(number)}).String(), port: 80, endpoints: endpoints}
		s.write(dir)
		return s
	}

	It("finds nothing on a healthy node, and lists its checks", func() {
		web := write("web", 10, startBackend(l.Pods, lab.Pod(1), 8080).addr)
		startConnect(l.Node, dir, "--portal=auto", "--dns=127.0.0.1:5353")
		_, err := ask(l.Pods.NewDialer(3), web.vip())
		Expect(err).NotTo(HaveOccurred())
		for _, args := range [][]string{nil, {"web", "--client", lab.Pod(3).String()}, {"--dns", "127.0.0.1:5353"}} {
			s := diagnose(0, args...)
			Expect(unbroken(s)).To(MatchRegexp("Nothing (else )?found. Checks of 1 Service: .*routes from this node to VIPs"))
		}
		Expect(unbroken(diagnose(1, "--dns", "127.0.0.1:5354"))).To(ContainSubstring("FAILING Service default/web 127.0.0.1:5354 has no answer for web.default.svc.cluster.local."))
		Expect(string(diagnose(1, "webb").Err.Contents())).To(ContainSubstring("no Service default/webb is served"))
		Expect(string(diagnose(2, "--client", "nobody").Err.Contents())).To(ContainSubstring(`--client: invalid value "nobody": must be an IP address`))
	})

	It("reports each problem with its evidence and the next step", func() {
		good := startBackend(l.Pods, lab.Pod(1), 8080).addr
		refusing, silent := netip.AddrPortFrom(lab.Pod(2), 8080), netip.AddrPortFrom(lab.Pod(3), 8080)
		l.Pods.Output("iptables", "-A", "INPUT", "-p", "tcp", "-d", silent.Addr().String(), "--dport", "8080", "-j", "DROP")
		mixed := write("mixed", 10, refusing, silent, good)
		write("empty", 11)
		misnamed := service{name: "misnamed", clusterIP: "10.96.0.12", port: 80, endpoints: []netip.AddrPort{good}}
		writeFile(filepath.Join(dir, "misnamed.yaml"), strings.ReplaceAll(misnamed.yaml(), "{name: main, port: 8080,", "{name: other, port: 8080,"))
		write("wrong", 13, good)
		writeFile(filepath.Join(dir, "wrong.yaml"), service{name: "wrong", clusterIP: "nonsense", port: 80}.yaml())
		closed := service{name: "closed", clusterIP: "10.96.0.14", port: 80, endpoints: []netip.AddrPort{good},
			spec: "  type: LoadBalancer\n  loadBalancerSourceRanges: [192.0.2.0/24]\n"}
		closed.write(dir)
		u := startUsher(l.Node, dir, "--load-balancer-ip-cidr=203.0.113.0/24")
		pod := l.Pods.NewDialer(5)
		for range 3 {
			_, err := ask(pod, mixed.vip())
			Expect(err).NotTo(HaveOccurred())
		}

		s := diagnose(1)
		for line := range strings.Lines(string(s.Out.Contents())) {
			Expect(len([]rune(strings.TrimRight(line, "\n")))).To(BeNumerically("<=", 80), line)
		}
		text := unbroken(s)
		Expect(text).To(MatchRegexp(`FAILING Service default/empty no endpoints for 10\.96\.0\.11:80/TCP: clients are refused evidence: usher knows 0 endpoints for this port impact: in this state since [-0-9]+ [:0-9]+ next step: .*service-name: empty`))
		Expect(text).To(MatchRegexp(`Service default/misnamed .*ports: "other": no port is named "main", so that port of Service default/misnamed has no endpoints.* next step: give the EndpointSlice's port the same name`))
		Expect(text).To(MatchRegexp(`FAILING Service default/wrong .*wrong\.yaml, document 1: spec\.clusterIP.* evidence: ManifestRejected: it is not served`))
		Expect(text).To(ContainSubstring(refusing.String() + " is in quarantine: connection refused"))
		Expect(text).To(ContainSubstring(silent.String() + " is in quarantine: no answer"))
		Expect(text).To(ContainSubstring("while another port refused at once: packets to that port are dropped"))
		Expect(text).To(ContainSubstring("is there a firewall, is the listen backlog full, is the machine down, or is there no route to it? nft list ruleset; ss -ltn; ip route get ADDRESS"))

		By("diagnosing one Service, and whether it admits a client")
		Expect(unbroken(diagnose(1, "mixed"))).NotTo(ContainSubstring("default/empty"))
		Expect(unbroken(diagnose(1, "mixed", "-o", "json"))).To(ContainSubstring(`test from this node: no answer within`))

		Expect(unbroken(diagnose(1, "closed", "--client", "198.51.100.9"))).To(MatchRegexp(`198\.51\.100\.9 would not be served at 203\.0\.113\.\d+:80 \(LoadBalancerIP\): .* is not in loadBalancerSourceRanges \(192\.0\.2\.0/24\): .* usher explain reports: drop`))
		Expect(unbroken(diagnose(0, "closed", "--client", "192.0.2.9"))).To(ContainSubstring("found. Checks of"))

		By("reporting another program's rules, and that usher does not run")
		l.Node.Output("iptables", "-t", "nat", "-I", "OUTPUT", "-d", "10.96.0.10/32", "-j", "ACCEPT")
		Expect(unbroken(diagnose(1, "mixed"))).To(ContainSubstring("another program has a rule for 10.96.0.10 that may take precedence"))
		u.stop()
		Expect(string(diagnose(1).Err.Contents())).To(ContainSubstring("usher run"))
	})

	It("reports how often an unstable endpoint went into quarantine and recovered", func() {
		web := write("web", 10, startBackend(l.Pods, lab.Pod(1), 8080).addr, startBackend(l.Pods, lab.Pod(2), 8080).addr)
		u, pod := startUsher(l.Node, dir, "--trace"), l.Pods.NewDialer(3)
		refused := []string{"INPUT", "-p", "tcp", "-d", lab.Pod(2).String(), "--dport", "8080", "-j", "REJECT", "--reject-with", "tcp-reset"}
		for range 3 {
			l.Pods.Output("iptables", append([]string{"-A"}, refused...)...)
			Eventually(func() *gbytes.Buffer {
				_, err := ask(pod, web.vip())
				Expect(err).NotTo(HaveOccurred())
				return u.Out
			}).WithTimeout(10 * time.Second).Should(gbytes.Say(`10\.244\.0\.12:8080 in quarantine`))
			l.Pods.Output("iptables", append([]string{"-D"}, refused...)...)
			Eventually(u.Out).WithTimeout(time.Minute).Should(gbytes.Say(`10\.244\.0\.12:8080 answers again`))
		}
		Expect(unbroken(diagnose(1))).To(MatchRegexp(`WARNING Service default/web 10\.244\.0\.12:8080 is unstable evidence: in quarantine 3 times since .*, last at .*, and recovered each time`))
	})

	DescribeTable("detects a host firewall that drops in INPUT, unless usher's rules accept its packets", func(mode string) {
		const spec = "  type: LoadBalancer\n  externalTrafficPolicy: Local\n"
		var balanced []service
		for name, at := range map[string]netip.Addr{"four": lab.Pod(1), "six": lab.Pod6(1)} {
			s := service{name: name, clusterIP: "10.96.0.10", port: 80, spec: spec + "  healthCheckNodePort: 32004\n", endpoints: []netip.AddrPort{startBackend(l.Pods, at, 8080).addr}}
			if at.Is6() {
				s.clusterIP, s.spec = "fd00:10:96::10", spec+"  healthCheckNodePort: 32006\n  ipFamilies: [IPv6]\n"
			}
			s.write(dir)
			balanced = append(balanced, s)
		}
		both := func(args ...string) {
			l.Node.Output("iptables", args...)
			l.Node.Output("ip6tables", args...)
		}
		both("-P", "INPUT", "DROP")
		both("-A", "INPUT", "-i", "lo", "-j", "ACCEPT") // so that the node's own connections prove nothing
		both("-A", "INPUT", "-m", "conntrack", "--ctstate", "ESTABLISHED", "-j", "ACCEPT")
		l.Node.Output("ip6tables", "-A", "INPUT", "-p", "icmpv6", "-j", "ACCEPT")
		u := startUsher(l.Node, dir, "--portal="+mode)
		pod, outside := l.Pods.NewDialer(1), l.Outside.NewDialer(1)
		health := func(port string) (errs []error) {
			for _, host := range []string{lab.NodeOut4, lab.NodeOut6} {
				c, err := outside.Dial("", net.JoinHostPort(host, port), time.Second)
				if err == nil {
					c.Close()
				}
				errs = append(errs, err)
			}
			return errs
		}
		if mode == "nftables" {
			Eventually(u.Err).WithTimeout(30 * time.Second).Should(gbytes.Say(`A host firewall may drop .*chains="chain INPUT of table ip filter, chain INPUT of table ip6 filter" .*tried="a connection to .* got no response within 600ms"`))
			Eventually(func(g Gomega) { // a check has a time limit, which four connections can exceed on a busy machine
				text := unbroken(diagnose(1))
				for _, at := range []string{"80 of 10.96.0.10", "80 of fd00:10:96::10", "32004 of 0.0.0.0", "32004 of ::"} {
					g.Expect(text).To(ContainSubstring("a connection to port " + at + " through a test interface got no response within 600ms; may be dropped by chain INPUT of table ip filter"))
				}
			}).WithTimeout(time.Minute).Should(Succeed())
			withoutTun := func() string {
				return strings.Join(strings.Fields(l.Node.Output("unshare", "-m", "sh", "-c", "mount -t tmpfs none /dev/net; "+usherBinary+" diagnose || true")), " ")
			}
			Expect(withoutTun()).To(ContainSubstring("WARNING node a host firewall may drop redirected packets: clients of all Services would hang evidence: " +
				"may be dropped by chain INPUT of table ip filter, chain INPUT of table ip6 filter; no test connection: creating a TUN device: no such file"))
			l.Node.Output("iptables", "-A", "INPUT", "-d", "192.0.0.117", "-j", "ACCEPT")
			l.Node.Output("ip6tables", "-A", "INPUT", "-d", "fd75:7368:6572::1", "-j", "ACCEPT")
			text := unbroken(diagnose(1))
			Expect(text).To(And(ContainSubstring("a host firewall drops load balancer health checks"), Not(ContainSubstring("hang"))))
			Expect(withoutTun()).To(ContainSubstring("NOTE node cannot determine whether a host firewall drops redirected packets evidence: found no INPUT chain that drops packets; no test connection"))
			both("-A", "INPUT", "-p", "tcp", "--dport", "32000:32010", "-j", "ACCEPT")
		}
		diagnose(0)
		for _, s := range balanced {
			_, err := ask(pod, s.vip())
			Expect(err).NotTo(HaveOccurred())
		}
		Expect(health("32004")).To(HaveEach(BeNil()))
		Expect(health("32006")).To(HaveEach(BeNil()))
		Expect(l.Node.Output("ip", "link")).NotTo(ContainSubstring("usher-try"))
		if mode == "iptables" {
			Expect(string(u.Err.Contents())).NotTo(ContainSubstring("host firewall"))
			Expect(os.Remove(filepath.Join(dir, "six.yaml"))).To(Succeed())
			Eventually(func() []error { return health("32006") }).WithTimeout(30 * time.Second).Should(HaveEach(MatchError(ContainSubstring("timeout"))))
			Expect(health("32004")[0]).NotTo(HaveOccurred()) // usher no longer serves IPv6
		}
	},
		Entry(nil, "nftables"),
		Entry(nil, "iptables"),
	)

	It("writes a bundle without secrets that only its owner can read, also without usher, or without tools to stdout, as in the Pod", func() {
		unpacked := func(path string) map[string]string {
			GinkgoHelper()
			f, err := os.Open(path)
			Expect(err).NotTo(HaveOccurred())
			defer f.Close()
			return unpack(f)
		}
		By("while usher does not run")
		path := filepath.Join(GinkgoT().TempDir(), "usher.tgz")
		s := diagnose(1, "--bundle", path)
		Expect(string(s.Err.Contents())).To(And(ContainSubstring("Wrote "+path), ContainSubstring("Start it with 'usher run'")))
		files := unpacked(path)
		Expect(files).To(HaveKeyWithValue("usher-bundle/README", ContainSubstring("token, password or key")))
		Expect(files).To(HaveKeyWithValue("usher-bundle/diagnose.txt", ContainSubstring("connection refused")))
		Expect(files).To(HaveKeyWithValue("usher-bundle/api/status.json", ContainSubstring("unavailable: ")))
		Expect(files).To(HaveKeyWithValue("usher-bundle/node/system.txt", ContainSubstring("Linux version")))
		Expect(files).To(HaveKeyWithValue("usher-bundle/node/addresses.txt", ContainSubstring("table local")))

		By("with a log")
		write("web", 10, startBackend(l.Pods, lab.Pod(1), 8080).addr)
		startUsher(l.Node, dir)
		log := filepath.Join(GinkgoT().TempDir(), "usher.log")
		Expect(os.WriteFile(log, []byte("first line\nAuthorization: Bearer planted-1\nurl=https://me:planted-2@api.example/ {\"password\":\"planted-3\"}\nlast line\n"), 0o600)).To(Succeed())
		path = filepath.Join(GinkgoT().TempDir(), "usher.tgz")
		diagnose(0, "--bundle", path, "--log", log)
		info, err := os.Stat(path)
		Expect(err).NotTo(HaveOccurred())
		Expect(info.Mode().Perm()).To(Equal(os.FileMode(0o600)))
		files = unpacked(path)
		for name, text := range files {
			Expect(text).NotTo(ContainSubstring("planted-"), name)
		}
		Expect(files).To(HaveKeyWithValue("usher-bundle/log.txt", And(HavePrefix("first line"), HaveSuffix("last line\n"))))
		Expect(files).To(HaveKeyWithValue("usher-bundle/README", ContainSubstring("(left out)")))
		Expect(files).To(HaveKeyWithValue("usher-bundle/api/services.json", ContainSubstring("10.96.0.10:80")))
		Expect(files).To(HaveKeyWithValue("usher-bundle/api/services/default/web.json", ContainSubstring(lab.Pod(1).String())))
		Expect(files).To(HaveKeyWithValue("usher-bundle/metrics.txt", ContainSubstring("usher_build_info")))
		Expect(files).To(HaveKeyWithValue("usher-bundle/configz.json", ContainSubstring(dir)))
		Expect(files).To(HaveKeyWithValue("usher-bundle/node/addresses.txt", ContainSubstring("table local")))
		Expect(files["usher-bundle/node/iptables.txt"] + files["usher-bundle/node/nftables.txt"]).To(ContainSubstring("10.96.0.10"))
		Expect(string(diagnose(1, "--bundle", path).Err.Contents())).To(ContainSubstring("already exists"))

		By("to stdout, where no tools are installed")
		GinkgoT().Setenv("PATH", "/nowhere")
		s = diagnose(0, "--bundle", "-")
		Expect(string(s.Err.Contents())).To(And(ContainSubstring("Nothing else found"), ContainSubstring("cannot check for rules of other programs for the Services' VIPs"), ContainSubstring("Wrote the bundle")))
		files = unpack(bytes.NewReader(s.Out.Contents()))
		Expect(files).To(HaveKeyWithValue("usher-bundle/diagnose.txt", And(ContainSubstring("Nothing else found"), Not(ContainSubstring("\x1b")))))
		Expect(files).To(HaveKeyWithValue("usher-bundle/api/services.json", ContainSubstring("10.96.0.10:80")))
		Expect(files).To(HaveKeyWithValue("usher-bundle/node/system.txt", ContainSubstring("Linux version")))
		Expect(files).To(HaveKeyWithValue("usher-bundle/node/addresses.txt", And(MatchRegexp("# ip rule\nunavailable: .*not found"), ContainSubstring("|-- 127.0.0.1"))))
		Expect(files).To(HaveKeyWithValue("usher-bundle/node/iptables.txt", ContainSubstring("unavailable: ")))
		Expect(files).To(HaveKeyWithValue("usher-bundle/log.txt", ContainSubstring("use 'kubectl logs'")))
	})
})

// unpack returns the files of a bundle.
func unpack(bundle io.Reader) map[string]string {
	GinkgoHelper()
	z, err := gzip.NewReader(bundle)
	Expect(err).NotTo(HaveOccurred())
	files := map[string]string{}
	for archive := tar.NewReader(z); ; {
		head, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		Expect(err).NotTo(HaveOccurred())
		text, err := io.ReadAll(archive)
		Expect(err).NotTo(HaveOccurred())
		files[head.Name] = string(text)
	}
}
