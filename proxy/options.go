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
		Options:         stream.Options{Keepalive: 3 * time.Minute, SCTP: stream.SCTPAuto},
		Limits:          budget.Limits{MaxUDPSessions: 65536, MaxClientShare: 25},
		FirstTurn:       rand.Uint32,
		AffinityPerPort: 65536,
		AffinityTotal:   1 << 20,
		CheckInterval:   10 * time.Second,
	}
}

// DirectDial connects to endpoints as a Proxy without Options.Dial does. Options.Portal must be set.
func (o *Options) DirectDial(ctx context.Context, to *config.Endpoint) (forward.Conn, error) {
	return stream.DialTCP(ctx, o.Portal.Mark(), o.Keepalive, netip.AddrPort{}, to.Addr)
}
