package admin

import (
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/usherproxy/usher/proxy"
)

// Metrics are what /metrics tells of a proxy.
type Metrics struct {
	Registry   *prometheus.Registry
	sync       prometheus.Histogram
	programmed prometheus.Histogram
}

// NewMetrics returns the metrics of p. h may be nil.
func NewMetrics(p *proxy.Proxy, h *Health, version string) *Metrics {
	m := &Metrics{
		Registry: prometheus.NewRegistry(),
		sync: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "kubeproxy_sync_proxy_rules_duration_seconds",
			Help:    "How long it took to carry out a change: listeners and portal rules.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 15), // those of kube-proxy
		}),
	}
	m.programmed = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name:    "kubeproxy_network_programming_duration_seconds",
		Help:    "How long it took from a change of a Pod or Service until the endpoints that it led to were served.",
		Buckets: programmingBuckets,
	})
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "usher_build_info", Help: "1; the labels tell what runs.",
		ConstLabels: prometheus.Labels{"version": version, "portal": p.Portal.Mode()},
	})
	build.Set(1)
	m.Registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		m.sync, m.programmed, build, &proxyCollector{p, h})
	return m
}

// Synced notes how long a change took.
func (m *Metrics) Synced(took time.Duration) { m.sync.Observe(took.Seconds()) }

// Programmed notes how long ago the change was that has just been carried out.
func (m *Metrics) Programmed(took time.Duration) { m.programmed.Observe(took.Seconds()) }

// programmingBuckets are those of kube-proxy: 0.25 s, 0.5 s, 1 s to 59 s, 60 s to
// 115 s by 5 s, and 120 s to 300 s by 30 s.
var programmingBuckets = slices.Concat(
	prometheus.LinearBuckets(0.25, 0.25, 2),
	prometheus.LinearBuckets(1, 1, 59),
	prometheus.LinearBuckets(60, 5, 12),
	prometheus.LinearBuckets(120, 30, 7),
)

// proxyCollector reads a proxy's numbers when somebody asks for them.
type proxyCollector struct {
	proxy  *proxy.Proxy
	health *Health
}

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, labels, nil)
}

var (
	connectionsAccepted = desc("usher_connections_accepted_total", "Connections that clients have made.")
	connectionsServed   = desc("usher_connections_established_total", "Connections for which an endpoint was found.")
	connectionsClosed   = desc("usher_connections_closed_total", "Connections that have ended, by how: see docs/life-of-a-connection.md.", "end")
	connectionsOpen     = desc("usher_connections_open", "Connections that are open.")
	connectionsLimit    = desc("usher_connections_limit", "Connections that may be open at once.")
	attempts            = desc("usher_attempts_total", "Attempts to connect to an endpoint, by result.", "result")
	bytesMoved          = desc("usher_bytes_total", "Bytes of connections and UDP sessions that have ended, by direction.", "to")
	udpSessionsBegun    = desc("usher_udp_sessions_total", "UDP sessions that have begun.")
	udpSessionsAnswered = desc("usher_udp_sessions_answered_total", "UDP sessions in which an endpoint has answered.")
	udpSessionsEnded    = desc("usher_udp_sessions_ended_total", "UDP sessions that have ended, by how: see docs/life-of-a-connection.md.", "end")
	udpSessionsOpen     = desc("usher_udp_sessions_open", "UDP sessions that are open.")
	udpSessionsLimit    = desc("usher_udp_sessions_limit", "UDP sessions that may be open at once.")
	udpDatagrams        = desc("usher_udp_datagrams_total", "UDP datagrams that were passed on, by direction.", "to")
	udpDropped          = desc("usher_udp_datagrams_dropped_total", "UDP datagrams that were not passed on, by why.", "reason")
	services            = desc("usher_services", "Services that are served.")
	servicePorts        = desc("usher_service_ports", "Service ports that are served, each IP family by itself.")
	listeners           = desc("usher_listeners", "Listeners that are open.")
	affinityClients     = desc("usher_affinity_clients", "Clients that are remembered for session affinity.")
	portProblems        = desc("usher_service_port_problems", "Service ports that are not served as they should be, by reason.", "reason")
	portalRepairs       = desc("usher_portal_repairs_total", "Rules, routes and chains that were missing or changed in the kernel, and were put back.")
	portalFailures      = desc("usher_portal_failures_total", "Changes that could not be made in the kernel.")
	lastApplied         = desc("kubeproxy_sync_proxy_rules_last_timestamp_seconds", "When the kernel was last brought up to date.")
	lastQueued          = desc("kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds", "When a change was last wanted.")
	serviceChanges      = desc("kubeproxy_sync_proxy_rules_service_changes_total", "Services that were changed.")
	endpointChanges     = desc("kubeproxy_sync_proxy_rules_endpoint_changes_total", "Endpoints that came or went.")
	noLocalEndpoints    = desc("kubeproxy_sync_proxy_rules_no_local_endpoints_total", "Service ports with policy Local that have endpoints, but none on this node.", "traffic_policy")
	healthzTotal        = desc("kubeproxy_proxy_healthz_total", "Answers of /healthz, by code.", "code")
	livezTotal          = desc("kubeproxy_proxy_livez_total", "Answers of /livez, by code.", "code")
)

