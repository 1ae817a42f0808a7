package proxy

import (
	"context"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/portal/fdstore"
	"github.com/usherproxy/usher/proxy/balance"
	"github.com/usherproxy/usher/proxy/budget"
	"github.com/usherproxy/usher/proxy/forward"
	"github.com/usherproxy/usher/proxy/frontend"
	"github.com/usherproxy/usher/proxy/search"
	"github.com/usherproxy/usher/proxy/stream"
)

// Options are what a Proxy is made of. Portal, Trace and Log are required;
// Defaults gives values for the others.
type Options struct {
	frontend.Settings
	stream.Options
	budget.Limits

	// FirstTurn is balance.Pool.FirstTurn. By default it is chance: nodes that all began
	// with the first endpoint would all send it the first connection of a new Service.
	FirstTurn func() uint32

	// Scheduler is that of the Services which name none.
	Scheduler config.Scheduler
	// Probe is what Services do not say of the probes of their endpoints.
	Probe config.Probe

	// EndpointLimit is how many connections each endpoint of a Service may have that does not say
	// so itself, 0 any number; QueueTimeout is how long clients wait until one has room.
	EndpointLimit int
	QueueTimeout  time.Duration
	// SlowStart is how long it takes until an endpoint that is new has its whole share of new
	// connections, unless the Service says otherwise; 0 is no time.
	SlowStart time.Duration

	// AccessLog is whether the clients of Services that do not say are in the access log; 0 if
	// there is none.
	AccessLog config.Switch

	// HalfClosed ends a connection that one side has ended and in which nothing
	// moves; 0 means never.
	HalfClosed time.Duration
	// IdleTimeout ends a connection in which nothing moves, and MaxAge one that
	// is so old, less up to a tenth; 0 means never. A Service may have its own.
	IdleTimeout, MaxAge time.Duration
	// EndpointDrainTimeout is after how long connections end to an endpoint that left, or
	// terminates; 0 means never. A Service may have its own.
	EndpointDrainTimeout time.Duration
	// UDPIdleTimeout is how long a UDP session lasts without a datagram once an endpoint has
	// answered; before, it is 1 minute at most. A Service may have its own, for both.
	UDPIdleTimeout time.Duration

	// Affinity bounds how many clients are remembered.
	AffinityPerPort, AffinityTotal int64

	// TCPOnly, if not nil, says why nothing but TCP reaches the endpoints: service
	// ports of other protocols are not served.
	TCPOnly error

	// ClaimNodeAddresses lets external and load balancer IPs that are addresses of this node
	// have the ports of node ports and processes too.
	ClaimNodeAddresses bool

	// CheckInterval is how often the portal is checked, which compares its rules with
	// the kernel's if those may have changed, and what could not be served is tried again.
	CheckInterval time.Duration

	// Store, if not nil, is who keeps copies of the listeners' sockets for the process
	// that comes after this one.
	Store *fdstore.Manager

	// OnProblem, if not nil, is told when a service port gets a problem, when
	// that becomes another one, and, with nil, when it is over. It must return
	// quickly.
	OnProblem func(config.PortID, *Problem)
	// OnSync, if not nil, is told how long it took to carry out a change, or, if it
	// was full, everything: the first one, and each check.
	OnSync func(took time.Duration, full bool)
}

// Defaults returns the options that usher has without flags.
func Defaults() Options {
	return Options{
		Settings: frontend.Settings{
			Schedule:   slices.Clone(search.DefaultSchedule),
			Quarantine: balance.Policy{First: time.Second, Max: 2 * time.Minute, Probed: true},
		},
		Options:   stream.Options{Keepalive: 3 * time.Minute, SCTP: stream.SCTPAuto},
		Limits:    budget.Limits{MaxUDPSessions: 65536, MaxClientShare: 25},
		FirstTurn: rand.Uint32,
		Scheduler: config.RoundRobin,
		Probe: config.Probe{
			Check: config.Check{Kind: config.NoCheck}, Interval: 10 * time.Second, Timeout: 5 * time.Second, Rise: 2, Fall: 3,
		},
		QueueTimeout:    30 * time.Second,
		HalfClosed:      10 * time.Minute,
		AffinityPerPort: 65536,
		AffinityTotal:   1 << 20,
		UDPIdleTimeout:  2 * time.Minute,
		CheckInterval:   10 * time.Second,
	}
}

// DirectDial connects to endpoints as a Proxy without Options.Dial does. Options.Portal
// must be set by then.
func (o *Options) DirectDial(ctx context.Context, to *config.Endpoint) (forward.Conn, error) {
	return stream.DialTCP(ctx, o.Portal.Mark(), o.Keepalive, netip.AddrPort{}, to.Addr)
}
