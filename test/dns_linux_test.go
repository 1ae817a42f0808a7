package test

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gbytes"
	"github.com/onsi/gomega/gexec"

	"github.com/usherproxy/usher/test/lab"
)

// onlyNames are Services that usher does not proxy: a headless one with two endpoints,
// and an ExternalName.
const onlyNames = `apiVersion: v1
kind: Service
metadata: {name: db}
spec: {clusterIP: None, ports: [{name: sql, port: 5432}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: db-1, labels: {kubernetes.io/service-name: db}}
addressType: IPv4
ports: [{name: sql, port: 5432}]
endpoints: [{addresses: [10.244.0.11], hostname: db-0}, {addresses: [10.244.0.12]}]
---
apiVersion: v1
kind: Service
metadata: {name: outside}
spec: {type: ExternalName, externalName: www.example.test}
`

// resolver is the node's address as Pods see it.
const resolver = "10.244.0.1"

var _ = Describe("kubectl usher connect --dns", func() {
	var (
		l        *lab.Lab
		dir      string
		web      service
		upstream netip.AddrPort
	)
	BeforeEach(func() {
		missing("dig")
		missing("dnsmasq")
		l = lab.New()
		dir = manifestsDir()
		web = service{name: "web", clusterIP: clusterIP, port: 80, endpoints: []netip.AddrPort{startBackend(l.Pods, lab.Pod(1), 8080).addr}}
		web.write(dir)
		writeFile(filepath.Join(dir, "names.yaml"), onlyNames)
		upstream = startDNS(l.Outside, netip.MustParseAddr(lab.Outside4))
	})
	start := func(args ...string) *usher {
		GinkgoHelper()
		return startConnect(l.Node, dir, append([]string{"--portal=address", "--dns-upstream=" + upstream.String()}, args...)...)
	}
	// dig runs dig with the arguments in a Pod, and returns its output.
	dig := func(args ...string) string {
		GinkgoHelper()
		return l.Pods.Output("dig", append([]string{"+tries=3", "+time=2", "@" + resolver}, args...)...)
	}
	short := func(args ...string) (answers []string) {
		GinkgoHelper()
		for line := range strings.Lines(dig(append([]string{"+short"}, args...)...)) {
			if !strings.HasPrefix(line, ";;") { // dig's report of a retry
				answers = append(answers, strings.Fields(line)...)
			}
		}
		return answers
	}

	It("resolves the names of all kinds of Services for Pods, over UDP and TCP, and follows changes", func() {
		start("--dns=" + resolver)
		for _, how := range []string{"+notcp", "+tcp", "+noedns", "+bufsize=4096"} {
			Expect(short(how, "web.default.svc.cluster.local")).To(ConsistOf(clusterIP))
			Expect(short(how, "db.default.svc.cluster.local")).To(ConsistOf("10.244.0.11", "10.244.0.12"))
			Expect(short(how, "db-0.db.default.svc.cluster.local")).To(ConsistOf("10.244.0.11"))
			Expect(short(how, "SRV", "_sql._tcp.db.default.svc.cluster.local")).To(ConsistOf(
				"0", "100", "5432", "db-0.db.default.svc.cluster.local.", "0", "100", "5432", "10-244-0-12.db.default.svc.cluster.local."))
			Expect(short(how, "SRV", "_main._tcp.web.default.svc.cluster.local")).To(Equal(strings.Fields("0 100 80 web.default.svc.cluster.local.")))
			Expect(short(how, "-x", clusterIP)).To(ConsistOf("web.default.svc.cluster.local."))
			Expect(short(how, "-x", "10.244.0.11")).To(ConsistOf("db-0.db.default.svc.cluster.local."))
			Expect(short(how, "outside.default.svc.cluster.local")).To(ConsistOf("www.example.test.", "192.0.2.80"))
			Expect(short(how, "www.example.test")).To(ConsistOf("192.0.2.80"))
			Expect(short(how, "TXT", "dns-version.cluster.local")).To(ConsistOf(`"1.1.0"`))
		}
		Expect(dig("nothing.default.svc.cluster.local")).To(And(ContainSubstring("status: NXDOMAIN"), ContainSubstring("SOA")))
		Expect(dig("AAAA", "web.default.svc.cluster.local")).To(And(ContainSubstring("status: NOERROR"), ContainSubstring("ANSWER: 0"), ContainSubstring("SOA")))

		By("connecting from a Pod to the resolved address")
		Expect(ask(l.Pods.NewDialer(1), web.vip())).To(Equal(web.endpoints[0]))

		By("following changes to Services and endpoints")
		answer := func(name string) func() []string {
			return func() []string { return short(name + ".default.svc.cluster.local") }
		}
		added := web
		added.name, added.clusterIP = "added", "10.96.0.77"
		added.write(dir)
		Eventually(answer("added")).WithTimeout(time.Minute).Should(ConsistOf("10.96.0.77"))
		writeFile(filepath.Join(dir, "names.yaml"), strings.ReplaceAll(onlyNames, "10.244.0.12", "10.244.0.13"))
		Eventually(answer("db")).WithTimeout(time.Minute).Should(ConsistOf("10.244.0.11", "10.244.0.13"))
		Expect(os.Remove(filepath.Join(dir, "names.yaml"))).To(Succeed())
		Eventually(answer("db")).WithTimeout(time.Minute).Should(BeEmpty())
		Expect(answer("web")()).To(ConsistOf(clusterIP))
	})

	DescribeTable("replies from the queried address when it listens on all addresses", func(all string) {
		start("--dns=" + all)
		for ns, at := range map[*lab.Namespace]string{l.Pods: resolver, l.Outside: lab.NodeOut4, l.Node: "127.0.0.1"} {
			Expect(ns.Output("dig", "+short", "+tries=3", "-p", "5353", "@"+at, "web.default.svc.cluster.local")).To(Equal(clusterIP + "\n"))
		}
	},
		Entry("of IPv4", "0.0.0.0:5353"),
		Entry("of both families", "[::]:5353"),
	)

	It("serves the domain of --dns-domain, and counts queries in a metric", func() {
		start("--dns="+resolver, "--dns-domain=lab.test")
		Expect(short("web.default.svc.lab.test")).To(ConsistOf(clusterIP))
		Expect(dig("web.default.svc.cluster.local")).To(ContainSubstring("status: "), "a name in another domain")
		Eventually(sample(l.Node.NewDialer(1), `usher_dns_queries_total{code="NOERROR",type="A"}`)).WithTimeout(30 * time.Second).Should(BeNumerically(">=", 1))
	})

	It("exits with an error if another resolver uses its address", func() {
		l.Node.ListenUDP(resolver + ":53")
		u := launchConnect(l.Node, dir, "--portal=address", "--dns="+resolver)
		Eventually(u).WithTimeout(30 * time.Second).Should(gexec.Exit(1))
		Expect(u.Err).To(gbytes.Say(`--dns: listen udp 10.244.0.1:53: bind: address already in use: another resolver may use it`))
		Expect(lab.State(l.Node)).NotTo(ContainSubstring(clusterIP))
	})

	It("rejects an invalid address, port, domain or upstream", func() {
		for flag, message := range map[string]string{
			"--dns=localhost":            `--dns: invalid value "localhost": must be an address`,
			"--dns=127.0.0.1:dns":        `--dns: invalid value "127.0.0.1:dns": must be an address`,
			"--dns-domain=no_domain":     `--dns-domain: "no_domain" is not a domain`,
			"--dns-upstream=dns.example": `--dns-upstream: invalid value "dns.example": must be an address`,
		} {
			u := launchConnect(l.Node, dir, "--portal=none", "--dns=127.0.0.1", flag)
			Eventually(u).WithTimeout(30 * time.Second).Should(gexec.Exit(2))
			Expect(string(u.Err.Contents())).To(ContainSubstring(message))
		}
	})

	It("skips an upstream that is itself, and answers SERVFAIL for external names", func() {
		u := startConnect(l.Node, dir, "--portal=none", "--dns="+resolver, "--dns-upstream="+resolver)
		Expect(string(u.Err.Contents())).To(ContainSubstring("Ignoring an upstream: it is this resolver"))
		Expect(dig("www.example.test")).To(ContainSubstring("status: SERVFAIL"))
		Expect(short("web.default.svc.cluster.local")).To(ConsistOf(clusterIP))
	})

	It("answers from another instance once that has taken over", func() {
		old := start("--dns=" + resolver)
		successor := start("--dns="+resolver, "--take-over")
		Eventually(old).WithTimeout(time.Minute).Should(gexec.Exit(0))
		Eventually(func() string { return string(successor.Err.Contents()) }).WithTimeout(time.Minute).Should(ContainSubstring("DNS server for Service names started"))
		Expect(short("web.default.svc.cluster.local")).To(ConsistOf(clusterIP))
	})
})
