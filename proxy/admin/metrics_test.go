package admin_test

import (
	"encoding/json"
	"flag"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	dto "github.com/prometheus/client_model/go"
	"sigs.k8s.io/yaml"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/proxy/admin"
	"github.com/usherproxy/usher/test/lab"
)

// update makes the test write docs/metrics.md instead of comparing it ("make generate").
var update = flag.Bool("update", false, "write docs/metrics.md")

const metricsPage = "../../docs/metrics.md"

// documented returns the names of the metrics in docs/metrics.md.
func documented() map[string]bool {
	names := map[string]bool{}
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\|").FindAllStringSubmatch(admin.MetricsDocumentation(), -1) {
		names[m[1]] = true
	}
	return names
}

var _ = Describe("the metrics", func() {
	It("are documented", func() {
		if *update {
			Expect(os.WriteFile(metricsPage, []byte(admin.MetricsDocumentation()), 0o644)).To(Succeed())
		}
		page, err := os.ReadFile(metricsPage)
		Expect(err).NotTo(HaveOccurred())
		Expect(string(page) == admin.MetricsDocumentation()).To(BeTrue(), "docs/metrics.md is out of date: run make generate")
	})

	It("match the documented names", func() {
		n := newNode()
		n.health.APIServer = func() admin.APIServerStatus { return admin.APIServerStatus{Reason: "forbidden"} }
		n.proxy.Apply([]config.Service{service("web", "10.96.0.1", lab.Refusing(), answering())})
		c, _ := n.client("web")
		c.Close()
		Eventually(n.proxy.Connections).Should(BeZero())
		got := map[string]bool{}
		for _, family := range n.gather() {
			if name := family.GetName(); strings.HasPrefix(name, "usher_") || strings.HasPrefix(name, "kubeproxy_") {
				got[name] = true
				Expect(documented()).To(HaveKey(name))
			}
		}
		for name := range documented() {
			switch name {
			case "usher_udp_sessions_ended_total", "usher_service_port_problems", // no session has ended, no port has a problem
				"usher_access_log_lines_total", "usher_access_log_lost_total", // there is no access log
				"usher_dns_queries_total",                                                                                               // no DNS server runs
				"kubeproxy_sync_proxy_rules_iptables_restore_failures_total", "kubeproxy_sync_proxy_rules_nftables_sync_failures_total", // another portal
				"rest_client_requests_total", "rest_client_request_duration_seconds": // there is no API server
			default:
				Expect(got).To(HaveKey(name))
			}
		}
	})

	It("have a retried connection as exemplar", func() {
		n := newNode()
		n.proxy.Apply([]config.Service{service("web", "10.96.0.1", lab.Refusing(), answering())})
		c, _ := n.client("web") // the first endpoint is next in rotation
		c.Close()
		Eventually(n.proxy.Connections).Should(BeZero())
		req, err := http.NewRequest(http.MethodGet, n.url+"/metrics", nil)
		Expect(err).NotTo(HaveOccurred())
		req.Header.Set("Accept", "application/openmetrics-text; version=1.0.0")
		res, err := http.DefaultClient.Do(req)
		Expect(err).NotTo(HaveOccurred())
		defer res.Body.Close()
		page, err := io.ReadAll(res.Body)
		Expect(err).NotTo(HaveOccurred())
		for _, name := range []string{"connect_seconds", "first_byte_seconds", "connection_duration_seconds", "connection_bytes"} {
			Expect(string(page)).To(MatchRegexp(`(?m)^usher_service_` + name + `_bucket{namespace="default",service="web",le="[^"]*"} 1 # {connection="1"} `))
		}
		Expect(string(page)).To(ContainSubstring(`usher_service_connections_closed_total{end="client-closed",namespace="default",service="web"} 1`))
	})

	It("have series for a Service from its first connection on", func() {
		n := newNode()
		at := answering()
		n.proxy.Apply([]config.Service{service("used", "10.96.0.1", lab.Refusing(), at), service("idle", "10.96.0.2", at)})
		n.client("used")
		series := map[string]float64{}
		for _, family := range n.gather() {
			if family.GetName() == "usher_service_retries_total" {
				for _, m := range family.Metric {
					series[m.Label[0].GetValue()+"/"+m.Label[1].GetValue()] = m.Counter.GetValue()
				}
			}
		}
		Expect(series).To(Equal(map[string]float64{"default/used": 1, "/(others)": 0}))
	})
})

