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
	for _, m := range allMetrics {
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

// metricsIntroduction is the beginning of docs/metrics.md.
const metricsIntroduction = `# Metrics

usher serves metrics for Prometheus at ` + "`/metrics`" + ` of ` + "`--admin-address`, " + `also those of Go and of the process
(` + "`go_*`, `process_*`" + `). [deploy/monitoring](../deploy/monitoring) has a dashboard for Grafana
and alert rules. ` + "`make generate`" + ` writes this page from the code.

Metrics that begin with ` + "`kubeproxy_`" + ` have the same meaning as kube-proxy's, so dashboards and alerts for
kube-proxy also work for usher. The same applies to ` + "`rest_client_*`, " + `about requests to the API server. usher applies
a change in both IP families at once: some metrics with the label ` + "`ip_family`" + ` have the same value for both.
[Codes and states](reference.md#how-connections-end) has the values of ` + "`end`" + `. ` + "`result`" + ` is connected, refused, no-answer or
failed; for probes also bad-status.

The number of series does not depend on the number of Services, except for
` + "`usher_service_*`" + `: at most 1,000 Services have these, each from its first connection on.
usher counts all others together, with ` + "`service=\"(others)\"`" + ` and no namespace; if one of these is deleted, the counters
go down. In the format OpenMetrics,
a histogram bucket has an exemplar if a connection in it failed, was retried or was slow: ` + "`connection`" + ` is the
ID for ` + "`usher get connection`" + `. Endpoints and clients have no series: see ` + "`/api/v1/services`" + ` and the access log.

| name | type | labels | description |
|---|---|---|---|
`
