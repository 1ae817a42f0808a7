package api

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// ServiceList is a page of Services, sorted by namespace and name unless the parameter sort selects another
// order.
type ServiceList struct {
	Page
	Items []Service `json:"items"`
}

// ServiceState is the state of a Service.
type ServiceState string

// The states of a Service, best first.
const (
	ServiceOK                       ServiceState = "ok"                          // it is served, and every endpoint is ready
	ServiceNoLocalEndpointsExternal ServiceState = "no-local-endpoints-external" // clients from outside are dropped or refused here, and must connect to another node: see Dropped
	ServiceDegraded                 ServiceState = "degraded"                    // some endpoint is an outlier, unresponsive, in quarantine, terminating or not ready
	ServiceDown                     ServiceState = "down"                        // every usable endpoint is in quarantine
	ServiceNoLocalEndpoints         ServiceState = "no-local-endpoints"          // clients of a cluster IP are dropped or refused: see Dropped
	ServiceNoEndpoints              ServiceState = "no-endpoints"                // some port has no usable endpoint
	ServiceProblem                  ServiceState = "problem"                     // some port is not served as configured: see Problem
	ServiceRejected                 ServiceState = "rejected"                    // it is not served at all: see Service.Problems
)

// ServiceStates are all states, best first.
var ServiceStates = []ServiceState{ServiceOK, ServiceNoLocalEndpointsExternal, ServiceDegraded, ServiceDown, ServiceNoLocalEndpoints, ServiceNoEndpoints, ServiceProblem, ServiceRejected}

// Badness is the index of a state in ServiceStates. An unknown state of a later version is worse than all.
func (s ServiceState) Badness() int { return place(ServiceStates, s) }

func place[S comparable](all []S, s S) int {
	if i := slices.Index(all, s); i >= 0 {
		return i
	}
	return len(all)
}

// Service is the summary of one Service.
type Service struct {
	Namespace string       `json:"namespace"`
	Name      string       `json:"name"`
	State     ServiceState `json:"state"`
	// Since is when it entered that state, as far as usher knows. usher checks every 5 s, or less often if it has
	// more than 250 Services. It knows nothing from before its start.
	Since time.Time `json:"since"`
	// Trouble names the endpoints, or lack of endpoints, that make State worse than ok; left out if Problems or Ports
	// have the reason.
	Trouble   string         `json:"trouble,omitempty"`
	Ports     []PortSummary  `json:"ports"`
	Endpoints EndpointCounts `json:"endpoints"`
	// AffinitySeconds is the timeout of the ports' session affinity; left out if there is none.
	AffinitySeconds float64 `json:"affinitySeconds,omitempty"`
	Totals          Totals  `json:"totals"`
	// Ends counts ended connections and UDP sessions by how they ended, since the start of usher; left out if
	// there are none.
	Ends map[string]int64 `json:"ends,omitempty"`
	// Latency is left out if there was no recent connection.
	Latency *Latency `json:"latency,omitempty"`
	// Problems are errors and doubtful settings in the Service's objects; left out if there are none. usher does
	// not serve parts with errors. If a manifest is rejected, its last good version is served, if there was one.
	Problems []Problem `json:"problems,omitempty"`
}

// Latency is how long clients waited in the last 5 to 10 minutes, in milliseconds: half of them (P50), and all but one
// in a hundred (P99), waited no longer. The times begin when the client was accepted; those of an endpoint begin with
// the attempt at it.
type Latency struct {
	// Clients is the number of established connections.
	Clients uint64 `json:"clients"`
	// Connect is the time until they were established.
	ConnectP50Ms float64 `json:"connectP50Ms"`
	ConnectP99Ms float64 `json:"connectP99Ms"`
	// FirstByte is the time until the endpoint's first byte for them; 0 if there was none.
	FirstByteP50Ms float64 `json:"firstByteP50Ms"`
	FirstByteP99Ms float64 `json:"firstByteP99Ms"`
}

