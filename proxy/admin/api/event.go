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
	// StreamMissed reports, with a Missed, that events were left out at this point.
	StreamMissed = "missed"
)

// Hello is the start of a stream.
type Hello struct {
	// Instance is Status.Instance. If it changes, connection numbers start again.
	Instance string `json:"instance"`
	// HeartbeatSeconds is the longest idle time of the stream: then a line ": heartbeat" follows. After twice
	// that time the connection is dead.
	HeartbeatSeconds float64 `json:"heartbeatSeconds"`
}

// Missed is the number of events that a reader did not get.
type Missed struct {
	// Missed counts events that the trace no longer has, whether or not they match the filters, and events
	// that match but exceed the parameter rate.
	Missed uint64 `json:"missed"`
}

// The kinds of event. The first six are the steps of a connection.
const (
	KindAccepted    = "accepted"    // a client has connected
	KindAttempt     = "attempt"     // an attempt to connect to an endpoint has ended
	KindQueued      = "queued"      // the client's wait in the queue for a free slot has ended, with or without an endpoint
	KindWaiting     = "waiting"     // every endpoint was tried; usher waits for the rest of the attempt's time
	KindEstablished = "established" // client and endpoint are connected; for UDP, the endpoint has answered
	KindClosed      = "closed"      // it is over

	KindServiceAdded        = "service-added"
	KindServiceChanged      = "service-changed"
	KindServiceRemoved      = "service-removed"
	KindEndpointAdded       = "endpoint-added"
	KindEndpointChanged     = "endpoint-changed" // its conditions
	KindEndpointRemoved     = "endpoint-removed"
	KindEndpointQuarantined = "endpoint-quarantined"
	KindEndpointProbed      = "endpoint-probed"    // it is in quarantine, and a probe failed; reported as long as the time between probes grows
	KindEndpointRecovered   = "endpoint-recovered" // its quarantine has ended: a client has connected, its probes succeed, or it is no longer probed
	KindPortalRepaired      = "portal-repaired"
	// KindMoreChanges stands for further simultaneous changes that are not reported one by one.
	KindMoreChanges = "more-changes"

	// KindChanges selects all changes, in the parameter kind.
	KindChanges = "changes"
)

// Event is one step of a connection or one change of the configuration.
type Event struct {
	// ID is the value of Last-Event-ID to continue after this event.
	ID   string    `json:"id"`
	Time time.Time `json:"time"`
	Kind string    `json:"kind"`
	// Text describes the event in one line.
	Text string `json:"text"`

	// Service is left out if the event concerns none (portal-repaired, more-changes).
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

	// Attempt is the number of the attempt; for waiting and queued, the number of attempts so far. Reason, Skipped,
	// Source and Result are as in Attempt. For changes of endpoints, Reason is the conditions, or why the
	// quarantine began or ended.
	Attempt  int    `json:"attempt,omitempty"`
	Endpoint string `json:"endpoint,omitempty"`
	Pod      string `json:"pod,omitempty"`
	Reason   string `json:"reason,omitempty"`
	Skipped  int    `json:"skipped,omitempty"`
	Source   string `json:"source,omitempty"`
	Result   string `json:"result,omitempty"`
	// DurationMs is the time for the attempt; for waiting, how long usher will wait; for queued, how long the client
	// waited; for closed, the time since accepted. For endpoint-quarantined it is the duration of the quarantine or,
	// if Reason is probe or probes, the time until the next probe, as for endpoint-probed.
	DurationMs float64 `json:"durationMs,omitempty"`
	Error      string  `json:"error,omitempty"`

	// End is how a connection ended, for closed.
	End             string `json:"end,omitempty"`
	BytesToEndpoint int64  `json:"bytesToEndpoint,omitempty"`
	BytesToClient   int64  `json:"bytesToClient,omitempty"`

	// Count is the number of rules repaired, of a new Service's endpoints, or of changes not reported.
	Count int `json:"count,omitempty"`
}
