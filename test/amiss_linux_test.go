package test

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gbytes"

	"github.com/usherproxy/usher/test/lab"
)

// startResetting starts a server in a Pod that waits for a client's first byte. While resets is set, it then
// resets the connection; otherwise it sends its address as a backend does.
func startResetting(ns *lab.Namespace, addr netip.Addr, resets *atomic.Bool) netip.AddrPort {
	GinkgoHelper()
	at := netip.AddrPortFrom(addr, 8080)
	lab.Serve(ns.Listen(at.String()), func(c net.Conn) {
		if n, _ := c.Read(make([]byte, 1)); n > 0 && resets.Load() {
			_ = c.(*net.TCPConn).SetLinger(0)
			return
		}
		fmt.Fprintln(c, at)
		_, _ = io.Copy(io.Discard, c)
	})
	return at
}

// startHanging starts an endpoint whose connections only the kernel accepts, like those of a stopped process.
func startHanging(ns *lab.Namespace, addr netip.Addr) netip.AddrPort {
	GinkgoHelper()
	at := netip.AddrPortFrom(addr, 8080)
	ln := ns.Listen(at.String())
	DeferCleanup(func() { ln.Close() })
	return at
}

// request is like ask, but the client sends a byte first.
func request(d *lab.Dialer, vip string) (netip.AddrPort, error) {
	c, err := d.Dial("", vip, 10*time.Second)
	if err != nil {
		return netip.AddrPort{}, err
	}
	defer c.Close()
	if _, err := c.Write([]byte("?")); err != nil {
		return netip.AddrPort{}, err
	}
	return readName(c)
}

