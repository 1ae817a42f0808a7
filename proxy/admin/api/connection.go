package api

import "time"

// ConnectionList is a page of connections, the newest first.
type ConnectionList struct {
	Page
	// Reaches is left out if only those that are open were asked for.
	Reaches *Reaches     `json:"reaches,omitempty"`
	Items   []Connection `json:"items"`
}

// Reaches says how far back is known which connections have ended.
type Reaches struct {
	// All is since when all are known.
	All time.Time `json:"all"`
	// Amiss is since when those are known that failed, were retried or slow, of the Service that was asked
	// for if it was one; never later than All.
	Amiss time.Time `json:"amiss"`
}

// ConnectionState says how far a connection has come.
type ConnectionState string

// The states of a connection.
const (
	Connecting  ConnectionState = "connecting"  // an endpoint is being looked for
	Sending     ConnectionState = "sending"     // of UDP: datagrams go to an endpoint, which has sent none, and need not
	Established ConnectionState = "established" // bytes flow
	Ended       ConnectionState = "ended"
)

// Connection is one client's connection, SCTP association or UDP session, with
// all attempts that were made for it. One that has ended is known for as long as
// the trace has it, or what is kept besides of those that failed, were retried or slow.
type Connection struct {
	ID       uint64 `json:"id"`
	Service  string `json:"service"`
	Port     string `json:"port,omitempty"`
	Family   string `json:"family"`
	Protocol string `json:"protocol"`
	Client   string `json:"client"`
	// Via is the load balancer that has told of the client, by a header of the PROXY
	// protocol; left out if the client has come itself.
	Via string `json:"via,omitempty"`
	// VIP is where the client connected to.
	VIP   string          `json:"vip"`
	State ConnectionState `json:"state"`

	Accepted time.Time `json:"accepted"`
	// Endpoint and Pod are left out until it is established.
	Endpoint string `json:"endpoint,omitempty"`
	Pod      string `json:"pod,omitempty"`
	// ConnectMs is the time from accepted to established; left out before.
	ConnectMs float64 `json:"connectMs,omitempty"`
	// FirstByteMs is the time from accepted to the endpoint's first byte for the client, but for that in
	// which the client was connected and had sent nothing; left out before.
	FirstByteMs float64 `json:"firstByteMs,omitempty"`
	// DurationMs is the time since accepted, until now or until it ended.
	DurationMs float64 `json:"durationMs"`
	// BytesToEndpoint and BytesToClient are those that were moved so far.
	BytesToEndpoint int64 `json:"bytesToEndpoint"`
	BytesToClient   int64 `json:"bytesToClient"`

	// End says how it ended (see /api/v1/ends), Error why, where there is more
	// to say. Both are left out while it is open.
	End   string `json:"end,omitempty"`
	Error string `json:"error,omitempty"`

	// Outcomes are ok or, of retried (more than one attempt), slow (--slow-threshold) and failed (it ended
	// without an endpoint, or was broken by it), those that it is so far.
	Outcomes []string `json:"outcomes"`

	// Attempts are in the order in which they were made. One that is under way
	// is not among them.
	Attempts []Attempt `json:"attempts"`
}

// Sees is whom an endpoint sees as its client.
type Sees struct {
	// Source is client if that is the client's own address, otherwise node- and a word for why
	// it is an address of this node; left out if that is not decided, as for an attempt
	// that was not made.
	Source string `json:"source,omitempty"`
	// SourceText says whom and why, in words that can follow "the endpoint sees".
	SourceText string `json:"sourceText,omitempty"`
}

// Attempt is one try to connect to one endpoint, a bar of the waterfall.
type Attempt struct {
	// Number is 1 for the first.
	Number   int    `json:"number"`
	Endpoint string `json:"endpoint"`
	Pod      string `json:"pod,omitempty"`
	// Reason says why this endpoint.
	Reason string `json:"reason"`
	// PassedOver is how many endpoints would have been next but were in
	// quarantine.
	PassedOver int `json:"passedOver,omitempty"`
	Sees
	// StartMs is when it began, after the connection was accepted. Time between
	// attempts was waited: every endpoint had been tried.
	StartMs float64 `json:"startMs"`
	TookMs  float64 `json:"tookMs"`
	// Result is connected, refused, no-answer or failed; for UDP, connected is a
	// first answer.
	Result string `json:"result"`
	// Error is left out if it succeeded.
	Error string `json:"error,omitempty"`
}

// AffinityList is a page of clients that are remembered, sorted by service port;
// within one, the client that has been away longest comes first.
type AffinityList struct {
	Page
	Items []AffinityEntry `json:"items"`
}

// AffinityEntry says which endpoint a client gets again.
type AffinityEntry struct {
	Service  string `json:"service"`
	Port     string `json:"port,omitempty"`
	Family   string `json:"family"`
	Protocol string `json:"protocol"`
	// Client is an address without port.
	Client   string `json:"client"`
	Endpoint string `json:"endpoint"`
	Pod      string `json:"pod,omitempty"`
	// SecondsLeft is until it ends, if the client makes no new connection.
	SecondsLeft float64 `json:"secondsLeft"`
	// TimeoutSeconds is what SecondsLeft begins with at each new connection.
	TimeoutSeconds float64 `json:"timeoutSeconds"`
}
