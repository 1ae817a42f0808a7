package trace

import (
	"net/netip"
	"time"

	"github.com/usherproxy/usher/config"
)

// Kind says which step of a connection's life an event is.
type Kind uint8

// The kinds of event, in the order in which a connection meets them.
const (
	// Accepted: a client has connected.
	Accepted Kind = iota + 1
	// Attempt: one try to connect to one endpoint has ended.
	Attempt
	// Waiting: every endpoint was tried and refused at once; the rest of the
	// attempt's slot is waited.
	Waiting
	// Established: client and endpoint are connected, bytes flow.
	Established
	// Closed: it is over.
	Closed
)

// String returns the name of k in lower case.
func (k Kind) String() string {
	switch k {
	case Accepted:
		return "accepted"
	case Attempt:
		return "attempt"
	case Waiting:
		return "waiting"
	case Established:
		return "established"
	case Closed:
		return "closed"
	}
	return "unknown"
}

// End says how a connection ended. There is one for each; it is the same in
// every place that shows it.
type End string

// The ends of a connection.
const (
	ClientClosed      End = "client-closed"      // both directions ended, the client's first
	EndpointClosed    End = "endpoint-closed"    // both directions ended, the endpoint's first
	ClientReset       End = "client-reset"       // the client broke it off
	EndpointReset     End = "endpoint-reset"     // the endpoint broke it off
	HalfClosedTimeout End = "half-closed"        // one direction had ended and the other was silent for too long
	NoEndpoint        End = "no-endpoint"        // there was no endpoint to try
	AttemptsFailed    End = "attempts-failed"    // every attempt failed
	NotAdmitted       End = "not-through-portal" // it came straight to the listener
	SourceRefused     End = "source-refused"     // the client is not in loadBalancerSourceRanges
	Limit             End = "limit"              // too many connections or sessions, or no descriptors, memory or ports left
	Drained           End = "drained"            // usher was stopped and the grace period was over; a UDP session has none
	Idle              End = "idle"               // nothing came for the idle time
	Aged              End = "aged"               // it had reached its maximum age
	EndpointLeft      End = "endpoint-left"      // its endpoint left, or stopped being usable (UDP)
	Withdrawn         End = "withdrawn"          // the Service, or the VIP that the client used, was taken away (UDP)
	Internal          End = "internal"           // a fault of usher's; the error tells
)

// Event is one step of a connection. Fields that do not belong to its kind are
// zero.
type Event struct {
	Seq  uint64 // 1 for the first event of the process
	Time time.Time
	Kind Kind

	Conn     uint64 // number of the connection, unique in the process
	Port     config.PortID
	Protocol config.Protocol
	Client   netip.AddrPort
	VIP      netip.AddrPort // where the client connected to

	// Attempt, and Established for the one that succeeded.
	Attempt    int // 1 for the first
	Endpoint   netip.AddrPort
	Pod        string
	Reason     string        // why this endpoint
	PassedOver int           // endpoints passed over because they are in quarantine
	Took       time.Duration // for the attempt; for Waiting, how long is waited; for Closed, since Accepted
	Err        string        // "" if it succeeded

	// Closed.
	End                  End
	ToEndpoint, ToClient int64 // bytes
}