// PortSummary is the summary of a service port. Each IP family has its own.
type PortSummary struct {
	// Name is left out for a service port without a name.
	Name     string `json:"name,omitempty"`
	Family   string `json:"family"`   // IPv4 or IPv6
	Protocol string `json:"protocol"` // TCP, UDP or SCTP
	// VIP is the first of the VIPs: the cluster IP.
	VIP string `json:"vip"`
	// Listener is the first of the addresses that usher listens on for it; left out while there is none.
	Listener string `json:"listener,omitempty"`
	// Settings are the values that apply to its connections, by the names of the annotations without usher.io/
	// (docs/services.md), such as "scheduler": "rr". Left out are limits and times that are 0, and "access-log" if its
	// clients are not logged.
	Settings map[string]string `json:"settings"`
	// ProxyProtocol is left out if no PROXY protocol headers are sent to endpoints or accepted from load
	// balancers.
	ProxyProtocol *ProxyProtocol `json:"proxyProtocol,omitempty"`
	// Source is client if endpoints see their clients' own addresses wherever the answers return through this
	// node. Otherwise all see this node's, and Source has the reason.
	Sees
	// Topology is left out if the location of endpoints does not matter.
	Topology *Topology `json:"topology,omitempty"`
	// Dropped are the clients that are not served, since the policy for them is Local and no usable endpoint is
	// on this node; left out if there are none.
	Dropped []Dropped `json:"dropped,omitempty"`
	// Problem is left out if the port is served as configured.
	Problem *Problem `json:"problem,omitempty"`
}

// Dropped are clients that are not served here. The portals iptables and nftables drop their packets; with address and
// none, which cannot drop packets, they are refused.
type Dropped struct {
	// Clients is internal (of cluster IPs) or external (from outside; clients on this node are served
	// anyway).
	Clients string `json:"clients"`
	// Text is the reason.
	Text string `json:"text"`
}

// ProxyProtocol is between which parties PROXY protocol headers name the client.
type ProxyProtocol struct {
	// ToEndpoints is the version of the headers that endpoints get: v1 or v2; left out if they get none.
	ToEndpoints string `json:"toEndpoints,omitempty"`
	// From are the networks of load balancers whose connections begin with a header, to VIPs that are not
	// cluster IPs; left out if there are none.
	From []string `json:"from,omitempty"`
}

// Topology is how endpoints are selected from those of all nodes.
type Topology struct {
	// Keys are the topology keys of the Service; left out if the hints of its EndpointSlices decide.
	Keys []string `json:"keys,omitempty"`
	// Key is the node label that decided, the first of Keys that left an endpoint; left out if none did.
	// Value is this node's; left out for the key *.
	Key   string `json:"key,omitempty"`
	Value string `json:"value,omitempty"`
	// Text describes the selection.
	Text string `json:"text"`
}

// EndpointCounts counts endpoints, each address and port once.
type EndpointCounts struct {
	Total        int `json:"total"`
	Ready        int `json:"ready"`
	Outlier      int `json:"outlier"`
	Unresponsive int `json:"unresponsive"`
	Quarantined  int `json:"quarantined"`
	Terminating  int `json:"terminating"`
	NotReady     int `json:"notReady"`
}

// Totals are counts. All but Active and Queued only grow, so two answers give a rate.
type Totals struct {
	// Active is the number of open connections and UDP sessions.
	Active int64 `json:"active"`
	// Queued is how many of those have no endpoint yet because all are full: they wait in the queue.
	Queued int64 `json:"queued"`
	// Accepted is the number of clients that have connected.
	Accepted int64 `json:"accepted"`
	// Established is the number of those that got an endpoint.
	Established int64 `json:"established"`
	// Failed is the number that ended without one, or were reset by it, except for those with the end source-denied.
	Failed int64 `json:"failed"`
	// Attempts is the number of ended attempts to connect to an endpoint, AttemptsFailed the number of failed
	// ones. Retries are the attempts after a connection's first.
	Attempts       int64 `json:"attempts"`
	AttemptsFailed int64 `json:"attemptsFailed"`
	Retries        int64 `json:"retries"`
	// BytesToEndpoint and BytesToClient are the bytes moved so far, also by open connections.
	BytesToEndpoint int64 `json:"bytesToEndpoint"`
	BytesToClient   int64 `json:"bytesToClient"`
}

