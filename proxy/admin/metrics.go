package admin

import (
	"context"
	"net/url"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/proxy/conn"
	"github.com/usherproxy/usher/proxy/frontend"
	"github.com/usherproxy/usher/proxy/latency"
)

// Metrics are the metrics of a proxy at /metrics.
type Metrics struct {
	Registry                        *prometheus.Registry
	sync, full, partial, programmed *prometheus.HistogramVec
	requests                        *prometheus.CounterVec
	latency                         *prometheus.HistogramVec
}

// families are the values of the label ip_family.
var families = []string{config.IPv4.String(), config.IPv6.String()}

var (
	syncOptions       = prometheus.HistogramOpts{Buckets: syncBuckets, Name: "kubeproxy_sync_proxy_rules_duration_seconds", Help: "Time to apply a change to listeners and portal rules, or to check everything."}
	fullOptions       = prometheus.HistogramOpts{Buckets: syncBuckets, Name: "kubeproxy_sync_full_proxy_rules_duration_seconds", Help: "Time to apply or check everything."}
	partialOptions    = prometheus.HistogramOpts{Buckets: syncBuckets, Name: "kubeproxy_sync_partial_proxy_rules_duration_seconds", Help: "Time to apply only changes."}
	programmedOptions = prometheus.HistogramOpts{Buckets: programmingBuckets, Name: "kubeproxy_network_programming_duration_seconds", Help: "Time from a change of a Pod or Service until the resulting endpoints were served."}
	requestsOptions   = prometheus.CounterOpts{Name: "rest_client_requests_total", Help: "Requests to the API server, by code."}
	requestsLabels    = []string{"code", "method", "host"}
	queueOptions      = prometheus.HistogramOpts{Name: "usher_queue_wait_seconds", Help: "Time that clients spent in the queue because no endpoint had a free slot; usher_connections_closed_total counts those that timed out (queue-timeout)."}
	queueWait         = prometheus.NewDesc(queueOptions.Name, queueOptions.Help, nil, nil)
	latencyOptions    = prometheus.HistogramOpts{
		Name:    "rest_client_request_duration_seconds",
		Help:    "Response time of the API server.",
		Buckets: []float64{0.005, 0.025, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60}, // those of kube-proxy
	}
	latencyLabels = []string{"verb", "host"}
	buildOptions  = prometheus.GaugeOpts{Name: "usher_build_info", Help: "Always 1; the labels describe the running build."}
)

// NewMetrics returns the metrics of a and of its proxy. queries returns the number of answered name queries, by type
// and code; it may be nil.
func NewMetrics(a *API, queries func() map[[2]string]int64) *Metrics {
	m := &Metrics{
		Registry:   prometheus.NewRegistry(),
		sync:       prometheus.NewHistogramVec(syncOptions, []string{"ip_family"}),
		full:       prometheus.NewHistogramVec(fullOptions, []string{"ip_family"}),
		partial:    prometheus.NewHistogramVec(partialOptions, []string{"ip_family"}),
		programmed: prometheus.NewHistogramVec(programmedOptions, []string{"ip_family"}),
		requests:   prometheus.NewCounterVec(requestsOptions, requestsLabels),
		latency:    prometheus.NewHistogramVec(latencyOptions, latencyLabels),
	}
	options := buildOptions
	options.ConstLabels = prometheus.Labels{"version": a.opts.Version, "portal": a.proxy.Portal.Mode()}
	build := prometheus.NewGauge(options)
	build.Set(1)
	m.Registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		m.sync, m.full, m.partial, m.programmed, m.requests, m.latency, build, &proxyCollector{api: a, queries: queries})
	for _, h := range []*prometheus.HistogramVec{m.sync, m.full, m.partial, m.programmed} {
		for _, family := range families {
			h.WithLabelValues(family) // present from the start, empty
		}
	}
	return m
}

// Synced records how long a change took; full is as in proxy.Options.OnSync.
func (m *Metrics) Synced(took time.Duration, full bool) {
	kind := m.partial
	if full {
		kind = m.full
	}
	observe(m.sync, took)
	observe(kind, took)
}

// Programmed records the age of a change that has just been carried out.
func (m *Metrics) Programmed(took time.Duration) { observe(m.programmed, took) }

func observe(h *prometheus.HistogramVec, took time.Duration) {
	for _, family := range families {
		h.WithLabelValues(family).Observe(took.Seconds())
	}
}

// Observe records how long a request to the API server took. With Increment, it implements client-go's
// metrics (tools/metrics).
func (m *Metrics) Observe(_ context.Context, verb string, to url.URL, took time.Duration) {
	m.latency.WithLabelValues(verb, to.Host).Observe(took.Seconds())
}

// Increment counts an answer of the API server with code.
func (m *Metrics) Increment(_ context.Context, code, method, host string) {
	m.requests.WithLabelValues(code, method, host).Inc()
}

// syncBuckets are those of kube-proxy.
var syncBuckets = prometheus.ExponentialBuckets(0.001, 2, 15)

