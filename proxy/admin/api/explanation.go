package api

// Verdict is what would happen to a connection.
type Verdict string

// The verdicts.
const (
	WouldTry    Verdict = "try"     // the endpoints in Order would be tried
	WouldRefuse Verdict = "refuse"  // the client would be reset: see Text
	WouldReject Verdict = "reject"  // "connection refused" at once: there is no endpoint, and no listener
	WouldDrop   Verdict = "drop"    // packets would be dropped silently: policy Local, or a source that is not allowed
	WouldFail   Verdict = "problem" // the service port is not served: see Text
)

// Explanation is a dry run: what would happen if the client connected now. It changes nothing: it uses up no
// endpoint's turn and touches no affinity. The real result may differ, since other clients use turns, too.
type Explanation struct {
	Service  string `json:"service"`
	Port     string `json:"port,omitempty"`
	Family   string `json:"family"`
	Protocol string `json:"protocol"`
	// Client is an address; left out if the request named none. Then the client has no affinity, and source
	// ranges are not checked.
	Client string `json:"client,omitempty"`
	VIP    string `json:"vip"`
	// VIPKind is as in VIP.
	VIPKind string `json:"vipKind"`

	Verdict Verdict `json:"verdict"`
	// Policy describes which endpoints count for this client, and why.
	Policy string `json:"policy"`
	// Affinity is the client's entry; left out if it has none.
	Affinity *AffinityEntry `json:"affinity,omitempty"`
	// Order is the order in which endpoints would be tried; each is tried only if all before it fail.
	Order []Candidate `json:"order"`
	// NotTried are the endpoints that would not be tried, with the reason.
	NotTried []Candidate `json:"notTried"`
	// ScheduleMs is the length of each time slot. Within a slot, usher tries the next endpoint if one refuses.
	// It is empty for UDP. See docs/services.md.
	ScheduleMs []float64 `json:"scheduleMs"`
	// Text is the explanation as sentences, one in each item.
	Text []string `json:"text"`
}

// Candidate is an endpoint in an explanation.
type Candidate struct {
	Endpoint string `json:"endpoint"`
	Pod      string `json:"pod,omitempty"`
	Node     string `json:"node,omitempty"`
	// Reason is the scheduler's, such as round robin or fewest connections, or one of: affinity, probe after
	// quarantine, only one left, all that are left are in quarantine. For endpoints that are not tried, it is
	// not-ready, terminating, not-serving, weight-0, policy-local, topology or full.
	Reason string `json:"reason"`
	// Text is the reason, in a sentence.
	Text string `json:"text"`
	// Source is left out if it depends on the client, and the request named none; SourceText then names what
	// it depends on.
	Sees
	// Quarantine is left out if it is not in quarantine.
	Quarantine *Quarantine `json:"quarantine,omitempty"`
}