var _ = Describe("usher's commands", func() {
	// Successful connections simulate the hour. The trace keeps the last 4,000 steps or so: after these
	// connections, and also after an hour at 1,000 connections a second.
	const hour, calm, crowd = 5000, 4, 20 // connections; clients: with more of them, each connection takes longer
	var (
		l   *lab.Lab
		pod *lab.Dialer
		web service
	)
	BeforeEach(func() {
		l = lab.New()
		pod = l.Pods.NewDialer(crowd)
		web = service{name: "web", clusterIP: clusterIP, port: 80}
	})
	start := func(args ...string) *usher {
		GinkgoHelper()
		dir := manifestsDir()
		web.write(dir)
		return startUsher(l.Node, dir, append([]string{"--portal=address", "--trace"}, args...)...)
	}
	// load runs clients that connect until answered connections got an answer. It returns the number that failed.
	load := func(clients int, answered int64) (failed int64) {
		GinkgoHelper()
		var good, bad atomic.Int64
		var all sync.WaitGroup
		for range clients {
			all.Go(func() {
				for good.Load() < answered {
					if _, err := request(pod, web.vip()); err != nil {
						bad.Add(1)
					} else {
						good.Add(1)
					}
				}
			})
		}
		all.Wait()
		return bad.Load()
	}
	// command returns the output of an usher command, which must succeed.
	command := func(args ...string) string {
		GinkgoHelper()
		out, err, code := askUsher(l.Node, args...)
		Expect(code).To(BeZero(), err)
		return out + err
	}
	// diagnosis returns the output of usher diagnose without line breaks.
	diagnosis := func() string {
		GinkgoHelper()
		out, _, _ := askUsher(l.Node, "diagnose", "web")
		return strings.Join(strings.Fields(out), " ")
	}
	// idIn returns the number of the first connection in a table.
	idIn := func(table string) string {
		GinkgoHelper()
		lines := strings.Split(table, "\n")
		Expect(len(lines)).To(BeNumerically(">", 1), table)
		return strings.Fields(lines[1])[0]
	}

	It("show in three steps why some connections took 250 ms an hour ago", func() {
		missing("nft")
		for n := 1; n <= 3; n++ {
			web.endpoints = append(web.endpoints, startBackend(l.Pods, lab.Pod(n), 8080).addr)
		}
		u := start()
		l.Pods.Output("nft", "add table ip silent; add chain ip silent in { type filter hook input priority 0; };"+
			fmt.Sprintf("add rule ip silent in tcp dport 8080 ip daddr %s drop", lab.Pod(2)))
		Expect(load(crowd, 100)).To(BeZero(), "each reached another endpoint")
		Eventually(u.Out).WithTimeout(30 * time.Second).Should(gbytes.Say(`10\.244\.0\.12:8080 in quarantine.*no answer`))
		l.Pods.Output("nft", "delete table ip silent")
		Eventually(u.Out).WithTimeout(time.Minute).Should(gbytes.Say(`10\.244\.0\.12:8080 answers again`))
		Expect(load(calm, hour)).To(BeZero())

		first := command("get", "services", "-o", "wide")
		Expect(first).To(MatchRegexp(`NAME +STATE .* RETRIES +FAILED +CONNECT +FIRST BYTE`))
		Expect(first).To(MatchRegexp(`web +ok .* [1-9]\d* +0 +\d[\d.]*/\d[\d.]* ms `), "some were retried, and none failed")

		second := command("get", "connections", "web", "--slower-than", "200ms", "--retried", "-o", "wide")
		Expect(second).To(MatchRegexp(`web:main .* 2 +[\d.]+ m?s .* retried,slow `))
		Expect(second).To(MatchRegexp(`Includes connections that ended in the last [\dms]+, and failed, retried, slow or unanswered ones of the last [\dms]+\.`))

		third := command("get", "connection", idIn(second))
		Expect(third).To(MatchRegexp(`accepted \d\d:\d\d:\d\d\.\d+, established after [\d.]+ m?s, first byte after [\d.]+ m?s, ended after`), "timestamps")
		Expect(third).To(MatchRegexp(`(?s) 1 10\.244\.0\.12:8080 [^\n]*\n[^\n]* no answer after [\d.]+ m?s\n.* 2 10\.244\.0\.1[13]:8080 .* connected in `), "endpoints and results")

		Expect(diagnosis()).To(MatchRegexp(`NOTE Service default/web \d+ connections? (?:was|were) retried: no-answer, endpoint 10\.244\.0\.12:8080 evidence: last at `), "diagnose finds it in one step")
	})

	It("show in three steps that one of three Pods reset connections an hour ago", func() {
		var resets atomic.Bool
		web.endpoints = []netip.AddrPort{startBackend(l.Pods, lab.Pod(1), 8080).addr, startResetting(l.Pods, lab.Pod(2), &resets), startBackend(l.Pods, lab.Pod(3), 8080).addr}
		start(longDials) // no connection may be retried
		resets.Store(true)
		Expect(load(crowd, 100)).To(BeNumerically(">", 30), "about a third of the connections fail")
		resets.Store(false)
		Expect(load(calm, hour)).To(BeZero())

		Expect(command("get", "services", "-o", "wide")).To(MatchRegexp(`web +ok .* 0 +[1-9]\d+ +\d[\d.]*/\d[\d.]* ms `), "none was retried, and some failed")

		second := command("get", "endpoints", "web")
		Expect(second).To(MatchRegexp(`10\.244\.0\.12:8080 +- +ready +[0-9:]+ +\d+ +\d+ +[1-9]\d+ `))
		Expect(regexp.MustCompile(`ready +[0-9:]+ +\d+ +\d+ +0 `).FindAllString(second, -1)).To(HaveLen(2), "no connection to the others failed")

		third := command("get", "connections", "web", "--outcome", "failed", "--last", "1h", "-o", "wide")
		for line := range strings.Lines(third) {
			if strings.Contains(line, "web:main") {
				Expect(line).To(MatchRegexp(` 10\.244\.0\.12:8080 +- +endpoint-reset .* (?:slow,)?failed +\d\d:\d\d:\d\d\.\d+ +connection reset by peer`))
			}
		}
		Expect(strings.Count(third, "endpoint-reset")).To(BeNumerically(">", 30))

		Expect(diagnosis()).To(MatchRegexp(`10\.244\.0\.12:8080 fails some of its connections|\d+ connections failed: endpoint-reset, endpoint 10\.244\.0\.12:8080 evidence: last at `), "diagnose finds it in one step")
	})

	It("show in three steps that one of three Pods hangs", func() {
		web.endpoints = []netip.AddrPort{startBackend(l.Pods, lab.Pod(1), 8080).addr, startHanging(l.Pods, lab.Pod(2)), startBackend(l.Pods, lab.Pod(3), 8080).addr}
		start()
		Eventually(func() string { return command("get", "services") }).WithTimeout(30 * time.Second).Should(MatchRegexp(`web +ok `))
		Expect(load(crowd, 200)).To(BeNumerically(">=", 5), "connections to the Pod that hangs")

		Expect(command("get", "services", "-o", "wide")).To(MatchRegexp(`web +degraded +.* 2/3 `))
		Expect(command("get", "endpoints", "web")).To(And(MatchRegexp(`10\.244\.0\.12:8080 +- +unresponsive `), MatchRegexp(`10\.244\.0\.11:8080 +- +ready `), MatchRegexp(`10\.244\.0\.13:8080 +- +ready `)))
		Expect(command("get", "endpoints", "--state=unresponsive")).To(And(ContainSubstring("10.244.0.12:8080"), Not(ContainSubstring("10.244.0.11:8080"))))
		Expect(command("get", "endpoints", "10.244.0.11:8080", "--state=unresponsive")).To(ContainSubstring("No endpoints of 10.244.0.11:8080 in state unresponsive."))
		Expect(command("get", "endpoints", "--state=degraded")).To(And(ContainSubstring("10.244.0.12:8080"), ContainSubstring("10.244.0.11:8080")))
		Expect(diagnosis()).To(MatchRegexp(`10\.244\.0\.12:8080 accepts connections but never responds evidence: in the last 5 to 10 minutes it had \d+ clients and sent no byte`))
	})
})
