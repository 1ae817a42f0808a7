package api

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// ServiceList is a page of Services, sorted by namespace and name unless the
// parameter sort says otherwise.
type ServiceList struct {
	Page
	Items []Service `json:"items"`
}

// ServiceState says how a Service fares.
type ServiceState string

// The states of a Service, the best first.
const (
	ServiceOK                       ServiceState = "ok"                          // it is served, and every endpoint is ready
	ServiceNoLocalEndpointsExternal ServiceState = "no-local-endpoints-external" // clients from outside are dropped here, and have to come by another node: see Dropped
	ServiceDegraded                 ServiceState = "degraded"                    // some endpoint is an outlier, unresponsive, in quarantine, terminating or not ready
	ServiceDown                     ServiceState = "down"                        // every endpoint that could be used is in quarantine
	ServiceNoLocalEndpoints         ServiceState = "no-local-endpoints"          // clients of a cluster IP are dropped: see Dropped
	ServiceNoEndpoints              ServiceState = "no-endpoints"                // there is no endpoint to use for some port
	ServiceProblem                  ServiceState = "problem"                     // some port is not served as it should be: see Problem
	ServiceRejected                 ServiceState = "rejected"                    // it is not served at all: see Service.Problems
)

// ServiceStates are all there are, the best first.
var ServiceStates = []ServiceState{ServiceOK, ServiceNoLocalEndpointsExternal, ServiceDegraded, ServiceDown, ServiceNoLocalEndpoints, ServiceNoEndpoints, ServiceProblem, ServiceRejected}

// Badness is the place of a state among those there are, the best first. One of a later version
// is worse than all.
func (s ServiceState) Badness() int { return place(ServiceStates, s) }

func place[S comparable](all []S, s S) int {
	if i := slices.Index(all, s); i >= 0 {
		return i
	}
	return len(all)
}

// Service is one Service in short.
type Service struct {
	Namespace string       `json:"namespace"`
	Name      string       `json:"name"`
	State     ServiceState `json:"state"`
	// Since is when it came into that state, as far as usher knows: it looks every 5 s, and not before it started.
	Since     time.Time      `json:"since"`
	Ports     []PortSummary  `json:"ports"`
	Endpoints EndpointCounts `json:"endpoints"`
	// AffinitySeconds is the time of the ports' session affinity; left out if
	// there is none.
	AffinitySeconds float64 `json:"affinitySeconds,omitempty"`
	Totals          Totals  `json:"totals"`
	// Ends are how connections and UDP sessions ended, and how many, since usher has started; left out
	// if none has.
	Ends map[string]int64 `json:"ends,omitempty"`
	// Latency is left out if there was no connection lately.
	Latency *Latency `json:"latency,omitempty"`
	// Problems are what is wrong with the Service's objects, and not served therefore; left out if
	// nothing is. Of a manifest that is rejected the last good version is served, if there was one.
	Problems []Problem `json:"problems,omitempty"`
}

// Latency is how long clients waited lately, in the last 5 to 10 minutes, since they were accepted, in
// milliseconds: half of them (P50), and all but one in a hundred (P99), no longer than that.
type Latency struct {
	// Clients is how many were established.
	Clients uint64 `json:"clients"`
	// Connect is until they were established.
	ConnectP50Ms float64 `json:"connectP50Ms"`
	ConnectP99Ms float64 `json:"connectP99Ms"`
	// FirstByte is until the endpoint's first byte came for them; 0 if none did.
	FirstByteP50Ms float64 `json:"firstByteP50Ms"`
	FirstByteP99Ms float64 `json:"firstByteP99Ms"`
}

// PortSummary is a service port in short. Each IP family is one of its own.
type PortSummary struct {
	// Name is left out for a service port without a name.
	Name     string `json:"name,omitempty"`
	Family   string `json:"family"`   // IPv4 or IPv6
	Protocol string `json:"protocol"` // TCP, UDP or SCTP
	// VIP is the first of the VIPs: the cluster IP.
	VIP string `json:"vip"`
	// Listener is where usher listens for it; left out while there is no
	// endpoint.
	Listener string `json:"listener,omitempty"`
	// Scheduler chooses the endpoint for a new connection: rr, lc, … (docs/services.md).
	Scheduler string `json:"scheduler"`
	// Probe is how all endpoints are probed, whether they have failed or not; left out if they are not.
	Probe *Probe `json:"probe,omitempty"`
	// EndpointLimit is how many connections each endpoint may have, and QueueSeconds how long
	// clients wait until one has room; left out if there is no such limit.
	EndpointLimit int     `json:"endpointLimit,omitempty"`
	QueueSeconds  float64 `json:"queueSeconds,omitempty"`
	// SlowStartSeconds is how long it takes until an endpoint that is new has its whole share of
	// new connections, DrainSeconds after how long connections end to one that left or
	// terminates; left out where there is no such time.
	SlowStartSeconds float64 `json:"slowStartSeconds,omitempty"`
	DrainSeconds     float64 `json:"drainSeconds,omitempty"`
	// AccessLog says that the access log has its clients; left out if not.
	AccessLog bool `json:"accessLog,omitempty"`
	// ProxyProtocol is left out if neither endpoints are told of their clients nor load
	// balancers tell.
	ProxyProtocol *ProxyProtocol `json:"proxyProtocol,omitempty"`
	// Source is client if endpoints see their clients' own addresses wherever the answers
	// come back through this node; if not, all see this node's, and it says why.
	Sees
	// Topology is left out if it does not matter where endpoints are.
	Topology *Topology `json:"topology,omitempty"`
	// Dropped are the clients whose packets are dropped, since the policy for them is Local
	// and endpoints are on other nodes only; left out if there are none.
	Dropped []Dropped `json:"dropped,omitempty"`
	// Problem is left out if the port is served as it should be.
	Problem *Problem `json:"problem,omitempty"`
}

