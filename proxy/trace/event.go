package trace

import (
	"net/netip"
	"time"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/proxy/conn"
	"github.com/usherproxy/usher/proxy/outcome"
)

// Kind is the step of a connection, or the change, that an event records.
type Kind uint8

// The kinds of event: first the steps, in the order in which a connection goes through them.
const (
	Accepted    = Kind(conn.Accepted)
	Attempt     = Kind(conn.Attempted)
	Waiting     = Kind(conn.Waiting)
	Queued      = Kind(conn.Queued)
	Established = Kind(conn.Established) // client and endpoint are connected, bytes flow
	Closed      = Kind(conn.Closed)
)

// Changes.
const (
	ServiceAdded = Closed + 1 + iota
	// ServiceChanged: something about a service port, but not its endpoints.
	ServiceChanged
	ServiceRemoved
	EndpointAdded
	// EndpointChanged: its conditions.
	EndpointChanged
	EndpointRemoved
	// EndpointQuarantined: it failed, and is skipped for some time.
	EndpointQuarantined
	// EndpointProbed: it is in quarantine, and a probe failed. It is recorded only when the time until the
	// next one becomes longer.
	EndpointProbed
	// EndpointRecovered: it was in quarantine, and answers.
	EndpointRecovered
	// PortalRepaired: rules were missing or changed in the kernel.
	PortalRepaired
	// MoreChanges stands for changes that are not recorded one by one.
	MoreChanges
)

var kinds = [...]string{
	Accepted: "accepted", Attempt: "attempt", Waiting: "waiting", Queued: "queued", Established: "established", Closed: "closed",
	ServiceAdded: "service-added", ServiceChanged: "service-changed", ServiceRemoved: "service-removed",
	EndpointAdded: "endpoint-added", EndpointChanged: "endpoint-changed", EndpointRemoved: "endpoint-removed",
	EndpointQuarantined: "endpoint-quarantined", EndpointProbed: "endpoint-probed", EndpointRecovered: "endpoint-recovered",
	PortalRepaired: "portal-repaired", MoreChanges: "more-changes",
}

// Kinds returns all kinds.
func Kinds() (all []Kind) {
	for k := Accepted; int(k) < len(kinds); k++ {
		all = append(all, k)
	}
	return all
}

// String returns the name of k: lower case, with hyphens.
func (k Kind) String() string {
	if k < Accepted || int(k) >= len(kinds) {
		return "unknown"
	}
	return kinds[k]
}

// Reasons of EndpointQuarantined and EndpointRecovered.
const (
	ByProbe  = "probe"            // a probe ends, or has ended, the quarantine
	ByProbes = "probes"           // consecutive probes that the Service asks for began or ended it
	NoProbes = "no longer probed" // the Service no longer asks for the probes that began it
)

// IsStep reports whether k is a step of a connection, and not a change.
func (k Kind) IsStep() bool { return k <= Closed }

// Subject is the connection or service port that an event is about. It never changes.
type Subject struct {
	Conn     uint64 // number of the connection, unique in the process; 0 for a change
	Port     config.PortID
	Protocol config.Protocol
	Client   netip.AddrPort
	Via      *netip.AddrPort // the load balancer whose PROXY header named the client; nil if the client connected directly
	VIP      netip.AddrPort  // the address that the client connected to
}

// SubjectOf returns the Subject of a connection.
func SubjectOf(r *conn.Record) Subject {
	return Subject{Conn: r.ID, Port: r.Port.ID, Protocol: r.Port.Protocol, Client: r.From, Via: r.Via, VIP: r.To}
}

// Event is one step of a connection, or one change, for users. Fields that do not apply to its kind are zero.
type Event struct {
	Seq    uint64 // 1 for the first event of the process
	Time   time.Time
	Kind   Kind
	Result conn.Result // of an Attempt, and otherwise 0

	*Subject // never nil in an event that was read from a Log

	// Attempt, and Established for the one that succeeded; changes of endpoints
	// have Endpoint and Pod.
	Attempt       int // 1 for the first
	Endpoint      netip.AddrPort
	Pod           string
	Reason        string               // for the choice of this endpoint
	Skipped       int                  // endpoints skipped because they are in quarantine
	SourceAddress portal.SourceAddress // by the endpoint of an Attempt
	Duration      time.Duration        // for the attempt; for Waiting, how long it waits; for Queued, how long it waited; for Closed, since Accepted; for EndpointQuarantined, its duration or when the next probe is due, as for EndpointProbed
	Err           string               // "" if it succeeded

	// Closed.
	End    outcome.Result // if read from a Log, Err above has the text of its Err
	Flags  conn.Flags
	Record *conn.Record // the connection's
	Ended  uint64       // number of connections ended by then, this one included; set by a Reader

	// Count is the number of rules repaired, of endpoints that a Service came with, or of changes not
	// recorded.
	Count int
}