// gather returns all metrics of the node.
func (n *node) gather() []*dto.MetricFamily {
	GinkgoHelper()
	all, err := n.metrics.Registry.Gather()
	Expect(err).NotTo(HaveOccurred())
	return all
}

// named finds the names of metrics in an expression.
var named = regexp.MustCompile(`\b(?:usher|kubeproxy|go|process)_[a-z_]+\b`)

var _ = Describe("references to metrics", func() {
	known := func(expression string) {
		GinkgoHelper()
		names := named.FindAllString(expression, -1)
		Expect(names).NotTo(BeEmpty(), expression)
		for _, name := range names {
			if strings.HasPrefix(name, "process_") {
				continue // Prometheus' own metrics of the process
			}
			base := regexp.MustCompile(`_(bucket|count|sum)$`).ReplaceAllString(name, "")
			Expect(documented()).To(HaveKey(base), expression)
		}
		for _, pair := range []string{"()", "[]", "{}"} {
			Expect(strings.Count(expression, pair[:1])).To(Equal(strings.Count(expression, pair[1:])), expression)
		}
	}

	It("are valid in the alert rules", func() {
		text, err := os.ReadFile("../../deploy/monitoring/alerts.yaml")
		Expect(err).NotTo(HaveOccurred())
		var file struct {
			Groups []struct {
				Name  string `json:"name"`
				Rules []struct {
					Alert       string            `json:"alert"`
					Expr        string            `json:"expr"`
					For         string            `json:"for"`
					Labels      map[string]string `json:"labels"`
					Annotations map[string]string `json:"annotations"`
				} `json:"rules"`
			} `json:"groups"`
		}
		Expect(yaml.UnmarshalStrict(text, &file)).To(Succeed())
		alerts := map[string]bool{}
		for _, g := range file.Groups {
			for _, r := range g.Rules {
				known(r.Expr)
				Expect(alerts).NotTo(HaveKey(r.Alert))
				alerts[r.Alert] = true
				Expect(r.Labels["severity"]).To(BeElementOf("info", "warning", "critical"), r.Alert)
				Expect(r.Annotations).To(And(HaveKey("summary"), HaveKey("description")), r.Alert)
			}
		}
		Expect(len(alerts)).To(BeNumerically(">", 5))
	})

	It("are valid in the documentation", func() {
		pages, err := filepath.Glob("../../docs/*.md")
		Expect(err).NotTo(HaveOccurred())
		names := regexp.MustCompile("`(usher_[a-z0-9_]+|kubeproxy_[a-z0-9_]+)`")
		found := 0
		for _, page := range pages {
			text, err := os.ReadFile(page)
			Expect(err).NotTo(HaveOccurred())
			for _, m := range names.FindAllStringSubmatch(string(text), -1) {
				if !strings.HasSuffix(m[1], "_") { // prefix of several names
					Expect(documented()).To(HaveKey(m[1]), page)
					found++
				}
			}
		}
		Expect(found).To(BeNumerically(">", 10))
	})

	It("are valid in the dashboard's panels", func() {
		text, err := os.ReadFile("../../deploy/monitoring/dashboard.json")
		Expect(err).NotTo(HaveOccurred())
		var dashboard struct {
			Panels []struct {
				ID      int
				Type    string
				Title   string
				Targets []struct{ Expr string }
			}
		}
		Expect(json.Unmarshal(text, &dashboard)).To(Succeed())
		ids := map[int]bool{}
		for _, p := range dashboard.Panels {
			Expect(ids).NotTo(HaveKey(p.ID))
			ids[p.ID] = true
			if p.Type != "row" {
				Expect(p.Targets).NotTo(BeEmpty(), p.Title)
			}
			for _, t := range p.Targets {
				known(t.Expr)
			}
		}
		Expect(len(ids)).To(BeNumerically(">", 20))
	})
})