// Dropped are clients whose packets are dropped.
type Dropped struct {
	// Clients is internal (of cluster IPs) or external (from outside; clients on this node
	// are served all the same).
	Clients string `json:"clients"`
	// Text says why.
	Text string `json:"text"`
}

// ProxyProtocol says between whom headers of the PROXY protocol tell of the client.
type ProxyProtocol struct {
	// ToEndpoints is the version in which endpoints are told: v1 or v2; left out if they
	// are not.
	ToEndpoints string `json:"toEndpoints,omitempty"`
	// From are the networks of the load balancers whose connections, to VIPs that are not
	// cluster IPs, begin with a header; left out if there are none.
	From []string `json:"from,omitempty"`
}

// Topology says by what endpoints are chosen from those of all nodes.
type Topology struct {
	// Keys are the topology keys of the Service; left out where hints of its
	// EndpointSlices decide.
	Keys []string `json:"keys,omitempty"`
	// Key is the label of nodes that decided, the first of Keys that left an endpoint;
	// left out if none did. Value is this node's; left out for the key *.
	Key   string `json:"key,omitempty"`
	Value string `json:"value,omitempty"`
	// Text says it in words.
	Text string `json:"text"`
}

// EndpointCounts says how many endpoints there are, each address and port once.
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
	// Active is how many connections, or UDP sessions, are open now.
	Active int64 `json:"active"`
	// Queued is how many of those have no endpoint yet, since none has room: they wait in line.
	Queued int64 `json:"queued"`
	// Accepted is how many clients have connected.
	Accepted int64 `json:"accepted"`
	// Established is for how many of those an endpoint was found.
	Established int64 `json:"established"`
	// Failed is how many ended without one, or were reset by it.
	Failed int64 `json:"failed"`
	// Attempts is how many attempts to connect to an endpoint have ended,
	// AttemptsFailed how many of those failed. Retries are the attempts after a
	// connection's first.
	Attempts       int64 `json:"attempts"`
	AttemptsFailed int64 `json:"attemptsFailed"`
	Retries        int64 `json:"retries"`
	// BytesToEndpoint and BytesToClient are those of connections that have
	// ended.
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

// Probe is how endpoints are probed all the time (docs/services.md).
type Probe struct {
	// Check is what is done: tcp, http:/healthz, … as in the annotation usher.io/probe.
	Check           string  `json:"check"`
	IntervalSeconds float64 `json:"intervalSeconds"`
	TimeoutSeconds  float64 `json:"timeoutSeconds"`
	// Fall is how many have to fail in a row for quarantine, Rise how many to succeed to end it.
	Rise int `json:"rise"`
	Fall int `json:"fall"`
}

