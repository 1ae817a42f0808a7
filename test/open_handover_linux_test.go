package test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gbytes"
	"github.com/onsi/gomega/gexec"

	"github.com/usherproxy/usher/test/lab"
)

var _ = Describe("open connections, when another instance takes over,", serial, func() {
	for _, portal := range []string{"iptables", "nftables", "address"} {
		Describe("with the "+portal+" portal", func() { openHandoverSpecs(portal) })
	}
})

// openHandoverSpecs keep connections busy while processes take over from each other: 100 connections and 3 or 5
// takeovers by default. The environment variables USHER_TALKS and USHER_TAKEOVERS override these numbers.
func openHandoverSpecs(portal string) {
	number := func(variable string, otherwise int) int {
		GinkgoHelper()
		text := os.Getenv(variable)
		if text == "" {
			return otherwise
		}
		n, err := strconv.Atoi(text)
		Expect(err).NotTo(HaveOccurred(), variable)
		return n
	}
	var (
		l        *lab.Lab
		pod      *lab.Dialer
		dir      string
		services []service
		talks    *lab.Talks
		serving  atomic.Pointer[lab.Talks] // talks, for the endpoints' goroutines
		random   *rand.Rand
	)
	BeforeEach(func() {
		if portal == "iptables" {
			missing("iptables")
		}
		l = lab.New()
		pod = l.Pods.NewDialer(30)
		dir = manifestsDir()
		seed := uint64(GinkgoRandomSeed())
		GinkgoWriter.Printf("seed %d (-ginkgo.seed)\n", seed)
		talks, random = lab.NewTalks(seed), rand.New(rand.NewPCG(seed, 0))
		serving.Store(talks)
		services = []service{{name: "talks", clusterIP: clusterIP, port: 80}, {name: "talks6", clusterIP: "fd00:10:96::10", port: 80}, {name: "web", clusterIP: "10.96.0.20", port: 80}}
		for n := 1; n <= 2; n++ {
			for i, at := range []string{lab.Pod(n).String(), lab.Pod6(n).String()} {
				listener := l.Pods.Listen(net.JoinHostPort(at, "8081"))
				lab.Serve(listener, func(c net.Conn) { serving.Load().Endpoint(c.(*net.TCPConn)) })
				services[i].endpoints = append(services[i].endpoints, listener.Addr().(*net.TCPAddr).AddrPort())
			}
			services[2].endpoints = append(services[2].endpoints, startBackend(l.Pods, lab.Pod(n), 8080).addr)
		}
		for _, s := range services {
			s.write(dir)
		}
	})
	come := func(n int) {
		GinkgoHelper()
		for i := range n {
			c, err := pod.Dial("", services[i%2].vip(), 10*time.Second)
			Expect(err).NotTo(HaveOccurred())
			talks.Client(lab.MixOfTalks(i), c)
		}
	}
	// numbers returns the numbers of the talks' open connections by client address.
	numbers := func() (map[string]int, error) {
		var out []byte
		var err error
		l.Node.Do(func() error {
			out, err = exec.Command(usherBinary, "get", "connections", "-o", "json").Output()
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("%w: %s", err, out)
		}
		var list struct {
			Items []struct {
				ID              int
				Service, Client string
			}
		}
		if err := json.Unmarshal(out, &list); err != nil {
			return nil, err
		}
		all := map[string]int{}
		for _, c := range list.Items {
			if c.Service != "default/web" {
				all[c.Client] = c.ID
			}
		}
		return all, nil
	}
	start := func(args ...string) *usher {
		GinkgoHelper()
		return startUsher(l.Node, dir, append([]string{"--portal=" + portal, "--drain-timeout=5m"}, args...)...)
	}

	It("continue byte for byte with the same numbers, repeatedly, and no new one fails", func() {
		n := number("USHER_TALKS", 100)
		current := start()
		come(n)
		traffic := startLoad(pod, services[2].vip(), 100)
		rules := lab.State(l.Node)
		var before map[string]int
		Eventually(func() (_ int, err error) { before, err = numbers(); return len(before), err }).WithTimeout(time.Minute).Should(Equal(n))
		for range number("USHER_TAKEOVERS", 5) {
			time.Sleep(time.Duration(random.IntN(1000)) * time.Millisecond)
			previous := current
			current = launchUsher(l.Node, dir, "--portal="+portal, "--drain-timeout=5m", "--take-over")
			Eventually(previous.Err).WithTimeout(30 * time.Second).Should(gbytes.Say("has taken over"))
			taken := time.Now()
			Eventually(previous.Err).WithTimeout(30 * time.Second).WithPolling(10 * time.Millisecond).Should(gbytes.Say("Open connections handed over(?s:.*)Stopped"))
			AddReportEntry("the previous process had stopped after", time.Since(taken))
			Eventually(previous).WithTimeout(time.Minute).Should(gexec.Exit(0))
			Eventually(numbers).WithTimeout(30 * time.Second).Should(Equal(before))
			Expect(talks.Err()).NotTo(HaveOccurred())
			made := traffic.made.Load()
			Eventually(traffic.made.Load).WithTimeout(30 * time.Second).Should(BeNumerically(">", made+100))
		}
		moved := talks.Moved()
		Eventually(talks.Moved).WithTimeout(30 * time.Second).Should(BeNumerically(">", moved+100_000))
		traffic.end()
		AddReportEntry("new connections", traffic.made.Load())
		AddReportEntry("bytes compared", talks.Moved())
		if err := traffic.firstFailure.Load(); err != nil {
			Expect(*err).NotTo(HaveOccurred())
		}
		Expect(talks.End()).To(Succeed())
		Expect(lab.State(l.Node)).To(Equal(rules), "the rules did not change")
	})

	It("continue byte for byte after kill -9 under a keeper, except at most 10% that are reset", func() {
		n := number("USHER_TALKS", 100)
		k := startKept(l.Node, dir, "--portal="+portal, "--drain-timeout=5m")
		const streams = 4
		come(n)
		for range streams {
			c, err := pod.Dial("", services[0].vip(), 10*time.Second)
			Expect(err).NotTo(HaveOccurred())
			talks.Client(lab.Bulk, c)
		}
		n += streams
		traffic := call(pod, 100, services[2].vip())
		node := l.Node.NewDialer(1)
		saved := sample(node, "usher_connections_saved")
		restored := func() int { // the new process logs this before or after "Serving"
			return strings.Count(string(k.Err.Contents()), "Open connections restored after a crash")
		}
		lost := 0
		for round := range number("USHER_CRASHES", 3) {
			if round%3 == 1 { // connections from an earlier handover are saved, too
				Expect(syscall.Kill(k.Command.Process.Pid, syscall.SIGHUP)).To(Succeed())
				Eventually(k.Err).WithTimeout(time.Minute).Should(gbytes.Say("the new usher instance is taking over"))
				Eventually(k.Err).WithTimeout(time.Minute).Should(gbytes.Say("Open connections handed over"))
				k.child()
			}
			Eventually(saved).WithTimeout(time.Minute).Should(BeNumerically(">=", n-lost))
			before, err := numbers()
			Expect(err).NotTo(HaveOccurred())
			_, said, code := askUsher(l.Node, "get", "connections", "-A")
			Expect(code).To(BeZero(), said)
			Expect(said).To(MatchRegexp(`(?m)^The keeper has copies of the sockets of \d+ of all \d+ connections\.`))
			time.Sleep(time.Duration(random.IntN(1000)) * time.Millisecond)
			moved := talks.Moved()
			k.crash()
			Eventually(restored).WithTimeout(time.Minute).Should(Equal(1 + round))
			Eventually(talks.Moved).WithTimeout(time.Minute).Should(BeNumerically(">", moved+100_000))
			Expect(talks.Wrong()).NotTo(HaveOccurred())
			after, err := numbers()
			Expect(err).NotTo(HaveOccurred())
			Eventually(talks.Lost).WithTimeout(30*time.Second).Should(BeNumerically(">=", n-len(after)), "each client that usher no longer serves sees that")
			lost = talks.Lost()
			for client, number := range after {
				Expect(number).To(Equal(before[client]))
			}
		}
		AddReportEntry("reset", lost)
		AddReportEntry("bytes compared", talks.Moved())
		Expect(lost).To(BeNumerically("<=", n/10), "%v", talks.Err())
		traffic.end()
		_ = talks.End() // lost connections have failed
		Expect(talks.Wrong()).NotTo(HaveOccurred())
		Expect(talks.Lost()).To(Equal(lost), "no other connection ended or lost bytes")
		k.Terminate()
		Eventually(k).WithTimeout(time.Minute).Should(gexec.Exit(0))
	})

	if portal != "address" {
		return
	}
	It("continue or are reset, without missing bytes, if the new process is killed meanwhile", func() {
		n := number("USHER_TALKS", 100)
		for round := range number("USHER_TAKEOVERS", 3) {
			talks = lab.NewTalks(random.Uint64())
			serving.Store(talks)
			current := start()
			come(n)
			Eventually(numbers).WithTimeout(time.Minute).Should(HaveLen(n))
			next := launchUsher(l.Node, dir, "--portal="+portal, "--drain-timeout=5m", "--take-over")
			if round > 0 { // in the first round it may die before it has the lock, or after it has everything
				Eventually(current.Err).WithTimeout(30 * time.Second).WithPolling(time.Millisecond).Should(gbytes.Say("has taken over"))
			}
			time.Sleep(time.Duration(random.IntN(400)) * time.Millisecond)
			next.Kill().Wait(30 * time.Second)
			lost := talks.Lost()
			for before := -1; lost != before; before, lost = lost, talks.Lost() { // until all clients have seen that their connections are lost
				time.Sleep(3 * time.Second)
			}
			AddReportEntry("lost with the process that was killed", lost)
			Expect(talks.Wrong()).NotTo(HaveOccurred())
			if !strings.Contains(string(current.Err.Contents()), "has taken over") {
				Expect(lost).To(BeZero(), "nothing was handed over")
				Expect(connectAndTalk(pod, services[2].vip())).To(Succeed(), "the old instance keeps serving")
			}
			third := start("--take-over")
			Expect(connectAndTalk(pod, services[2].vip())).To(Succeed(), "the lock was released")
			moved := talks.Moved()
			if lost < n {
				Eventually(talks.Moved).WithTimeout(30 * time.Second).Should(BeNumerically(">", moved+10_000))
			}
			_ = talks.End() // lost connections have failed
			Expect(talks.Lost()).To(Equal(lost), "no other connection ended or lost bytes")
			Expect(talks.Wrong()).NotTo(HaveOccurred())
			current.Kill().Wait(30 * time.Second)
			third.stop()
		}
	})
}
