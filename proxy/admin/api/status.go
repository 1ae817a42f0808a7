package api

import "time"

// The values of Status.Source.
const (
	SourceFiles   = "files"
	SourceCluster = "cluster"
)

// Status is the state of the proxy as a whole.
type Status struct {
	// Instance identifies this process. If it changes, counts start again and, unless the process has taken over,
	// connection numbers.
	Instance string    `json:"instance"`
	Version  string    `json:"version"`
	Started  time.Time `json:"started"`
	// Now is the time of the proxy's clock, to compute how far times in the future are away.
	Now time.Time `json:"now"`
	// PortalMode is iptables, nftables, address or none.
	PortalMode string `json:"portalMode"`
	// Via is how endpoints are reached, if not directly: portforward, or auto, which connects directly where
	// that works. Left out otherwise.
	Via string `json:"via,omitempty"`
	// Source is where Services come from: files or cluster.
	Source string `json:"source,omitempty"`
	// Demo is set if the Services are those of usher demo.
	Demo bool `json:"demo,omitempty"`

	Services     int `json:"services"`
	ServicePorts int `json:"servicePorts"`
	// Problems are the current problems that usher knows, worst first: those of usher as a whole, then those
	// of Services. At most 100 are listed; ProblemsOmitted is the number of further ones.
	Problems        []StatusProblem `json:"problems"`
	ProblemsOmitted int             `json:"problemsOmitted,omitempty"`
	// Attention is a summary in one sentence: "no problems", "3 Services need attention: …".
	Attention string `json:"attention"`
	// Since is when the first of Problems began or, without problems, when the last one ended or usher
	// started.
	Since time.Time `json:"since"`

	Connections Limited `json:"connections"`
	// SavedConnections is the number of open TCP connections of which usher's keeper has copies of both sockets. Most
	// of them survive a crash of usher.
	SavedConnections int64   `json:"savedConnections"`
	UDPSessions      Limited `json:"udpSessions"`
	// AffinityClients is the number of clients that have session affinity.
	AffinityClients int64 `json:"affinityClients"`
	// Subscribers is the number of current readers of /api/v1/events.
	Subscribers Limited `json:"subscribers"`

	// Totals are those of all service ports, including removed ones.
	Totals Totals `json:"totals"`
	// Ends counts ended connections and UDP sessions by how they ended.
	Ends map[string]int64 `json:"ends"`

	// LastQueued is when a change was last requested, LastApplied when the kernel was last brought up to
	// date.
	LastQueued  time.Time `json:"lastQueued,omitzero"`
	LastApplied time.Time `json:"lastApplied,omitzero"`
	// Repairs is the number of rules, routes and chains that were missing or changed in the kernel, and were
	// restored.
	Repairs int64 `json:"repairs"`

	// Restarts are the restarts by a keeper; left out if there were none.
	Restarts *Restarts `json:"restarts,omitempty"`

	// Settings are those of Services without annotations, as in PortSummary. "client-address" is node if endpoints see
	// this node's address for all Services; otherwise it is left out. "access-log" is true or false; it is left out if
	// there is no access log.
	Settings map[string]string `json:"settings"`

	// Conntrack holds the kernel's connection tracking settings that usher was configured to set at its start, by
	// name in net.netfilter; left out if there were none.
	Conntrack map[string]int `json:"conntrack,omitempty"`
	// HealthChecks are the addresses that health check node ports are served on, as "address:port"; left out
	// if there are none.
	HealthChecks []string `json:"healthChecks,omitempty"`
}

// RaisedOnly reports whether a setting of Status.Conntrack is a minimum.
func RaisedOnly(name string) bool {
	return name == "nf_conntrack_max" || name == "nf_conntrack_buckets"
}

// StatusProblem is one problem.
type StatusProblem struct {
	// Object is the affected object: "Service default/web", "EndpointSlice default/web-1", a file, or
	// "usher".
	Object string `json:"object"`
	// Reason is one word: that of a Problem, the state of a Service, ManifestRejected, ManifestDoubtful, PartNotServed,
	// PortNameDiffers, NearLimit, PortalFailed, APIServerFailed, NotServing, ClockSkew or AccessLogLost.
	Reason  string `json:"reason"`
	Message string `json:"message"`
	// Remedy is how to fix it; left out if that follows from the message.
	Remedy string `json:"remedy,omitempty"`
	// Since is when it began, as far as usher knows; for some problems it is when usher first detected them.
	Since time.Time `json:"since"`
}

// Limited is a number with a limit.
type Limited struct {
	Now   int64 `json:"now"`
	Limit int64 `json:"limit"`
}

// EndList is the list of ways in which connections end.
type EndList struct {
	Items []End `json:"items"`
}

// End is one way in which connections end. The code is the same in the trace, in metrics, in the access log
// and here.
type End struct {
	Code string `json:"code"`
	// Meaning is a description in one sentence.
	Meaning string `json:"meaning"`
	// Fault is the cause: client, endpoint, policy (a deliberate refusal), node (limits, shutdown), usher, or
	// none (a normal end).
	Fault string `json:"fault"`
}

// Restarts counts how often usher crashed and its keeper restarted it since the keeper started.
type Restarts struct {
	Count int `json:"count"`
	// Last is how usher ended last, such as "signal: killed", and Time when; Time is left out if an earlier version of
	// the keeper is running.
	Last string    `json:"last"`
	Time time.Time `json:"time,omitzero"`
}
