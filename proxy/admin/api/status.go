package api

import "time"

// The values of Status.Source.
const (
	SourceFiles   = "files"
	SourceCluster = "cluster"
)

// Status is the proxy as a whole.
type Status struct {
	// Instance tells this process from the one before it: counts and numbers of
	// connections begin anew with another one.
	Instance string    `json:"instance"`
	Version  string    `json:"version"`
	Started  time.Time `json:"started"`
	// Now is the proxy's clock, for times that lie ahead.
	Now time.Time `json:"now"`
	// PortalMode is iptables, nftables, address or none.
	PortalMode string `json:"portalMode"`
	// Via is how endpoints are reached, if not directly: portforward, or auto, which is directly where
	// that works. Left out otherwise.
	Via string `json:"via,omitempty"`
	// Source is where Services come from: files or cluster.
	Source string `json:"source,omitempty"`
	// Demo says that the Services are those of usher demo.
	Demo bool `json:"demo,omitempty"`

	Services     int `json:"services"`
	ServicePorts int `json:"servicePorts"`
	// Problems are what usher itself knows to be wrong now, the worst first: those of usher as a whole,
	// then those of Services. At most 100 are told; ProblemsUntold is how many more there are.
	Problems       []StatusProblem `json:"problems"`
	ProblemsUntold int             `json:"problemsUntold,omitempty"`
	// Attention says it in a sentence: "no problems", "3 Services need attention: …".
	Attention string `json:"attention"`
	// Since is when the first of Problems began or, if there are none, when the last one ended or usher started.
	Since time.Time `json:"since"`

	Connections Limited `json:"connections"`
	// SavedConnections are the open TCP connections that would survive a crash of usher: its keeper has copies of their sockets.
	SavedConnections int64   `json:"savedConnections"`
	UDPSessions      Limited `json:"udpSessions"`
	// AffinityClients is how many clients are remembered.
	AffinityClients int64 `json:"affinityClients"`
	// Subscribers is how many read /api/v1/events now.
	Subscribers Limited `json:"subscribers"`

	// Totals are those of all service ports, also of those that are gone.
	Totals Totals `json:"totals"`
	// Ends counts the connections and UDP sessions that have ended, by how.
	Ends map[string]int64 `json:"ends"`

	// LastQueued is when a change was last wanted, LastApplied when the kernel
	// was last brought up to date.
	LastQueued  time.Time `json:"lastQueued,omitzero"`
	LastApplied time.Time `json:"lastApplied,omitzero"`
	// Repairs is how many rules, routes and chains were missing or changed in the
	// kernel, and were put back.
	Repairs int64 `json:"repairs"`

	// Defaults are what Services have that do not say otherwise.
	Defaults Defaults `json:"defaults"`

	// Conntrack are the settings of the kernel's connection tracking that usher was to make when it started,
	// by name in net.netfilter; left out if it was to make none.
	Conntrack map[string]int `json:"conntrack,omitempty"`
	// HealthChecks are where health check node ports are answered, as "address:port"; left out if there are none.
	HealthChecks []string `json:"healthChecks,omitempty"`
}

// RaisedOnly reports whether a setting of Status.Conntrack is the least that there must be.
func RaisedOnly(name string) bool {
	return name == "nf_conntrack_max" || name == "nf_conntrack_buckets"
}

// StatusProblem is something that is wrong.
type StatusProblem struct {
	// Object is what it is about: "Service default/web", "EndpointSlice default/web-1", a file, or "usher".
	Object string `json:"object"`
	// Reason is one word: that of a Problem, the state of a Service, ManifestRejected, ManifestDoubtful, PartNotServed,
	// NearLimit, PortalFailed, APIServerFailed, NotServing, ClockSkew or AccessLogLost.
	Reason  string `json:"reason"`
	Message string `json:"message"`
	// Remedy is what to do about it; left out if that follows from the message.
	Remedy string `json:"remedy,omitempty"`
	// Since is since when, as far as usher knows: of some it is when it was first asked for.
	Since time.Time `json:"since"`
}

// Defaults are settings of service ports. A time of 0 is no such limit.
type Defaults struct {
	Scheduler             string  `json:"scheduler"`
	UDPIdleSeconds        float64 `json:"udpIdleSeconds"`
	ConnectionIdleSeconds float64 `json:"connectionIdleSeconds"`
	MaxAgeSeconds         float64 `json:"maxAgeSeconds"`
	EndpointLimit         int     `json:"endpointLimit"`
	QueueSeconds          float64 `json:"queueSeconds"`
	Probe                 Probe   `json:"probe"`
	SlowStartSeconds      float64 `json:"slowStartSeconds"`
	DrainSeconds          float64 `json:"drainSeconds"`
}

// Limited is a number that has a bound.
type Limited struct {
	Now   int64 `json:"now"`
	Limit int64 `json:"limit"`
}

// EndList is the list of how connections can end.
type EndList struct {
	Items []End `json:"items"`
}

// End is one way in which connections end. The code is the same in the trace, in
// metrics, in the access log and here.
type End struct {
	Code string `json:"code"`
	// Meaning is one sentence for people.
	Meaning string `json:"meaning"`
	// Fault says whose doing it is: client, endpoint, policy (it was meant to
	// be refused), node (limits, shutdown), usher, or none (a normal end).
	Fault string `json:"fault"`
}
