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
	"github.com/usherproxy/usher/proxy"
	"github.com/usherproxy/usher/proxy/accesslog"
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
	proxy                           *proxyCollector
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

// NewMetrics returns the metrics of p. h may be nil.
func NewMetrics(p *proxy.Proxy, h *Health, version string) *Metrics {
	m := &Metrics{
		Registry:   prometheus.NewRegistry(),
		sync:       prometheus.NewHistogramVec(syncOptions, []string{"ip_family"}),
		full:       prometheus.NewHistogramVec(fullOptions, []string{"ip_family"}),
		partial:    prometheus.NewHistogramVec(partialOptions, []string{"ip_family"}),
		programmed: prometheus.NewHistogramVec(programmedOptions, []string{"ip_family"}),
		requests:   prometheus.NewCounterVec(requestsOptions, requestsLabels),
		latency:    prometheus.NewHistogramVec(latencyOptions, latencyLabels),
		proxy:      &proxyCollector{proxy: p, health: h},
	}
	options := buildOptions
	options.ConstLabels = prometheus.Labels{"version": version, "portal": p.Portal.Mode()}
	build := prometheus.NewGauge(options)
	build.Set(1)
	m.Registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		m.sync, m.full, m.partial, m.programmed, m.requests, m.latency, build, m.proxy)
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
	proxy     *proxy.Proxy
	health    *Health                    // nil for none
	api       *API                       // nil for none
	accessLog *accesslog.Log             // nil for none
	queries   func() map[[2]string]int64 // name queries answered, by type and code; nil for none
	services  serviceSeries
}

// Watch adds the metrics of the API, of the access log and of answered name queries, by type and code; all
// but the first may be nil.
func (m *Metrics) Watch(a *API, l *accesslog.Log, queries func() map[[2]string]int64) {
	m.proxy.api, m.proxy.accessLog, m.proxy.queries = a, l, queries
}

// Describe implements prometheus.Collector. It describes nothing, since the labels are unknown until they
// occur; that makes the collector an unchecked one.
func (c *proxyCollector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c *proxyCollector) Collect(out chan<- prometheus.Metric) {
	tell := func(m *metric, value int64, labels ...string) { m.tell(out, float64(value), labels...) }
	s := c.proxy.Stats()
	tell(connectionsAccepted, s.Accepted)
	tell(connectionsServed, s.Established)
	for end, n := range s.Ends {
		tell(connectionsClosed, n, end.String())
	}
	tell(connectionsOpen, s.Open)
	tell(connectionsSaved, s.Saved)
	tell(connectionsLimit, s.Limit)
	tell(connectionsFailed, s.All.Failed)
	tell(logsSuppressed, s.Unlogged)
	tell(associations, s.Associations.Accepted)
	tell(associationsOpen, s.Associations.Open)
	for result, n := range s.Attempts {
		tell(attempts, n, conn.Result(result).String())
	}
	for reason, n := range s.Choices {
		tell(selections, n, reason.String())
	}
	number, below := s.QueueWaits.Buckets(latency.Queued)
	out <- prometheus.MustNewConstHistogram(queueWait, number, s.QueueWaits.Sum, below)
	for seen, n := range s.SourceAddress[1:] {
		tell(sourceAddresses, n, portal.SourceAddress(seen+1).String())
	}
	tell(retries, s.All.Retries)
	tell(quarantines, s.Quarantines)
	tell(recoveries, s.Recoveries)
	for result, n := range s.Probes {
		tell(probes, n, conn.Result(result).String())
	}
	tell(lateProbes, s.LateProbes)
	tell(bytesMoved, s.All.ToEndpoint, "endpoint")
	tell(bytesMoved, s.All.ToClient, "client")
	u := s.Sessions
	tell(udpSessionsBegun, u.Begun)
	tell(udpSessionsAnswered, u.Answered)
	for end, n := range u.Ends {
		tell(udpSessionsEnded, n, end.String())
	}
	tell(udpSessionsOpen, u.Open)
	tell(udpSessionsLimit, u.Limit)
	tell(udpDatagrams, u.ToEndpoint, "endpoint")
	tell(udpDatagrams, u.ToClient, "client")
	for reason, n := range u.Dropped {
		tell(udpDropped, n, frontend.Drop(reason).String())
	}
	tell(services, int64(s.Services))
	tell(servicePorts, int64(s.Ports))
	tell(listeners, s.Listeners)
	tell(affinityClients, s.AffinityClients)
	tell(affinityLimit, c.proxy.AffinityTotal)
	for reason, n := range s.Problems {
		tell(portProblems, int64(n), string(reason))
	}
	tell(portalRepairs, s.Repaired)
	tell(portalFailures, s.PortalFailures)
	tell(serviceChanges, s.ServiceChanges)
	tell(endpointChanges, s.EndpointChanges)
	tell(servicesPending, s.ServicesPending)
	tell(endpointsPending, s.EndpointsPending)
	status := c.proxy.SyncStatus()
	for family, n := range s.NoLocalEndpoints {
		tell(noLocalEndpoints, int64(n.Internal), "internal", family.String())
		tell(noLocalEndpoints, int64(n.External), "external", family.String())
		lastApplied.tell(out, seconds(status.Of(family).LastApplied), family.String())
		lastQueued.tell(out, seconds(status.LastQueued), family.String())
		switch c.proxy.Portal.Traits().KubeProxy {
		case "iptables":
			tell(restoreFailures, s.PortalFailures, family.String())
		case "nftables":
			tell(nftablesFailures, s.PortalFailures, family.String())
		}
	}
	c.services.collect(out, c.proxy, c.api)
	if c.api != nil {
		tell(subscribersNow, c.api.subscribers.now.Load())
		tell(subscribersRefused, c.api.subscribers.refused.Load())
	}
	if c.accessLog != nil {
		tell(accessLines, c.accessLog.Written())
		tell(accessLost, c.accessLog.Lost())
	}
	if c.queries != nil {
		for of, n := range c.queries() {
			tell(dnsQueries, n, of[0], of[1])
		}
	}
	if c.health != nil {
		if of := c.health.APIServer; of != nil {
			if reason := of().Reason; reason != "" {
				tell(apiServerFailing, 1, reason)
			}
		}
		if r := c.health.Restarts; r != nil {
			tell(restarts, int64(r.Count))
		} else {
			tell(restarts, 0)
		}
		tell(healthzTotal, c.health.healthz.ok.Load(), "200")
		tell(healthzTotal, c.health.healthz.unavailable.Load(), "503")
		tell(livezTotal, c.health.livez.ok.Load(), "200")
		tell(livezTotal, c.health.livez.unavailable.Load(), "503")
	}
}

// seconds returns t in Prometheus's form; 0 for the zero time.
func seconds(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.UnixNano()) / 1e9
}
