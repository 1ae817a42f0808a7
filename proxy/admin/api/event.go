package api

import "time"

// The names of the events of the stream /api/v1/events, in the line "event:".
const (
	// StreamHello comes first, with a Hello.
	StreamHello = "hello"
	// StreamStep is a step of a connection, with an Event.
	StreamStep = "step"
	// StreamChange is a change of the configuration, with an Event.
	StreamChange = "change"
	// StreamMissed says, with a Missed, that events were left out just here.
	StreamMissed = "missed"
)

// Hello says what a stream begins with.
type Hello struct {
	// Instance is Status.Instance. If it is another one than before, numbers of
	// connections mean others.
	Instance string `json:"instance"`
	// HeartbeatSeconds is how long the stream may be silent: then comes a line
	// ": heartbeat". After twice that time the connection is dead.
	HeartbeatSeconds float64 `json:"heartbeatSeconds"`
}

// Missed says how many events a reader did not get.
type Missed struct {
	// Missed counts them: those that the trace no longer has, whether or not the
	// filters would have let them through, and those beyond the parameter rate
	// that they did let through.
	Missed uint64 `json:"missed"`
}

// The kinds of event. The first five are the steps of a connection.
const (
	KindAccepted    = "accepted"    // a client has connected
	KindAttempt     = "attempt"     // a try to connect to an endpoint has ended
	KindQueued      = "queued"      // no endpoint had room: the client waited in line, and does not any more
	KindWaiting     = "waiting"     // every endpoint was tried; the rest of the attempt's time is waited
	KindEstablished = "established" // client and endpoint are connected; for UDP, the endpoint has answered
	KindClosed      = "closed"      // it is over

	KindServiceAdded        = "service-added"
	KindServiceChanged      = "service-changed"
	KindServiceRemoved      = "service-removed"
	KindEndpointAdded       = "endpoint-added"
	KindEndpointChanged     = "endpoint-changed" // its conditions
	KindEndpointRemoved     = "endpoint-removed"
	KindEndpointQuarantined = "endpoint-quarantined"
	KindEndpointProbed      = "endpoint-probed"    // it is in quarantine, and has not answered a probe; told as long as the time between probes grows
	KindEndpointRecovered   = "endpoint-recovered" // it was in quarantine, and has been connected to; or its probes succeed, or there are none any more
	KindPortalRepaired      = "portal-repaired"
	// KindMoreChanges stands for further changes of the same moment that are not
	// told one by one.
	KindMoreChanges = "more-changes"
)

// Event is one step of a connection or one change of the configuration.
type Event struct {
	// ID is what Last-Event-ID takes to go on behind this event.
	ID   string    `json:"id"`
	Time time.Time `json:"time"`
	Kind string    `json:"kind"`
	// Text tells the event in one line.
	Text string `json:"text"`

	// Service is left out for what concerns none (portal-repaired,
	// more-changes).
	Service  string `json:"service,omitempty"`
	Port     string `json:"port,omitempty"`
	Family   string `json:"family,omitempty"`
	Protocol string `json:"protocol,omitempty"`

	// Connection is the number of the connection, for steps.
	Connection uint64 `json:"connection,omitempty"`
	Client     string `json:"client,omitempty"`
	// Via is as in Connection.
	Via string `json:"via,omitempty"`
	VIP string `json:"vip,omitempty"`

	// Attempt, Reason, PassedOver, Source and Result are as in Attempt.
	Attempt    int    `json:"attempt,omitempty"`
	Endpoint   string `json:"endpoint,omitempty"`
	Pod        string `json:"pod,omitempty"`
	Reason     string `json:"reason,omitempty"`
	PassedOver int    `json:"passedOver,omitempty"`
	Source     string `json:"source,omitempty"`
	Result     string `json:"result,omitempty"`
	// TookMs is for the attempt; for waiting, how long is waited; for closed, the
	// time since accepted; for endpoint-quarantined, how long it lasts; where the reason is
	// probe or probes, and for endpoint-probed, when the next probe is due.
	TookMs float64 `json:"tookMs,omitempty"`
	Error  string  `json:"error,omitempty"`

	// End is how a connection ended, for closed.
	End             string `json:"end,omitempty"`
	BytesToEndpoint int64  `json:"bytesToEndpoint,omitempty"`
	BytesToClient   int64  `json:"bytesToClient,omitempty"`

	// Count is how many: rules that were repaired, changes that are not told.
	Count int `json:"count,omitempty"`
}
