package stream

import (
	"context"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/proxy/balance"
	"github.com/usherproxy/usher/proxy/forward"
	"github.com/usherproxy/usher/proxy/frontend"
)

// Options are what a Server is made with.
type Options struct {
	// Keepalive is how long a connection is silent before it is probed, on
	// both sides.
	Keepalive time.Duration
	// SCTP says whether SCTP Services are served.
	SCTP SCTPMode
	// Dial, if not nil, connects to TCP endpoints in place of the kernel, which
	// costs two goroutines for each connection. It returns when ctx ends. What it
	// returns may be an [Unconfirmed]. An error whose method Futile returns true says
	// that the Service's other endpoints cannot be reached either.
	Dial func(ctx context.Context, to *config.Endpoint) (forward.Conn, error)
}

// Server serves the connections of all front ends of a node.
type Server struct {
	node *frontend.Node
	Options
	dial     func(_ context.Context, from netip.AddrPort, to *config.Endpoint) (forward.Conn, error) // Options.Dial, or the kernel's
	register register
	pollers  *forward.Pollers
	loops    loops
	stopping sync.Mutex     // the loops, or who relies on that they run
	panics   rate.Sometimes // limits log lines about panics of a parser
	handing  sync.WaitGroup // what hands over to a successor, or takes over from a predecessor
	saving   *saving        // nil without a keeper
	saved    atomic.Int64   // connections

	// ctx ends when connections are to be given up; see Drain.
	ctx    context.Context
	giveUp context.CancelFunc
}

// New returns a Server without listeners, whose loops are on pollers. ListenTCP and ListenSCTP are called by one
// goroutine at a time, when the budget has room for a listener, of which they take it.
func New(node *frontend.Node, pollers *forward.Pollers, o Options) *Server {
	s := &Server{node: node, Options: o, pollers: pollers, register: register{budget: node.Budget}, panics: rate.Sometimes{First: 1, Interval: 10 * time.Second}}
	s.dial = func(ctx context.Context, from netip.AddrPort, to *config.Endpoint) (forward.Conn, error) {
		if o.Dial != nil {
			return o.Dial(ctx, to)
		}
		return DialTCP(ctx, node.Portal.Mark(), o.Keepalive, from, to.Addr)
	}
	s.ctx, s.giveUp = context.WithCancel(context.Background())
	return s
}

// Serve serves a TCP client that has asked for vip by other means than to connect to
// it, as if it had come through a portal. It takes over client and returns at once.
func (s *Server) Serve(front *frontend.FrontEnd, client forward.Conn, from, vip netip.AddrPort) {
	a := &acceptor{server: s, front: front, Place: frontend.Place{At: vip}}
	a.SetTargets([]portal.Target{{Protocol: portal.TCP, Addr: vip.Addr(), Port: vip.Port()}})
	a.servePortable(client, from)
}

// Saved returns how many open connections survive a crash of this process.
func (s *Server) Saved() int64 { return s.saved.Load() }

// Drain waits until the connections that are open have ended, and breaks those
// that are still there when ctx ends. It returns how many it had to break. The
// listeners are closed before.
func (s *Server) Drain(ctx context.Context) (broken int) {
	drained := s.register.whenDrained()
	select {
	case <-drained:
	case <-ctx.Done():
	}
	broken = int(s.node.Budget.Connections.Load())
	s.giveUp()
	s.register.each(func(_ *Conn, flow forward.Flow) { flow.Break() })
	s.loops.giveUp()
	<-drained
	s.handing.Wait()
	s.stopping.Lock()
	defer s.stopping.Unlock()
	s.loops.stop(s)
	return broken
}

// Retire makes the connections to some endpoints end: each in its next silent moment, by a
// time in any case. It may be called while others call Drain, and not ListenTCP.
func (s *Server) Retire(endpoints map[*balance.State]bool, by time.Time) {
	if len(endpoints) == 0 {
		return
	}
	s.register.each(func(c *Conn, flow forward.Flow) {
		if endpoints[c.Endpoint.State] {
			flow.Retire(by)
		}
	})
	s.stopping.Lock()
	defer s.stopping.Unlock()
	s.loops.retire(endpoints, by)
}

// keepaliveProbes and keepaliveInterval are how often and at what distance a
// silent peer is probed before it counts as gone.
const (
	keepaliveProbes   = 3
	keepaliveInterval = 30 * time.Second
)

// Heir finds what connections of a predecessor belong to here.
type Heir interface {
	// Begin returns when connections can be taken at once; an error means never. End follows.
	Begin() error
	End()
	// Find returns, between Begin and End, the front end for a connection of a service port to vip, and its endpoint there, which is
	// leaving since a time unless that is zero. It returns nil if there is no such front end.
	Find(port config.PortID, vip netip.AddrPort, e *config.Endpoint, left time.Time) (*frontend.FrontEnd, *balance.Endpoint)
}
