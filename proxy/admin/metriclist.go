package admin

import "github.com/prometheus/client_golang/prometheus"

// metric is a metric whose value is read at each scrape.
type metric struct {
	name, help string
	kind       prometheus.ValueType
	labels     []string
	desc       *prometheus.Desc
}

// allMetrics holds the metrics below, in the order of the documentation.
var allMetrics []*metric

func counter(name, help string, labels ...string) *metric {
	return newMetric(prometheus.CounterValue, name, help, labels)
}

func gauge(name, help string, labels ...string) *metric {
	return newMetric(prometheus.GaugeValue, name, help, labels)
}

func newMetric(kind prometheus.ValueType, name, help string, labels []string) *metric {
	m := &metric{name: name, help: help, kind: kind, labels: labels, desc: prometheus.NewDesc(name, help, labels, nil)}
	allMetrics = append(allMetrics, m)
	return m
}

// send sends the metric's value for these label values.
func (m *metric) send(out chan<- prometheus.Metric, value float64, labels ...string) {
	out <- prometheus.MustNewConstMetric(m.desc, m.kind, value, labels...)
}

var (
	connectionsAccepted = counter("usher_connections_accepted_total", "Connections accepted from clients.")
	connectionsServed   = counter("usher_connections_established_total", "Connections that were connected to an endpoint.")
	connectionsClosed   = counter("usher_connections_closed_total", "Ended connections, by end code; see docs/reference.md.", "end")
	connectionsOpen     = gauge("usher_connections_open", "Open connections.")
	connectionsSaved    = gauge("usher_connections_saved", "Open TCP connections of which the keeper (--keeper) holds copies of both sockets; most of them survive a crash of usher.")
	connectionsLimit    = gauge("usher_connections_limit", "Maximum number of open connections.")
	connectionsFailed   = counter("usher_connections_failed_total", "Connections and UDP sessions that ended without an endpoint or were reset by it, except for those with the end code source-denied.")
	logsSuppressed      = counter("usher_connection_logs_suppressed_total", "Connections refused at once that are missing from trace and access log, which record ten of them per second.")
	associations        = counter("usher_sctp_associations_total", "SCTP associations accepted from clients; also counted as connections.")
	associationsOpen    = gauge("usher_sctp_associations_open", "Open SCTP associations.")
	attempts            = counter("usher_attempts_total", "Attempts to connect to an endpoint, by result.", "result")
	selections          = counter("usher_endpoint_selections_total", "Attempts to connect to an endpoint, by the reason for selecting it: the scheduler's, affinity, or quarantine.", "reason")
	sourceAddresses     = counter("usher_endpoint_source_address_total", "Connections and UDP sessions whose endpoint answered, by source address: client for the client's own address, or node- with the reason why it is the node's; see docs/services.md.", "source")
	retries             = counter("usher_retries_total", "Attempts after the first one of a connection or UDP session.")
	quarantines         = counter("usher_quarantines_total", "Endpoints put in quarantine after failures.")
	recoveries          = counter("usher_quarantine_recoveries_total", "Endpoints that recovered from quarantine.")
	probes              = counter("usher_probes_total", "Probes of endpoints in quarantine and of endpoints whose Services request probes, by result.", "result")
	lateProbes          = counter("usher_probes_late_total", "Probes requested by Services that started more than one interval late because a limit on probes was reached (per second, at once, or per namespace).")
	endpointsByState    = gauge("usher_endpoints", "Endpoints of service ports, by state.", "state")
	endpointsSince      = gauge("usher_endpoints_state_timestamp_seconds", "Earliest time since which an endpoint has been in that state; states that are failures are present only while an endpoint is in them.", "state")
	bytesMoved          = counter("usher_bytes_total", "Bytes transferred by ended connections and UDP sessions, by direction.", "to")
	udpSessionsBegun    = counter("usher_udp_sessions_total", "UDP sessions started.")
	udpSessionsAnswered = counter("usher_udp_sessions_answered_total", "UDP sessions in which an endpoint answered.")
	udpSessionsEnded    = counter("usher_udp_sessions_ended_total", "Ended UDP sessions, by end code; see docs/reference.md.", "end")
	udpSessionsOpen     = gauge("usher_udp_sessions_open", "Open UDP sessions.")
	udpSessionsLimit    = gauge("usher_udp_sessions_limit", "Maximum number of open UDP sessions.")
	udpDatagrams        = counter("usher_udp_datagrams_total", "UDP datagrams forwarded, by direction.", "to")
	udpDropped          = counter("usher_udp_datagrams_dropped_total", "UDP datagrams dropped, by reason.", "reason")
	services            = gauge("usher_services", "Services served.")
	servicePorts        = gauge("usher_service_ports", "Service ports served, counted per IP family.")
	listeners           = gauge("usher_listeners", "Open listeners.")
	affinityClients     = gauge("usher_affinity_clients", "Clients with session affinity.")
	affinityLimit       = gauge("usher_affinity_clients_limit", "Maximum number of clients with session affinity.")
	portProblems        = gauge("usher_service_port_problems", "Service ports with a problem, by reason.", "reason")
	apiServerFailing    = gauge("usher_api_server_failing", "1 while a list or watch of Services, EndpointSlices or Nodes fails, by reason; the last known state is served. None while all succeed.", "reason")
	portalRepairs       = counter("usher_portal_repairs_total", "Rules, routes and chains that were missing or changed in the kernel and were restored.")
	portalFailures      = counter("usher_portal_failures_total", "Failed changes in the kernel.")
	accessLines         = counter("usher_access_log_lines_total", "Lines written to the access log.")
	accessLost          = counter("usher_access_log_lost_total", "Lines missing from the access log.")
	subscribersNow      = gauge("usher_event_subscribers", "Current readers of /api/v1/events.")
	subscribersRefused  = counter("usher_event_subscribers_refused_total", "Readers of /api/v1/events refused because of too many readers.")
	restarts            = counter("usher_restarts_total", "Restarts of usher by its keeper after a crash.")
	dnsQueries          = counter("usher_dns_queries_total", "DNS queries answered (--dns), by query type and response code.", "type", "code")
	serviceAccepted     = counter("usher_service_connections_total", "Connections and UDP sessions from clients of a Service.", "namespace", "service")
	serviceFailed       = counter("usher_service_connections_failed_total", "Connections and UDP sessions that ended without an endpoint or were reset by it, except for those with the end code source-denied.", "namespace", "service")
	serviceRetries      = counter("usher_service_retries_total", "Attempts after the first one of a connection.", "namespace", "service")
	serviceOpen         = gauge("usher_service_connections_open", "Open connections and UDP sessions.", "namespace", "service")
	serviceQueue        = gauge("usher_service_queue_length", "Clients waiting in the queue for an endpoint with a free slot; also counted as open connections.", "namespace", "service")
	serviceBytes        = counter("usher_service_bytes_total", "Bytes transferred by ended connections and UDP sessions, by direction.", "namespace", "service", "to")
	serviceEnds         = counter("usher_service_connections_closed_total", "Ended connections and UDP sessions, by end code; see docs/reference.md. Only codes that occurred.", "namespace", "service", "end")
	serviceSince        = gauge("usher_service_state_timestamp_seconds", "Time at which the Service entered its current state.", "namespace", "service", "state")
	lastApplied         = gauge("kubeproxy_sync_proxy_rules_last_timestamp_seconds", "Time of the last successful update of the kernel.", "ip_family")
	lastQueued          = gauge("kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds", "Time of the last requested change.", "ip_family")
	serviceChanges      = counter("kubeproxy_sync_proxy_rules_service_changes_total", "Changes of Services.")
	endpointChanges     = counter("kubeproxy_sync_proxy_rules_endpoint_changes_total", "Endpoints added or removed.")
	servicesPending     = gauge("kubeproxy_sync_proxy_rules_service_changes_pending", "Changes not yet applied in the kernel.")
	endpointsPending    = gauge("kubeproxy_sync_proxy_rules_endpoint_changes_pending", "Changes not yet applied in the kernel.")
	restoreFailures     = counter("kubeproxy_sync_proxy_rules_iptables_restore_failures_total", "Failed changes in the kernel, with the iptables portal.", "ip_family")
	nftablesFailures    = counter("kubeproxy_sync_proxy_rules_nftables_sync_failures_total", "Failed changes in the kernel, with the nftables portal.", "ip_family")
	noLocalEndpoints    = gauge("kubeproxy_sync_proxy_rules_no_local_endpoints_total", "Service ports with policy Local that have endpoints, but none on this node.", "traffic_policy", "ip_family")
	healthzTotal        = counter("kubeproxy_proxy_healthz_total", "Responses of /healthz, by code.", "code")
	livezTotal          = counter("kubeproxy_proxy_livez_total", "Responses of /livez, by code.", "code")
)
