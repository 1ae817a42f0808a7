package monitoring

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"sigs.k8s.io/yaml"
)

func TestMonitoring(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "test/monitoring")
}

// deployed is the folder under test.
const deployed = "../../deploy/monitoring"

// file is a rules file.
type file struct {
	Groups []struct {
		Name  string `json:"name"`
		Rules []struct {
			Alert       string            `json:"alert"`
			Expr        string            `json:"expr"`
			For         string            `json:"for,omitempty"`
			Labels      map[string]string `json:"labels"`
			Annotations map[string]string `json:"annotations"`
		} `json:"rules"`
	} `json:"groups"`
}

func alerts() (f file) {
	GinkgoHelper()
	text, err := os.ReadFile(filepath.Join(deployed, "alerts.yaml"))
	Expect(err).NotTo(HaveOccurred())
	Expect(yaml.UnmarshalStrict(text, &f)).To(Succeed())
	return f
}

// names returns the names of all alerts.
func (f file) names() (all []string) {
	for _, g := range f.Groups {
		for _, r := range g.Rules {
			all = append(all, r.Alert)
		}
	}
	return all
}

// hurried divides all times by 60, with a minimum of 10 s: on a busy machine some of the samples, one per second, are
// missing.
func (f file) hurried() file {
	GinkgoHelper()
	shorter := func(d string) string {
		GinkgoHelper()
		t, err := time.ParseDuration(d)
		Expect(err).NotTo(HaveOccurred())
		return fmt.Sprintf("%ds", int(max(t/60, 10*time.Second).Seconds()))
	}
	for _, g := range f.Groups {
		for i := range g.Rules {
			r := &g.Rules[i]
			r.Expr = regexp.MustCompile(`\[\w+\]`).ReplaceAllStringFunc(r.Expr, func(d string) string {
				return "[" + shorter(strings.Trim(d, "[]")) + "]"
			})
			if r.For != "" {
				r.For = shorter(r.For)
			}
		}
	}
	return f
}

func promtool(args ...string) {
	GinkgoHelper()
	if _, err := exec.LookPath("promtool"); err != nil {
		Skip("promtool is not installed (Debian's package: prometheus)")
	}
	out, err := exec.Command("promtool", args...).CombinedOutput()
	Expect(err).NotTo(HaveOccurred(), "%s", out)
}

var _ = Describe("alerts.yaml", func() {
	It("is accepted by promtool", func() {
		promtool("check", "rules", filepath.Join(deployed, "alerts.yaml"))
	})

	It("has alerts that fire only as testdata/alerts_test.yaml expects", func() {
		promtool("test", "rules", "testdata/alerts_test.yaml")
	})

	It("has tests of firing and of not firing for each alert", func() {
		text, err := os.ReadFile("testdata/alerts_test.yaml")
		Expect(err).NotTo(HaveOccurred())
		var tests struct {
			Tests []struct {
				Cases []struct {
					Alert  string `json:"alertname"`
					Alerts []any  `json:"exp_alerts"`
				} `json:"alert_rule_test"`
			} `json:"tests"`
		}
		Expect(yaml.Unmarshal(text, &tests)).To(Succeed())
		fires, silent := map[string]bool{}, map[string]bool{}
		for _, t := range tests.Tests {
			for _, c := range t.Cases {
				fires[c.Alert] = fires[c.Alert] || len(c.Alerts) > 0
				silent[c.Alert] = silent[c.Alert] || len(c.Alerts) == 0
			}
		}
		for _, name := range alerts().names() {
			Expect(fires[name]).To(BeTrue(), "%s: firing", name)
			Expect(silent[name]).To(BeTrue(), "%s: not firing", name)
		}
	})

	It("links each alert to its section of the runbook", func() {
		page, err := os.ReadFile("../../docs/runbook.md")
		Expect(err).NotTo(HaveOccurred())
		for _, g := range alerts().Groups {
			for _, r := range g.Rules {
				Expect(r.Annotations).To(HaveKeyWithValue("runbook_url", "https://github.com/usherproxy/usher/blob/main/docs/runbook.md#"+strings.ToLower(r.Alert)))
				Expect(string(page)).To(MatchRegexp(`(?m)^## ` + r.Alert + `$`))
			}
		}
	})
})