// Problem is why a service port is not served as it should be.
type Problem struct {
	// Reason is one word, as in Kubernetes Events: AddressConflict,
	// ListenFailed, …
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

// ServiceDetail is all about one Service.
type ServiceDetail struct {
	Service
	Details []ServicePort `json:"details"`
}

// ServicePort is all about one service port in one IP family.
type ServicePort struct {
	PortSummary
	AppProtocol string `json:"appProtocol,omitempty"`
	VIPs        []VIP  `json:"vips"`
	// Listeners are where usher listens for it.
	Listeners []string `json:"listeners"`
	// Rules are what the portal was given for it; whether the kernel has them
	// so is told by /api/v1/portals.
	Rules    []PortalRule `json:"rules"`
	Policies Policies     `json:"policies"`
	// Endpoints are all there are, usable or not, sorted by address.
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
	// Sources are the only networks that may connect; left out if everybody may.
	Sources []string `json:"sources,omitempty"`
}

// Policies say which clients may use which endpoints.
type Policies struct {
	// Internal and External are Cluster or Local: the traffic policies for
	// clients of cluster IPs and for those from outside.
	Internal string `json:"internal"`
	External string `json:"external"`
	// AffinitySeconds is how long a client keeps its endpoint after its last new
	// connection; left out if there is no session affinity.
	AffinitySeconds float64 `json:"affinitySeconds,omitempty"`
	// UDPIdleSeconds is how long a UDP session lasts without a datagram; left
	// out for other protocols.
	UDPIdleSeconds float64 `json:"udpIdleSeconds,omitempty"`
	// ConnectionIdleSeconds is how long a connection lasts in which nothing moves,
	// MaxAgeSeconds how old it may become; left out where there is no such limit.
	ConnectionIdleSeconds float64 `json:"connectionIdleSeconds,omitempty"`
	MaxAgeSeconds         float64 `json:"maxAgeSeconds,omitempty"`
}

// EndpointState says whether new connections go to an endpoint.
type EndpointState string

// The states of an endpoint. Of several that apply, quarantined is told first.
const (
	EndpointReady   EndpointState = "ready"   // it takes its turn
	EndpointOutlier EndpointState = "outlier" // it takes its turn, but broke most of the connections that ended last
	// it takes its turn, but none of five or more clients had a byte from it in the last 5 to 10 minutes, while others of its port answered
	EndpointUnresponsive EndpointState = "unresponsive"
	EndpointQuarantined  EndpointState = "quarantined" // it failed, and is passed over while there is another one
	EndpointTerminating  EndpointState = "terminating" // its Pod is ending; used only if none is ready
	EndpointNotReady     EndpointState = "not-ready"   // it is not used
)

// EndpointStates are all there are, the best first.
var EndpointStates = []EndpointState{EndpointReady, EndpointOutlier, EndpointTerminating, EndpointNotReady, EndpointUnresponsive, EndpointQuarantined}

// Failing reports whether connections to the endpoint are known to fail.
func (s EndpointState) Failing() bool {
	return s == EndpointOutlier || s == EndpointUnresponsive || s == EndpointQuarantined
}

// Badness is as that of a ServiceState.
func (s EndpointState) Badness() int { return place(EndpointStates, s) }

// Endpoint is one endpoint of a service port.
type Endpoint struct {
	Address string        `json:"address"`
	Pod     string        `json:"pod,omitempty"`
	Node    string        `json:"node,omitempty"`
	Zone    string        `json:"zone,omitempty"`
	State   EndpointState `json:"state"`
	// Since is as that of a Service; of quarantined it is exact.
	Since time.Time `json:"since"`
	// Weight is how many connections it is to have compared with others; 0: no new ones.
	Weight int `json:"weight"`
	// Share is which part of its share of new connections it has while it is new (slow start);
	// left out if that is all.
	Share float64 `json:"share,omitempty"`

	// Conditions, as EndpointSlice has them.
	Ready       bool `json:"ready"`
	Serving     bool `json:"serving"`
	Terminating bool `json:"terminating"`

	// UsedFor says whose connections may go to it: internal (clients of cluster
	// IPs), external (clients from outside), node (clients on this node). It is
	// empty for one that is not usable, or that policies and topology hints
	// leave to other nodes.
	UsedFor []string `json:"usedFor"`
	// NotUsed says why no connections go to it, or none of some clients; it is left out if those
	// of all do. Quarantine is no reason: it ends.
	NotUsed string `json:"notUsed,omitempty"`

	// Quarantine is left out if it is in none.
	Quarantine *Quarantine `json:"quarantine,omitempty"`

	// Active is how many connections it has now, attempts under way among them, Limit how many
	// it may have, left out if any number, Connected how many it ever had,
	// Failed how many attempts failed, and how many connections it broke; FailedLately is how many
	// of those there were in the last 5 to 10 minutes, the time of Latency, left out if none. NoResponse is
	// how many of its connections ended as no-response, which is no failure, NoResponseLately how many of them
	// in that time; left out if none.
	Active           int64 `json:"active"`
	Limit            int   `json:"limit,omitempty"`
	Connected        int64 `json:"connected"`
	Failed           int64 `json:"failed"`
	FailedLately     int64 `json:"failedLately,omitempty"`
	NoResponse       int64 `json:"noResponse,omitempty"`
	NoResponseLately int64 `json:"noResponseLately,omitempty"`
	BytesToEndpoint  int64 `json:"bytesToEndpoint"`
	BytesToClient    int64 `json:"bytesToClient"`
	// Latency is left out if it had no connection lately.
	Latency *Latency `json:"latency,omitempty"`
}

// Quarantine is a time in which an endpoint is passed over.
type Quarantine struct {
	// Until is when it is over or, if it is Probed, when the next probe is due;
	// SecondsLeft how far away that is.
	Until       time.Time `json:"until"`
	SecondsLeft float64   `json:"secondsLeft"`
	// Probed says that usher probes the endpoint, and that the quarantine lasts until
	// a probe is answered, or as many as the Service asks for. Otherwise a client's attempt shows what it is like.
	Probed bool `json:"probed,omitempty"`
	// Failures is how many attempts and probes failed, with no client connected in between; of probes for which the
	// Service asks, with the endpoint not healthy in between.
	Failures int `json:"failures"`
	// Cause is the last failure: "connection refused", "no answer", "3 probes failed: HTTP status 503", …
	Cause string `json:"cause"`
}

// Count says for people what Failures counts. They need not be in a row: a probe may have been answered in between.
func (q *Quarantine) Count() string {
	switch {
	case q.Failures == 1:
		return "1 failure"
	case strings.Contains(q.Cause, " probes failed: "):
		return fmt.Sprintf("%d failed probes, not healthy in between", q.Failures)
	}
	return fmt.Sprintf("%d failures, with no client connected in between", q.Failures)
}
