package scale

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gbytes"

	"github.com/usherproxy/usher/test/lab"
)

var _ = Describe("more service ports than the open files limit allows", func() {
	It("are served up to the limit, with descriptors left for connections, and one warning", func() {
		const limit, ports = 2000, 3000
		l := lab.New()
		startBackends(l.Pods)
		pod := l.Pods.NewDialer(200)
		dir := serve(ports)
		u := startWithin(limit, l.Node, dir, "nftables", "--portal-check-interval=500ms")
		DeferCleanup(u.end)
		log := string(u.Err.Contents())
		Expect(log).To(MatchRegexp("Open files limit of 2000 is too low: [0-9]+ service ports are not served and .*; raise it to [0-9]+ or more"))
		Expect(strings.Count(log, "Open files limit of")).To(Equal(1))
		Expect(log).NotTo(ContainSubstring("Service port is not served as configured"), "one warning covers all ports")

		metrics := func() string { return l.Node.Output("curl", "-s", "http://127.0.0.1:10249/metrics") }
		value := func(metric string) int {
			GinkgoHelper()
			for line := range strings.Lines(metrics()) {
				if rest, ok := strings.CutPrefix(line, metric+" "); ok {
					n, err := strconv.ParseFloat(strings.TrimSpace(rest), 64)
					Expect(err).NotTo(HaveOccurred())
					return int(n)
				}
			}
			Fail("no " + metric)
			return 0
		}
		served := value("usher_listeners")
		figure("open files limit %d, %d service ports: %d served, %d connections may be open", limit, ports, served, value("usher_connections_limit"))
		Expect(served).To(And(BeNumerically(">", limit/2), BeNumerically("<=", limit*3/4)), "a quarter is reserved for connections")
		Expect(value(`usher_service_port_problems{reason="ListenFailed"}`)).To(Equal(ports - served))
		Expect(value("usher_connections_limit")).To(BeNumerically(">", 100))

		By("connecting to an unserved port, and removing the other ports")
		Expect(connectAndAsk(pod, vip(ports-1), patience)).To(MatchError(ContainSubstring("refused")))
		replaceAll(dir, ports-1)
		Eventually(func() error { return connectAndAsk(pod, vip(ports-1), time.Second) }).WithTimeout(30 * time.Second).Should(Succeed())
		Eventually(u.Err).WithTimeout(30 * time.Second).Should(gbytes.Say("The open files limit is high enough for all service ports again"))
		Expect(fmt.Sprint(value("usher_listeners"))).To(Equal("1"))
	})
})