// programmingBuckets are those of kube-proxy: 0.25 s, 0.5 s, 1 s to 59 s, 60 s to
// 115 s by 5 s, and 120 s to 300 s by 30 s.
var programmingBuckets = slices.Concat(
	prometheus.LinearBuckets(0.25, 0.25, 2),
	prometheus.LinearBuckets(1, 1, 59),
	prometheus.LinearBuckets(60, 5, 12),
	prometheus.LinearBuckets(120, 30, 7),
)

// proxyCollector reads a proxy's numbers at each scrape.
type proxyCollector struct {
	api      *API
	queries  func() map[[2]string]int64 // see NewMetrics
	services serviceSeries
}

// Describe implements prometheus.Collector. It describes nothing, so the Registry does not compare the metrics with
// descriptions (an unchecked collector).
func (c *proxyCollector) Describe(chan<- *prometheus.Desc) {}

func (c *proxyCollector) Collect(out chan<- prometheus.Metric) {
	send := func(m *metric, value int64, labels ...string) { m.send(out, float64(value), labels...) }
	p, health := c.api.proxy, c.api.opts.Health
	s := p.Stats()
	send(connectionsAccepted, s.Accepted)
	send(connectionsServed, s.Established)
	for end, n := range s.Ends {
		send(connectionsClosed, n, end.String())
	}
	send(connectionsOpen, s.Open)
	send(connectionsSaved, s.Saved)
	send(connectionsLimit, s.Limit)
	send(connectionsFailed, s.All.Failed)
	send(logsSuppressed, s.Unlogged)
	send(associations, s.Associations.Accepted)
	send(associationsOpen, s.Associations.Open)
	for result, n := range s.Attempts {
		send(attempts, n, conn.Result(result).String())
	}
	for reason, n := range s.Choices {
		send(selections, n, reason.String())
	}
	number, below := s.QueueWaits.Buckets(latency.Queued)
	out <- prometheus.MustNewConstHistogram(queueWait, number, s.QueueWaits.Sum, below)
	for seen, n := range s.SourceAddress[1:] {
		send(sourceAddresses, n, portal.SourceAddress(seen+1).String())
	}
	send(retries, s.All.Retries)
	send(quarantines, s.Quarantines)
	send(recoveries, s.Recoveries)
	for result, n := range s.Probes {
		send(probes, n, conn.Result(result).String())
	}
	send(lateProbes, s.LateProbes)
	send(bytesMoved, s.All.ToEndpoint, "endpoint")
	send(bytesMoved, s.All.ToClient, "client")
	u := s.Sessions
	send(udpSessionsBegun, u.Begun)
	send(udpSessionsAnswered, u.Answered)
	for end, n := range u.Ends {
		send(udpSessionsEnded, n, end.String())
	}
	send(udpSessionsOpen, u.Open)
	send(udpSessionsLimit, u.Limit)
	send(udpDatagrams, u.ToEndpoint, "endpoint")
	send(udpDatagrams, u.ToClient, "client")
	for reason, n := range u.Dropped {
		send(udpDropped, n, frontend.Drop(reason).String())
	}
	send(services, int64(s.Services))
	send(servicePorts, int64(s.Ports))
	send(listeners, s.Listeners)
	send(affinityClients, s.AffinityClients)
	send(affinityLimit, p.AffinityTotal)
	for reason, n := range s.Problems {
		send(portProblems, int64(n), string(reason))
	}
	send(portalRepairs, s.Repaired)
	send(portalFailures, s.PortalFailures)
	send(serviceChanges, s.ServiceChanges)
	send(endpointChanges, s.EndpointChanges)
	send(servicesPending, s.ServicesPending)
	send(endpointsPending, s.EndpointsPending)
	status := p.SyncStatus()
	for family, n := range s.NoLocalEndpoints {
		send(noLocalEndpoints, int64(n.Internal), "internal", family.String())
		send(noLocalEndpoints, int64(n.External), "external", family.String())
		lastApplied.send(out, seconds(status.Of(family).LastApplied), family.String())
		lastQueued.send(out, seconds(status.LastQueued), family.String())
		switch p.Portal.Traits().KubeProxy {
		case "iptables":
			send(restoreFailures, s.PortalFailures, family.String())
		case "nftables":
			send(nftablesFailures, s.PortalFailures, family.String())
		}
	}
	c.services.collect(out, c.api)
	send(subscribersNow, c.api.subscribers.now.Load())
	send(subscribersRefused, c.api.subscribers.refused.Load())
	if l := c.api.opts.AccessLog; l != nil {
		send(accessLines, l.Written())
		send(accessLost, l.Lost())
	}
	if c.queries != nil {
		for of, n := range c.queries() {
			send(dnsQueries, n, of[0], of[1])
		}
	}
	if of := health.APIServer; of != nil {
		if reason := of().Reason; reason != "" {
			send(apiServerFailing, 1, reason)
		}
	}
	if r := health.Restarts; r != nil {
		send(restarts, int64(r.Count))
	} else {
		send(restarts, 0)
	}
	send(healthzTotal, health.healthz.ok.Load(), "200")
	send(healthzTotal, health.healthz.unavailable.Load(), "503")
	send(livezTotal, health.livez.ok.Load(), "200")
	send(livezTotal, health.livez.unavailable.Load(), "503")
}

// seconds returns t in Prometheus's form; 0 for the zero time.
func seconds(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.UnixNano()) / 1e9
}
