package admin

import "github.com/prometheus/client_golang/prometheus"

// metric is a metric whose value is looked up when somebody asks for it.
type metric struct {
	name, help string
	kind       prometheus.ValueType
	labels     []string
	desc       *prometheus.Desc
}

// told are all of them, in the order of the documentation.
var told []*metric

func counter(name, help string, labels ...string) *metric {
	return newMetric(prometheus.CounterValue, name, help, labels)
}

func gauge(name, help string, labels ...string) *metric {
	return newMetric(prometheus.GaugeValue, name, help, labels)
}

func newMetric(kind prometheus.ValueType, name, help string, labels []string) *metric {
	m := &metric{name: name, help: help, kind: kind, labels: labels, desc: prometheus.NewDesc(name, help, labels, nil)}
	told = append(told, m)
	return m
}

// tell sends the value that the metric has with these values of its labels.
func (m *metric) tell(out chan<- prometheus.Metric, value float64, labels ...string) {
	out <- prometheus.MustNewConstMetric(m.desc, m.kind, value, labels...)
}

var (
	connectionsAccepted = counter("usher_connections_accepted_total", "Connections that clients have made.")
	connectionsServed   = counter("usher_connections_established_total", "Connections for which an endpoint was found.")
	connectionsClosed   = counter("usher_connections_closed_total", "Connections that have ended, by how: see docs/reference.md.", "end")
	connectionsOpen     = gauge("usher_connections_open", "Connections that are open.")
	connectionsSaved    = gauge("usher_connections_saved", "Open TCP connections that survive a crash of usher: its keeper (--keeper) has copies of their sockets.")
	connectionsLimit    = gauge("usher_connections_limit", "Connections that may be open at once.")
	connectionsFailed   = counter("usher_connections_failed_total", "Connections and UDP sessions that ended without an endpoint, or were broken by it.")
	logsSuppressed      = counter("usher_connection_logs_suppressed_total", "Connections that were refused at once and are neither in the trace nor in the access log, which tell ten such a second.")
	associations        = counter("usher_sctp_associations_total", "SCTP associations that clients have made; they count as connections too.")
	associationsOpen    = gauge("usher_sctp_associations_open", "SCTP associations that are open.")
	attempts            = counter("usher_attempts_total", "Attempts to connect to an endpoint, by result.", "result")
	selections          = counter("usher_endpoint_selections_total", "Attempts to connect to an endpoint, by why that one was chosen: the scheduler's reason, affinity, or quarantine.", "reason")
	sourceAddresses     = counter("usher_endpoint_source_address_total", "Connections and UDP sessions whose endpoint answered, by whom it sees: client, its client's own address, or node- and why it is the node's: see docs/services.md.", "source")
	retries             = counter("usher_retries_total", "Attempts after a connection's, or UDP session's, first.")
	quarantines         = counter("usher_quarantines_total", "Endpoints that failed and went into quarantine.")
	recoveries          = counter("usher_quarantine_recoveries_total", "Endpoints that answered again after a quarantine.")
	probes              = counter("usher_probes_total", "Probes of endpoints, those in quarantine and those whose Services ask for it, by result.", "result")
	lateProbes          = counter("usher_probes_late_total", "Probes for which Services ask that began more than their interval late, since more were asked for than are made.")
	endpointsByState    = gauge("usher_endpoints", "Endpoints of service ports, by state.", "state")
	endpointsSince      = gauge("usher_endpoints_state_timestamp_seconds", "Since when the endpoint that has been in that state for longest is in it; of states that are failures, while there is such an endpoint.", "state")
	bytesMoved          = counter("usher_bytes_total", "Bytes of connections and UDP sessions that have ended, by direction.", "to")
	udpSessionsBegun    = counter("usher_udp_sessions_total", "UDP sessions that have begun.")
	udpSessionsAnswered = counter("usher_udp_sessions_answered_total", "UDP sessions in which an endpoint has answered.")
	udpSessionsEnded    = counter("usher_udp_sessions_ended_total", "UDP sessions that have ended, by how: see docs/reference.md.", "end")
	udpSessionsOpen     = gauge("usher_udp_sessions_open", "UDP sessions that are open.")
	udpSessionsLimit    = gauge("usher_udp_sessions_limit", "UDP sessions that may be open at once.")
	udpDatagrams        = counter("usher_udp_datagrams_total", "UDP datagrams that were passed on, by direction.", "to")
	udpDropped          = counter("usher_udp_datagrams_dropped_total", "UDP datagrams that were not passed on, by why.", "reason")
	services            = gauge("usher_services", "Services that are served.")
	servicePorts        = gauge("usher_service_ports", "Service ports that are served, each IP family by itself.")
	listeners           = gauge("usher_listeners", "Listeners that are open.")
	affinityClients     = gauge("usher_affinity_clients", "Clients that are remembered for session affinity.")
	affinityLimit       = gauge("usher_affinity_clients_limit", "Clients that may be remembered for session affinity.")
	portProblems        = gauge("usher_service_port_problems", "Service ports that are not served as they should be, by reason.", "reason")
	apiServerFailing    = gauge("usher_api_server_failing", "1 while a list or watch of Services, EndpointSlices or Nodes fails, by reason; the last known state is served. None while all succeed.", "reason")
	portalRepairs       = counter("usher_portal_repairs_total", "Rules, routes and chains that were missing or changed in the kernel, and were put back.")
	portalFailures      = counter("usher_portal_failures_total", "Changes that could not be made in the kernel.")
	accessLines         = counter("usher_access_log_lines_total", "Lines that were written to the access log.")
	accessLost          = counter("usher_access_log_lost_total", "Lines that are missing in the access log.")
	subscribersNow      = gauge("usher_event_subscribers", "Who reads /api/v1/events now.")
	subscribersRefused  = counter("usher_event_subscribers_refused_total", "Who wanted to read /api/v1/events, and could not since there were too many.")
	restarts            = counter("usher_restarts_total", "How often usher has ended unexpectedly, and was started again by its keeper.")
	dnsQueries          = counter("usher_dns_queries_total", "DNS queries that were answered (--dns), by the type that was asked for and the code of the answer.", "type", "code")
	serviceAccepted     = counter("usher_service_connections_total", "Connections and UDP sessions that clients of a Service have made.", "namespace", "service")
	serviceFailed       = counter("usher_service_connections_failed_total", "Those that ended without an endpoint, or were broken by it.", "namespace", "service")
	serviceRetries      = counter("usher_service_retries_total", "Attempts after a connection's first.", "namespace", "service")
	serviceOpen         = gauge("usher_service_connections_open", "Connections and UDP sessions that are open.", "namespace", "service")
	serviceQueue        = gauge("usher_service_queue_length", "Clients that wait in line until an endpoint has room: they are among the connections that are open.", "namespace", "service")
	serviceBytes        = counter("usher_service_bytes_total", "Bytes of those that have ended, by direction.", "namespace", "service", "to")
	serviceEnds         = counter("usher_service_connections_closed_total", "Those that have ended, by how: see docs/reference.md. Only ends that there were.", "namespace", "service", "end")
	serviceSince        = gauge("usher_service_state_timestamp_seconds", "When the Service came into the state that it is in.", "namespace", "service", "state")
	lastApplied         = gauge("kubeproxy_sync_proxy_rules_last_timestamp_seconds", "When the kernel was last brought up to date.", "ip_family")
	lastQueued          = gauge("kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds", "When a change was last wanted.", "ip_family")
	serviceChanges      = counter("kubeproxy_sync_proxy_rules_service_changes_total", "Services that were changed.")
	endpointChanges     = counter("kubeproxy_sync_proxy_rules_endpoint_changes_total", "Endpoints that came or went.")
	servicesPending     = gauge("kubeproxy_sync_proxy_rules_service_changes_pending", "Of those, how many the kernel has not taken yet.")
	endpointsPending    = gauge("kubeproxy_sync_proxy_rules_endpoint_changes_pending", "Of those, how many the kernel has not taken yet.")
	restoreFailures     = counter("kubeproxy_sync_proxy_rules_iptables_restore_failures_total", "Changes that could not be made in the kernel, with the portal iptables.", "ip_family")
	nftablesFailures    = counter("kubeproxy_sync_proxy_rules_nftables_sync_failures_total", "Changes that could not be made in the kernel, with the portal nftables.", "ip_family")
	noLocalEndpoints    = gauge("kubeproxy_sync_proxy_rules_no_local_endpoints_total", "Service ports with policy Local that have endpoints, but none on this node.", "traffic_policy", "ip_family")
	healthzTotal        = counter("kubeproxy_proxy_healthz_total", "Answers of /healthz, by code.", "code")
	livezTotal          = counter("kubeproxy_proxy_livez_total", "Answers of /livez, by code.", "code")
)