// Describe implements prometheus.Collector. It describes nothing, since which
// labels there are is known only when they come up; that makes the collector an
// unchecked one.
func (c *proxyCollector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c *proxyCollector) Collect(out chan<- prometheus.Metric) {
	counter := func(d *prometheus.Desc, value int64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(value), labels...)
	}
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	s := c.proxy.Stats()
	counter(connectionsAccepted, s.Accepted)
	counter(connectionsServed, s.Established)
	for end, n := range s.Ends {
		counter(connectionsClosed, n, string(end))
	}
	gauge(connectionsOpen, float64(s.Open))
	gauge(connectionsLimit, float64(s.Limit))
	for result, n := range s.Attempts {
		counter(attempts, n, proxy.AttemptResult(result).String())
	}
	counter(bytesMoved, s.ToEndpoint, "endpoint")
	counter(bytesMoved, s.ToClient, "client")
	u := s.Sessions
	counter(udpSessionsBegun, u.Begun)
	counter(udpSessionsAnswered, u.Answered)
	for end, n := range u.Ends {
		counter(udpSessionsEnded, n, string(end))
	}
	gauge(udpSessionsOpen, float64(u.Open))
	gauge(udpSessionsLimit, float64(u.Limit))
	counter(udpDatagrams, u.ToEndpoint, "endpoint")
	counter(udpDatagrams, u.ToClient, "client")
	for reason, n := range u.Dropped {
		counter(udpDropped, n, proxy.Drop(reason).String())
	}
	gauge(services, float64(s.Services))
	gauge(servicePorts, float64(s.Ports))
	gauge(listeners, float64(s.Listeners))
	gauge(affinityClients, float64(s.AffinityClients))
	for reason, n := range s.Problems {
		gauge(portProblems, float64(n), string(reason))
	}
	counter(portalRepairs, s.Repaired)
	counter(portalFailures, s.PortalFailures)
	counter(serviceChanges, s.ServiceChanges)
	counter(endpointChanges, s.EndpointChanges)
	gauge(noLocalEndpoints, float64(s.NoLocalEndpoints.Internal), "internal")
	gauge(noLocalEndpoints, float64(s.NoLocalEndpoints.External), "external")
	status := c.proxy.SyncStatus()
	gauge(lastApplied, seconds(status.LastApplied))
	gauge(lastQueued, seconds(status.LastQueued))
	if c.health != nil {
		counter(healthzTotal, c.health.healthz.ok.Load(), "200")
		counter(healthzTotal, c.health.healthz.unavailable.Load(), "503")
		counter(livezTotal, c.health.livez.ok.Load(), "200")
		counter(livezTotal, c.health.livez.unavailable.Load(), "503")
	}
}

// seconds returns t as Prometheus has it; 0 for no time.
func seconds(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.UnixNano()) / 1e9
}
