package test

import (
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gbytes"

	"github.com/usherproxy/usher/test/lab"
)

var _ = Describe("endpoints that fail", func() {
	var (
		l   *lab.Lab
		pod *lab.Dialer
		web service
		dir string
	)
	BeforeEach(func() {
		l = lab.New()
		pod = l.Pods.NewDialer(20)
		web = service{name: "web", clusterIP: clusterIP, port: 80}
		dir = manifestsDir()
	})
	start := func(args ...string) *usher {
		GinkgoHelper()
		web.write(dir)
		return startUsher(l.Node, dir, append([]string{"--portal=address", "--trace"}, args...)...)
	}

	DescribeTable("get clients again after a short packet loss, and no client serves as the probe",
		func(vip string, at func(int) netip.Addr) {
			missing("nft")
			web.clusterIP = vip
			var lost []string
			for n := 1; n <= 10; n++ {
				web.endpoints = append(web.endpoints, startBackend(l.Pods, at(n), 8080).addr)
				if n > 1 {
					lost = append(lost, at(n).String())
				}
			}
			u := start()
			family := map[bool]string{true: "ip", false: "ip6"}[at(1).Is4()]
			l.Pods.Output("nft", "add table inet blip; add chain inet blip in { type filter hook input priority 0; };"+
				fmt.Sprintf("add rule inet blip in tcp dport 8080 %s daddr { %s } drop", family, strings.Join(lost, ", ")))
			var clients sync.WaitGroup
			for range 10 { // each endpoint is selected in rotation, at the same time
				clients.Go(func() {
					defer GinkgoRecover()
					Expect(ask(pod, web.vip())).Error().NotTo(HaveOccurred())
				})
			}
			for range lost { // 250 ms, unless another delay adds to it
				Eventually(u.Out).WithTimeout(30 * time.Second).Should(gbytes.Say(`in quarantine \(no answer.*\), first probe in 1.0 s`))
			}
			l.Pods.Output("nft", "delete table inet blip")
			began := time.Now()
			clients.Wait()
			seen := map[netip.AddrPort]bool{}
			Eventually(func() map[netip.AddrPort]bool {
				endpoint, err := ask(pod, web.vip())
				Expect(err).NotTo(HaveOccurred())
				seen[endpoint] = true
				return seen
			}).WithTimeout(time.Minute).WithPolling(time.Millisecond).Should(HaveLen(10))
			AddReportEntry("all ten have clients again", time.Since(began).String())
			Expect(string(u.Out.Contents())).NotTo(ContainSubstring("probe after quarantine"), "no client served as a probe")
		},
		Entry("IPv4", clusterIP, lab.Pod),
		Entry("IPv6", "fd00:10:96::10", lab.Pod6),
	)

	It("cost only one client an attempt until they recover", func() {
		good := startBackend(l.Pods, lab.Pod(1), 8080)
		dead := netip.AddrPortFrom(lab.Pod(2), 8080)
		web.endpoints = []netip.AddrPort{good.addr, dead}
		u := start()
		asked := func() *gbytes.Buffer { // clients connect continuously
			Expect(ask(pod, web.vip())).To(BeElementOf(good.addr, dead))
			return u.Out
		}
		Eventually(asked).WithTimeout(30 * time.Second).Should(gbytes.Say(`attempt 1 → 10\.244\.0\.12:8080 .*connection refused`))
		for _, next := range []string{`2\.0`, `4\.0`, `8\.0`} { // after one second, three, and seven
			Eventually(asked).WithTimeout(time.Minute).Should(gbytes.Say(`endpoint 10\.244\.0\.12:8080 failed a probe \(connection refused\), next in ` + next + ` s`))
		}
		Expect(strings.Count(string(u.Out.Contents()), "→ 10.244.0.12:8080 ")).To(Equal(1))
		out, _, _ := askUsher(l.Node, "get", "endpoints", "web")
		Expect(out).To(MatchRegexp(`10\.244\.0\.12:8080 +- +quarantined .* probe in \ds: connection refused`))

		startBackend(l.Pods, lab.Pod(2), 8080)
		Eventually(asked).WithTimeout(30 * time.Second).Should(gbytes.Say(`endpoint 10\.244\.0\.12:8080 answers again, to a probe`))
		Eventually(asked).WithTimeout(30 * time.Second).Should(gbytes.Say(`attempt 1 → 10\.244\.0\.12:8080 \(round robin\): connected`))
		Eventually(sample(l.Node.NewDialer(1), `usher_probes_total{result="connected"}`)).WithTimeout(30 * time.Second).Should(BeEquivalentTo(1))
	})
})
