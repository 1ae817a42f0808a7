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

// Options configure a Proxy. Portal, Trace and Log are required; Defaults returns values for the others.
type Options struct {
	frontend.Settings
	stream.Options
	budget.Limits

	// FirstTurn is balance.Pool.FirstTurn. The default is random, so that not all nodes send the first connection of a
	// new Service to the same endpoint.
	FirstTurn func() uint32

	// Scheduler applies to Services that do not set one.
	Scheduler config.Scheduler
	// Probe holds the defaults for endpoint probes.
	Probe config.Probe

	// EndpointLimit is the maximum number of connections per endpoint; 0 = no limit. QueueTimeout is the maximum time
	// that a client waits for a free slot. A Service may set both.
	EndpointLimit int
	QueueTimeout  time.Duration
	// SlowStart is the time until a new endpoint has its full share of new connections; 0 = at once. A
	// Service may set it.
	SlowStart time.Duration

	// AccessLog is the default for Services that do not set whether clients are logged; 0 = no access log at all.
	AccessLog config.Switch

	// HalfClosed is the idle time after which a half-closed connection is ended; 0 = never.
	HalfClosed time.Duration
	// IdleTimeout is the idle time after which a connection is ended. MaxAge is the age at which it is ended, minus a
	// random part of up to a tenth. 0 = never. A Service may set both.
	IdleTimeout, MaxAge time.Duration
	// EndpointDrainTimeout is the time from the removal or termination of an endpoint until its connections are ended;
	// 0 = never. A Service may set it.
	EndpointDrainTimeout time.Duration
	// UDPIdleTimeout is the time without a datagram after which a UDP session ends. Before an endpoint has answered, it
	// is at most 1 minute. A Service may set it, for both cases.
	UDPIdleTimeout time.Duration

	// AffinityPerPort and AffinityTotal limit the number of clients that have session affinity.
	AffinityPerPort, AffinityTotal int64

	// TCPOnly, if not nil, is the reason that only TCP reaches the endpoints. Service ports of other
	// protocols are then not served.
	TCPOnly error

	// ClaimNodeAddresses lets external and load balancer IPs that are addresses of this node take ports that
	// node ports and processes use.
	ClaimNodeAddresses bool

	// Servers are the TCP addresses of usher's servers. A portal that redirects leaves their ports out of the node
	// ports.
	Servers []netip.AddrPort

	// CheckInterval is the interval of checks. A check compares the portal's rules with the kernel's, if the kernel's
	// may have changed, and retries service ports that failed.
	CheckInterval time.Duration

	// Store, if not nil, keeps copies of the listeners' sockets for the next process.
	Store *fdstore.Manager

	// OnProblem, if not nil, is called when a service port has a new or changed problem, and with nil when the problem
	// is solved. It must return quickly.
	OnProblem func(config.PortID, *Problem)
	// OnSync, if not nil, is called with the duration of a change or check. full is set for the first change and for
	// each check, since these process all Services.
	OnSync func(took time.Duration, full bool)
}

// Defaults returns the options of usher without flags.
func Defaults() Options {
	return Options{
		Settings: frontend.Settings{
			Schedule:   slices.Clone(search.DefaultSchedule),
			Quarantine: balance.Policy{First: time.Second, Max: 2 * time.Minute, UntilProbe: true},
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

// DirectDial connects to endpoints as a Proxy without Options.Dial does. Options.Portal must be set.
func (o *Options) DirectDial(ctx context.Context, to *config.Endpoint) (forward.Conn, error) {
	return stream.DialTCP(ctx, o.Portal.Mark(), o.Keepalive, netip.AddrPort{}, to.Addr)
}
