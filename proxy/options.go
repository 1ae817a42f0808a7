package proxy

import (
	"context"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/proxy/balance"
	"github.com/usherproxy/usher/proxy/forward"
	"github.com/usherproxy/usher/proxy/search"
	"github.com/usherproxy/usher/proxy/stream"
	"github.com/usherproxy/usher/proxy/trace"
)

// Options are what a Proxy is made of. Portal, Trace and Log are required;
// Defaults gives values for the others.
type Options struct {
	Portal portal.Portal
	Trace  *trace.Log
	Log    logrus.FieldLogger

	// Schedule is how long each attempt to connect may take.
	Schedule   []time.Duration
	Quarantine balance.Quarantine
	// FirstTurn is balance.Pool.FirstTurn. By default it is chance: nodes that all began
	// with the first endpoint would all send it the first connection of a new Service.
	FirstTurn func() uint32

	// HalfClosed ends a connection that one side has ended and in which nothing
	// moves; 0 means never.
	HalfClosed time.Duration
	// IdleTimeout ends a connection in which nothing moves, and MaxAge one that
	// is so old, less up to a tenth; 0 means never. A Service may have its own.
	IdleTimeout, MaxAge time.Duration
	// Keepalive is how long a connection is silent before it is probed, on
	// both sides.
	Keepalive time.Duration

	// Affinity bounds how many clients are remembered.
	AffinityPerPort, AffinityTotal int64

	// MaxConnections bounds the connections that are open at once. 0 means as
	// many as file descriptors allow, which is the bound in any case: a
	// little under half of them.
	MaxConnections int64
	// MaxConnectionsPerPort bounds those of one service port; 0 means half of
	// them when there is little room left.
	MaxConnectionsPerPort int64

	// MaxClientShare is how many percent of the connections, and of the UDP
	// sessions, that may be open at once one client address may have when there is
	// little room left; 100 means as many as there are. The client that has more
	// gets no further connection, and its session that has been idle longest ends.
	MaxClientShare int64

	// SCTP says whether SCTP Services are served.
	SCTP stream.SCTPMode

	// Ports are the local ports for listeners that are not on a VIP; none means
	// any.
	Ports portal.PortRange

	// Dial, if not nil, connects to TCP endpoints in place of the kernel, which
	// costs two goroutines for each connection. It returns when ctx ends. What it
	// returns may be a [stream.Unconfirmed]. An error whose method Futile returns true says
	// that the Service's other endpoints cannot be reached either.
	Dial func(ctx context.Context, to *config.Endpoint) (forward.Conn, error)
	// TCPOnly, if not nil, says why nothing but TCP reaches the endpoints: service
	// ports of other protocols are not served.
	TCPOnly error

	// UDPIdleTimeout is how long a UDP session lasts without a datagram, unless
	// the Service says otherwise.
	UDPIdleTimeout time.Duration
	// MaxUDPSessions bounds the UDP sessions that are open at once. A quarter
	// of the file descriptors is the bound in any case.
	MaxUDPSessions int64
	// MaxUDPSessionsPerPort bounds those of one service port; 0 means half of
	// what all may have together.
	MaxUDPSessionsPerPort int64

	// Socket makes the sockets of TCP and UDP listeners; nil is socket(2). With
	// another one, which must do what that does, they may be in a network
	// namespace that this process is not in. Linux only; SCTP is not served then.
	Socket func(domain, kind, protocol int) (fd int, err error)

	// CheckInterval is how often the portal's rules are compared with the
	// kernel's, and what could not be served is tried again.
	CheckInterval time.Duration

	// IsPod, if not nil, reports whether the client at an address is a Pod of this node,
	// besides those of SetPodNetworks. It is asked for each client of a VIP that is
	// not a cluster IP, from many goroutines, and must return quickly. For the portal
	// see portal.Options.PodInterfaces.
	IsPod func(netip.Addr) bool

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
		Schedule:        slices.Clone(search.DefaultSchedule),
		Quarantine:      balance.Quarantine{First: time.Second, Max: 2 * time.Minute, Probed: true},
		FirstTurn:       rand.Uint32,
		HalfClosed:      10 * time.Minute,
		Keepalive:       3 * time.Minute,
		AffinityPerPort: 65536,
		AffinityTotal:   1 << 20,
		SCTP:            stream.SCTPAuto,
		UDPIdleTimeout:  time.Minute,
		MaxUDPSessions:  65536,
		MaxClientShare:  25,
		CheckInterval:   10 * time.Second,
	}
}

// DirectDial connects to endpoints as a Proxy without Options.Dial does. Options.Portal
// must be set by then.
func (o *Options) DirectDial(ctx context.Context, to *config.Endpoint) (forward.Conn, error) {
	return stream.DialTCP(ctx, o.Portal.Mark(), o.Keepalive, to.Addr)
}
