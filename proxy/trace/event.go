package trace

import (
	"net/netip"
	"time"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/proxy/conn"
	"github.com/usherproxy/usher/proxy/outcome"
)

// Kind is the kind of an event: a step of a connection, or a change.
type Kind uint8

// The steps of a connection, in their usual order.
const (
	Accepted    = Kind(conn.Accepted)
	Attempt     = Kind(conn.Attempted)
	Waiting     = Kind(conn.Waiting)
	Queued      = Kind(conn.Queued)
	Established = Kind(conn.Established) // client and endpoint are connected, bytes flow
	Closed      = Kind(conn.Closed)
)

// The changes.
const (
	ServiceAdded = Closed + 1 + iota
	// ServiceChanged: the configuration of a service port has changed, apart from its endpoints.
	ServiceChanged
	ServiceRemoved
	EndpointAdded
	// EndpointChanged: the conditions of the endpoint have changed.
	EndpointChanged
	EndpointRemoved
	// EndpointQuarantined: the endpoint failed, and is skipped for some time.
	EndpointQuarantined
	// EndpointProbed: a probe of a quarantined endpoint failed. This is recorded only if the time until the next probe
	// is longer than the time before this one.
	EndpointProbed
	// EndpointRecovered: the quarantine of the endpoint has ended; Reason says why.
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
	ByProbe  = "probe"            // a single probe will end, or has ended, the quarantine
	ByProbes = "probes"           // consecutive probes, which the Service configures, began or ended it
	NoProbes = "no longer probed" // the Service no longer configures the probes that began it
)

// IsStep reports whether k is a step of a connection, and not a change.
func (k Kind) IsStep() bool { return k <= Closed }

// Subject is the connection or service port that an event is about. It never changes.
type Subject struct {
	Conn     uint64 // number of the connection, unique in the process; 0 for a change
	Port     config.PortID
	Protocol config.Protocol
	Client   netip.AddrPort
	Via      *netip.AddrPort // the load balancer whose PROXY header named the client, or nil
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
	Result conn.Result // of an Attempt; otherwise 0

	Subject

	// An Attempt has all of these. Waiting and Queued have Attempt and Duration. Established, Closed, and changes of
	// endpoints have Endpoint and Pod, and other fields as noted.
	Attempt       int // 1 for the first; Waiting, Queued: number of attempts so far
	Endpoint      netip.AddrPort
	Pod           string
	Reason        string               // for the choice; changes: the endpoint's conditions, or a reason above
	Skipped       int                  // number of endpoints skipped because of quarantine
	SourceAddress portal.SourceAddress // that the endpoint of an Attempt sees
	// Duration is that of the attempt. Waiting: of the coming wait; Queued: of the past wait; Closed: since Accepted.
	// EndpointQuarantined: of the quarantine, or until its next probe; EndpointProbed: until the next probe.
	Duration time.Duration
	Err      string // "" without error

	// For Closed.
	End    outcome.Result // in an event that was read from a Log, Err above has the text of End.Err
	Flags  conn.Flags
	Record *conn.Record // of the connection
	Ended  uint64       // connections that have ended since a fresh Reader was created; meaningless from other Readers

	// Count is the number of repaired rules (PortalRepaired), of the new Service's endpoints (ServiceAdded), or of
	// changes that were not recorded (MoreChanges).
	Count int
}
