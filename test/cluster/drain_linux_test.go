package cluster

import (
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"syscall"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/usherproxy/usher/proxy/admin/api"
	"github.com/usherproxy/usher/test/lab"
)

var _ = Describe("the drain, slow start, idle and access log settings of a Service", func() {
	const (
		drain, slow, accessLog = "usher.io/drain-timeout", "usher.io/slow-start", "usher.io/access-log"
		aws                    = "service.beta.kubernetes.io/aws-load-balancer-"
		idle                   = aws + "connection-idle-timeout"
		draining, drainTime    = aws + "connection-draining-enabled", aws + "connection-draining-timeout"
	)
	var (
		c    *cluster
		svc  *corev1.Service
		pods []netip.AddrPort
	)
	BeforeEach(func() {
		c = newCluster()
		svc = c.service("web", noSelector)
		pods = nil
		for n := 1; n <= 2; n++ {
			pods = append(pods, serve(c.Pods, netip.AddrPortFrom(lab.Pod(n), 8080)).addr)
		}
		c.write(c.slice("web", "a", endpoint(lab.Pod(1)), endpoint(lab.Pod(2))))
	})
	// says holds the settings for the Service's connections as usher reports them.
	type says struct{ Drain, Slow, Idle, Log string }
	said := func() (says, error) {
		a, err := get(c.Node.NewDialer(1), adminURL+"/api/v1/services/"+c.namespace+"/web")
		if err != nil {
			return says{}, err
		}
		var s api.ServiceDetail
		if err := json.Unmarshal([]byte(a.Body), &s); err != nil || len(s.Details) == 0 {
			return says{}, err
		}
		is := s.Details[0].Settings
		return says{is["drain-timeout"], is["slow-start"], is["connection-idle-timeout"], is["access-log"]}, nil
	}

	It("follow usher's and AWS's annotations when set, changed, invalid and removed", func() {
		path := filepath.Join(GinkgoT().TempDir(), "access.log")
		c.usher("--access-log="+path, "--endpoint-drain-timeout=1h", "--slow-start=2h", "--connection-idle-timeout=3h")
		now := says{"1h", "2h", "3h", "true"}
		Eventually(said).WithTimeout(soon).Should(Equal(now))
		for _, step := range []struct {
			name, value string
			change      func()
			wrong       string
		}{
			{drain, "10s", func() { now.Drain = "10s" }, ""},
			{drain, "0", func() { now.Drain = "" }, ""},
			{drain, "soon", func() { now.Drain = "1h" }, `metadata.annotations[usher.io/drain-timeout]: Invalid value: "soon": must be 0 or a duration from 1s to 24h`},
			{drain, "", func() {}, ""},
			{draining, "true", func() { now.Drain = "5m" }, ""},
			{drainTime, "60", func() { now.Drain = "1m" }, ""},
			{drainTime, "0", func() { now.Drain = "5m" }, `metadata.annotations[` + drainTime + `]: Invalid value: "0": must be a number of seconds from 1 to 3600`},
			{drain, "20s", func() { now.Drain = "20s" }, ""},
			{drain, "", func() { now.Drain = "5m" }, ""},
			{draining, "false", func() { now.Drain = "" }, ""},
			{draining, "off", func() { now.Drain = "1h" }, `metadata.annotations[` + draining + `]: Invalid value: "off": must be true or false`},
			{slow, "30s", func() { now.Slow = "30s" }, ""},
			{slow, "0", func() { now.Slow = "" }, ""},
			{slow, "30", func() { now.Slow = "2h" }, `metadata.annotations[usher.io/slow-start]: Invalid value: "30": must be 0 or a duration from 1s to 24h`},
			{idle, "60", func() { now.Idle = "1m" }, ""},
			{idle, "1m", func() { now.Idle = "3h" }, `metadata.annotations[` + idle + `]: Invalid value: "1m": must be a number of seconds from 1 to 4000`},
			{accessLog, "false", func() { now.Log = "" }, ""},
			{accessLog, "yes", func() { now.Log = "true" }, `metadata.annotations[usher.io/access-log]: Invalid value: "yes": must be true or false`},
			{aws + "access-log-enabled", "false", func() {}, ""}, // usher's own annotation is set, although invalid
			{accessLog, "", func() { now.Log = "" }, ""},
			{aws + "access-log-enabled", "", func() { now.Log = "true" }, ""},
		} {
			By(step.name + "=" + step.value)
			c.annotate("web", step.name, step.value)
			step.change()
			Eventually(said).WithTimeout(soon).Should(Equal(now))
			if step.wrong != "" {
				Eventually(c.warnings("web")).WithTimeout(soon).Should(ContainElement(ContainSubstring(step.wrong)))
			}
		}

		lines := func() string {
			text, err := os.ReadFile(path)
			Expect(err).NotTo(HaveOccurred())
			return string(text)
		}
		Expect(ask(c.pod, vip(svc))).To(BeElementOf(pods))
		Eventually(lines).WithTimeout(soon).Should(ContainSubstring(`"service":"` + c.namespace + `/web"`))
		c.annotate("web", accessLog, "false")
		now.Log = ""
		Eventually(said).WithTimeout(soon).Should(Equal(now))
		before := lines()
		Expect(ask(c.pod, vip(svc))).To(BeElementOf(pods))
		Consistently(lines).WithTimeout(300 * time.Millisecond).Should(Equal(before)) // the connection has ended by then
		c.annotate("web", accessLog, "true")
		now.Log = "true"
		Eventually(said).WithTimeout(soon).Should(Equal(now))
		Expect(ask(c.pod, vip(svc))).To(BeElementOf(pods))
		Eventually(lines).WithTimeout(soon).ShouldNot(Equal(before))
		Expect(lines()[len(before):]).To(MatchRegexp(`\A[^\n]*\n\z`), "one line, for only one of the connections")
	})

	It("cause a problem if the access log is enabled but not configured; end connections to a terminating endpoint, even if the annotation is added later", func() {
		u := c.usher()
		c.annotate("web", accessLog, "true")
		Eventually(c.warnings("web")).WithTimeout(soon).Should(ContainElement(ContainSubstring(
			`metadata.annotations[usher.io/access-log]: Invalid value: "true": no access log on this node; set --access-log`)))
		Expect(said()).To(Equal(says{}))
		c.annotate("web", accessLog, "")

		By("keeping connections to a terminating endpoint without a drain timeout")
		var leaving, staying *connection
		for leaving == nil || staying == nil {
			open, err := connect(c.pod, vip(svc))
			Expect(err).NotTo(HaveOccurred())
			if open.server == pods[0] {
				leaving = open
			} else {
				staying = open
			}
		}
		terminate := func(e *discoveryv1.Endpoint) { e.Conditions = conditions(false, true, true) }
		c.write(c.slice("web", "a", endpoint(lab.Pod(1), terminate), endpoint(lab.Pod(2))))
		Eventually(u.outputText).WithTimeout(soon).Should(ContainSubstring("endpoint " + pods[0].String() + " is now terminating"))
		Consistently(leaving.works).WithTimeout(time.Second).Should(Succeed())

		By("setting an invalid annotation, which changes nothing")
		c.annotate("web", drain, "1")
		Eventually(c.warnings("web")).WithTimeout(soon).Should(ContainElement(ContainSubstring(drain)))
		Expect(leaving.works()).To(Succeed())

		c.annotate("web", drain, "1s")
		Eventually(u.outputText).WithTimeout(soon).Should(ContainSubstring("endpoint-drained"))
		Expect(leaving.works()).To(MatchError(syscall.ECONNRESET))
		Expect(staying.works()).To(Succeed())
	})
})
