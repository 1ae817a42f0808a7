package api

import "time"

// ConnectionList is a page of connections, newest first unless the parameter sort selects another order.
type ConnectionList struct {
	Page
	// Reaches is left out if only open connections were requested.
	Reaches *Reaches     `json:"reaches,omitempty"`
	Items   []Connection `json:"items"`
}

// Reaches is how far back ended connections are known.
type Reaches struct {
	// All is the time since which all ended connections are known.
	All time.Time `json:"all"`
	// Amiss is the time since which all connections that failed, were retried, were slow or got no response are
	// known. If one Service was requested, it concerns only that Service. It is never later than All.
	Amiss time.Time `json:"amiss"`
}

// ConnectionState is the state of a connection.
type ConnectionState string

// The states of a connection.
const (
	Connecting  ConnectionState = "connecting"  // usher looks for an endpoint
	Sending     ConnectionState = "sending"     // UDP only: datagrams go to an endpoint, which has sent none, and need not
	Established ConnectionState = "established" // bytes flow
	Ended       ConnectionState = "ended"
)

// Connection is one client's connection, SCTP association or UDP session, with all attempts made for it. An
// ended one is known for as long as the trace holds it. Those that failed, were retried, were slow or got no
// response are kept longer.
type Connection struct {
	ID       uint64 `json:"id"`
	Service  string `json:"service"`
	Port     string `json:"port,omitempty"`
	Family   string `json:"family"`
	Protocol string `json:"protocol"`
	Client   string `json:"client"`
	// Via is the load balancer whose PROXY protocol header named the client; left out if the client connected
	// directly.
	Via string `json:"via,omitempty"`
	// VIP is the address that the client connected to.
	VIP   string          `json:"vip"`
	State ConnectionState `json:"state"`

	Accepted time.Time `json:"accepted"`
	// Endpoint and Pod are left out until it is established.
	Endpoint string `json:"endpoint,omitempty"`
	Pod      string `json:"pod,omitempty"`
	// ConnectMs is the time from accepted to established; left out before.
	ConnectMs float64 `json:"connectMs,omitempty"`
	// FirstByteMs is the time from accepted to the endpoint's first byte for the client, without the time in
	// which the client was connected and had sent nothing; left out before.
	FirstByteMs float64 `json:"firstByteMs,omitempty"`
	// DurationMs is the time since accepted, until now or until it ended.
	DurationMs float64 `json:"durationMs"`
	// BytesToEndpoint and BytesToClient are the bytes moved so far.
	BytesToEndpoint int64 `json:"bytesToEndpoint"`
	BytesToClient   int64 `json:"bytesToClient"`

	// End is how it ended (see /api/v1/ends), Error the cause, if there is more detail. Both are left out
	// while it is open.
	End   string `json:"end,omitempty"`
	Error string `json:"error,omitempty"`

	// Outcomes is ok, or those that apply so far of retried (more than one attempt), slow (--slow-threshold),
	// failed (it ended without an endpoint, or was broken by it) and no-response (it ended without a response).
	Outcomes []string `json:"outcomes"`

	// Attempts are in order of time. An attempt in progress is not included.
	Attempts []Attempt `json:"attempts"`
}

// Sees is the source address that an endpoint sees.
type Sees struct {
	// Source is client for the client's own address, otherwise node- and a word for why it is an address of
	// this node; left out if undecided, as for an attempt that was not made.
	Source string `json:"source,omitempty"`
	// SourceText is the address and the reason, as text that can follow "the endpoint sees".
	SourceText string `json:"sourceText,omitempty"`
}

// Attempt is one attempt to connect to one endpoint.
type Attempt struct {
	// Number is 1 for the first.
	Number   int    `json:"number"`
	Endpoint string `json:"endpoint"`
	Pod      string `json:"pod,omitempty"`
	// Reason is why this endpoint was chosen.
	Reason string `json:"reason"`
	// Skipped is the number of endpoints that would have been next but were in quarantine.
	Skipped int `json:"skipped,omitempty"`
	Sees
	// StartMs is the time from accepting the connection to the start of the attempt. In gaps between attempts,
	// the client waited: every endpoint had been tried, or the untried ones were full.
	StartMs    float64 `json:"startMs"`
	DurationMs float64 `json:"durationMs"`
	// Result is connected, refused, no-answer or failed. For UDP, connected means that the endpoint answered.
	Result string `json:"result"`
	// Error is left out if it succeeded.
	Error string `json:"error,omitempty"`
}

// AffinityList is a page of clients that have session affinity, sorted by service port; within one, the least
// recently used comes first.
type AffinityList struct {
	Page
	Items []AffinityEntry `json:"items"`
}

// AffinityEntry is the endpoint that a client has by session affinity.
type AffinityEntry struct {
	Service  string `json:"service"`
	Port     string `json:"port,omitempty"`
	Family   string `json:"family"`
	Protocol string `json:"protocol"`
	// Client is an address without port.
	Client   string `json:"client"`
	Endpoint string `json:"endpoint"`
	Pod      string `json:"pod,omitempty"`
	// SecondsLeft is the time until it expires, if the client makes no new connection.
	SecondsLeft float64 `json:"secondsLeft"`
	// TimeoutSeconds is the value of SecondsLeft after each new connection.
	TimeoutSeconds float64 `json:"timeoutSeconds"`
}
