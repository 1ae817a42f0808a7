package admin

import (
	"fmt"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

// MetricsDocumentation returns docs/metrics.md.
func MetricsDocumentation() string {
	var b strings.Builder
	b.WriteString(metricsIntroduction)
	row := func(name, kind string, labels []string, help string) {
		text := "-"
		if len(labels) > 0 {
			text = "`" + strings.Join(labels, "`, `") + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", name, kind, text, help)
	}
	kinds := map[prometheus.ValueType]string{prometheus.CounterValue: "counter", prometheus.GaugeValue: "gauge"}
	for _, m := range told {
		row(m.name, kinds[m.kind], m.labels, m.help)
	}
	for _, h := range serviceHistograms {
		row(h.name, "histogram", h.labels, h.help)
	}
	for _, o := range []prometheus.HistogramOpts{syncOptions, fullOptions, partialOptions, programmedOptions} {
		row(o.Name, "histogram", []string{"ip_family"}, o.Help)
	}
	row(requestsOptions.Name, "counter", requestsLabels, requestsOptions.Help)
	row(queueOptions.Name, "histogram", nil, queueOptions.Help)
	row(latencyOptions.Name, "histogram", latencyLabels, latencyOptions.Help)
	row(buildOptions.Name, "gauge", []string{"version", "portal"}, buildOptions.Help)
	return b.String()
}

// metricsIntroduction is what docs/metrics.md begins with.
const metricsIntroduction = `# Metrics

usher serves metrics for Prometheus at ` + "`/metrics`" + ` of ` + "`--admin-address`" + `. This page is made
from the code (` + "`make generate`" + `). Besides these there are those of Go and of the process
(` + "`go_*`, `process_*`" + `). [deploy/monitoring](../deploy/monitoring) has a dashboard for Grafana
and alert rules that use them.

Names that begin with ` + "`kubeproxy_`" + ` mean the same as kube-proxy's, so that what watches
kube-proxy can watch usher; so do ` + "`rest_client_*`" + `, about requests to the API server. usher carries
out a change in both IP families at once: what has the label ` + "`ip_family`" + ` and no number of its own is told
for each of them. The values of ` + "`end`" + ` are in
[Codes and states](reference.md#how-connections-end). ` + "`result`" + ` is connected, refused, no-answer or
failed.

How many series there are does not depend on how many Services there are, but for
` + "`usher_service_*`" + `: a Service has them from its first connection on, and at most 1,000 Services do.
Those beyond that are counted together, with ` + "`service=\"(others)\"`" + ` and no namespace. Their
histograms have an exemplar, in the format OpenMetrics, for each bucket in which there was a connection that
failed, was retried or slow: ` + "`connection`" + ` is its number, for ` + "`usher get connection`" + `. There are no
series for endpoints or clients: ` + "`/api/v1/services`" + ` and the access log tell about those.

| name | type | labels | what it tells |
|---|---|---|---|
`
