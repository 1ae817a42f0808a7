package api

// Verdict says what would become of a connection.
type Verdict string

// The verdicts.
const (
	WouldTry    Verdict = "try"     // the endpoints in Order would be tried
	WouldRefuse Verdict = "refuse"  // the client would be reset: see Text
	WouldReject Verdict = "reject"  // "connection refused" at once: there is no endpoint, and nobody listens
	WouldDrop   Verdict = "drop"    // packets would vanish: policy Local, or a source that is not allowed
	WouldFail   Verdict = "problem" // the service port is not served: see Text
)

// Explanation is a dry run: what would happen if the client connected now. It
// changes nothing: no endpoint's turn is used up, no affinity is touched, and
// what really happens may differ, since other clients take turns too.
type Explanation struct {
	Service  string `json:"service"`
	Port     string `json:"port,omitempty"`
	Family   string `json:"family"`
	Protocol string `json:"protocol"`
	// Client is an address; left out if none was asked about. Then it is a
	// client without affinity, for whom no source range is looked at.
	Client string `json:"client,omitempty"`
	VIP    string `json:"vip"`
	// VIPKind is as in VIP.
	VIPKind string `json:"vipKind"`

	Verdict Verdict `json:"verdict"`
	// Policy says in words which endpoints count for this client, and why.
	Policy string `json:"policy"`
	// Affinity is the client's entry; left out if it has none.
	Affinity *AffinityEntry `json:"affinity,omitempty"`
	// Order is in which order endpoints would be tried, each as long as the one
	// before it fails.
	Order []Candidate `json:"order"`
	// NotTried are the endpoints that would not be tried at all, with why.
	NotTried []Candidate `json:"notTried"`
	// ScheduleMs is how long each slot is; within one, endpoints that refuse at
	// once are passed on from. See docs/services.md.
	ScheduleMs []float64 `json:"scheduleMs"`
	// Text says it all in sentences, one in each item.
	Text []string `json:"text"`
}

// Candidate is an endpoint in an explanation.
type Candidate struct {
	Endpoint string `json:"endpoint"`
	Pod      string `json:"pod,omitempty"`
	Node     string `json:"node,omitempty"`
	// Reason is the scheduler's, such as round robin or fewest connections, or one of: affinity,
	// probe after quarantine, only one left, all that are left are in quarantine; for those that
	// are not tried: not-ready, terminating, weight-0, policy-local, topology, full.
	Reason string `json:"reason"`
	// Text says why, in a sentence.
	Text string `json:"text"`
	// Source is left out if it depends on the client, and none was asked about; SourceText says
	// on what.
	Sees
	// Quarantine is left out if it is in none.
	Quarantine *Quarantine `json:"quarantine,omitempty"`
}