// Plus adds the counts of another Service, or of the same one on another node.
func (t Totals) Plus(o Totals) Totals {
	return Totals{
		Active: t.Active + o.Active, Queued: t.Queued + o.Queued, Accepted: t.Accepted + o.Accepted, Established: t.Established + o.Established, Failed: t.Failed + o.Failed,
		Attempts: t.Attempts + o.Attempts, AttemptsFailed: t.AttemptsFailed + o.AttemptsFailed, Retries: t.Retries + o.Retries,
		BytesToEndpoint: t.BytesToEndpoint + o.BytesToEndpoint, BytesToClient: t.BytesToClient + o.BytesToClient,
	}
}

// Problem is the reason that a service port is not served as configured.
type Problem struct {
	// Reason is one word, as in Kubernetes Events: AddressConflict,
	// ListenFailed, …
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

// ServiceDetail has all details of one Service.
type ServiceDetail struct {
	Service
	Details []ServicePort `json:"details"`
}

// ServicePort has all details of one service port in one IP family.
type ServicePort struct {
	PortSummary
	AppProtocol string `json:"appProtocol,omitempty"`
	VIPs        []VIP  `json:"vips"`
	// Listeners are the addresses that usher listens on for it.
	Listeners []string `json:"listeners"`
	// Rules are the rules that the portal was given for it; /api/v1/portals has their state in the kernel.
	Rules    []PortalRule `json:"rules"`
	Policies Policies     `json:"policies"`
	// Endpoints are all endpoints, usable or not, sorted by address.
	Endpoints []Endpoint `json:"endpoints"`
	Totals    Totals     `json:"totals"`
	// Ends and Latency are as those of the Service.
	Ends    map[string]int64 `json:"ends,omitempty"`
	Latency *Latency         `json:"latency,omitempty"`
}

// VIP is an address that clients use for a service port.
type VIP struct {
	// Kind is ClusterIP, NodePort, ExternalIP or LoadBalancerIP.
	Kind string `json:"kind"`
	// Address is "address:port"; for a node port the address is 0.0.0.0 or [::],
	// which stands for every address of the node.
	Address string `json:"address"`
	// Sources are the only networks that may connect; left out if all may.
	Sources []string `json:"sources,omitempty"`
}

// Policies determine which clients may use which endpoints.
type Policies struct {
	// Internal and External are Cluster or Local: the traffic policies for
	// clients of cluster IPs and for those from outside.
	Internal string `json:"internal"`
	External string `json:"external"`
	// AffinitySeconds is how long a client keeps its endpoint after its last new connection; left out if
	// there is no session affinity.
	AffinitySeconds float64 `json:"affinitySeconds,omitempty"`
}

// EndpointState is whether new connections go to an endpoint.
type EndpointState string

// The states of an endpoint. Of several that apply, quarantined has precedence.
const (
	EndpointReady        EndpointState = "ready"        // it is in rotation
	EndpointOutlier      EndpointState = "outlier"      // it is in rotation, but broke most of the connections that ended last, or 2% of those of the last 5 to 10 minutes
	EndpointUnresponsive EndpointState = "unresponsive" // it is in rotation, but in the last 5 to 10 minutes no client got a byte from it, or far more of its clients left without one than of the other endpoints; others of its port answered
	EndpointQuarantined  EndpointState = "quarantined"  // it failed, and is skipped while there is another one
	EndpointTerminating  EndpointState = "terminating"  // its Pod is ending; used only if none is ready
	EndpointNotReady     EndpointState = "not-ready"    // it is not used
)

// EndpointStates are all states, best first.
var EndpointStates = []EndpointState{EndpointReady, EndpointOutlier, EndpointTerminating, EndpointNotReady, EndpointUnresponsive, EndpointQuarantined}

// Failing reports whether connections to the endpoint are known to fail.
func (s EndpointState) Failing() bool {
	return s == EndpointOutlier || s == EndpointUnresponsive || s == EndpointQuarantined
}

// Badness is the index of a state in EndpointStates, as ServiceState.Badness is in ServiceStates.
func (s EndpointState) Badness() int { return place(EndpointStates, s) }

// Endpoint is one endpoint of a service port.
type Endpoint struct {
	Address string        `json:"address"`
	Pod     string        `json:"pod,omitempty"`
	Node    string        `json:"node,omitempty"`
	Zone    string        `json:"zone,omitempty"`
	State   EndpointState `json:"state"`
	// Since is as that of a Service; for quarantined it is exact.
	Since time.Time `json:"since"`
	// Weight is its relative number of connections; 0: no new ones.
	Weight int `json:"weight"`
	// Share is the part of its full share of new connections that it has while it is new (slow start); left
	// out if it has all.
	Share float64 `json:"share,omitempty"`

	// Conditions, as EndpointSlice has them.
	Ready       bool `json:"ready"`
	Serving     bool `json:"serving"`
	Terminating bool `json:"terminating"`

	// UsedFor lists whose connections may go to it: internal (clients of cluster IPs), external (clients from
	// outside), node (clients on this node). It is empty if the endpoint is not usable, or if policies and
	// topology hints leave it to other nodes.
	UsedFor []string `json:"usedFor"`
	// NotUsed is the reason that it gets no connections, or none from some clients; left out if it gets those of
	// all clients. Quarantine is not a reason: it is temporary.
	NotUsed string `json:"notUsed,omitempty"`

	// Quarantine is left out if it is not in quarantine.
	Quarantine *Quarantine `json:"quarantine,omitempty"`

	// Active is the number of open connections, including attempts in progress, Limit the maximum, left out
	// if there is none. Connected is the total number of connections. Failed is the number of attempts that
	// failed and of connections that it broke. NoResponse is the number of connections that ended as
	// no-response, which is not a failure. FailedRecently and NoResponseRecently are the numbers in the last 5 to
	// 10 minutes, the time of Latency; left out if 0.
	Active             int64 `json:"active"`
	Limit              int   `json:"limit,omitempty"`
	Connected          int64 `json:"connected"`
	Failed             int64 `json:"failed"`
	FailedRecently     int64 `json:"failedRecently,omitempty"`
	NoResponse         int64 `json:"noResponse,omitempty"`
	NoResponseRecently int64 `json:"noResponseRecently,omitempty"`
	// WaitingLong is the number of open connections that have sent data and received none for 10 s; only set if
	// State is unresponsive.
	WaitingLong     int64 `json:"waitingLong,omitempty"`
	BytesToEndpoint int64 `json:"bytesToEndpoint"`
	BytesToClient   int64 `json:"bytesToClient"`
	// Latency is left out if it had no recent connection.
	Latency *Latency `json:"latency,omitempty"`
}

// Quarantine is a time in which an endpoint is skipped.
type Quarantine struct {
	// Until is when it ends or, if Probed is set, when the next probe is due; SecondsLeft is the time until
	// then.
	Until       time.Time `json:"until"`
	SecondsLeft float64   `json:"secondsLeft"`
	// Probed means that usher probes the endpoint, and that the quarantine ends when a probe succeeds, or as
	// many as the Service asks for. Otherwise a client's attempt tests the endpoint.
	Probed bool `json:"probed,omitempty"`
	// Failures is the number of failed attempts and probes, with no client connected in between; for probes
	// that the Service asks for, with the endpoint not healthy in between.
	Failures int `json:"failures"`
	// Cause is the last failure: "connection refused", "no answer", "3 probes failed: HTTP status 503", …
	Cause string `json:"cause"`
}

// Count describes Failures for display. They need not be consecutive: a probe may have succeeded in between.
func (q *Quarantine) Count() string {
	switch {
	case q.Failures == 1:
		return "1 failure"
	case strings.Contains(q.Cause, " probes failed: "):
		return fmt.Sprintf("%d failed probes, not healthy in between", q.Failures)
	}
	return fmt.Sprintf("%d failures, with no client connected in between", q.Failures)
}
