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

// Options are the settings of a Server.
type Options struct {
	// Keepalive is the time without data after which a connection is probed, on both sides.
	Keepalive time.Duration
	// SCTP selects whether SCTP Services are served.
	SCTP SCTPMode
	// Dial, if not nil, connects to TCP endpoints in place of the kernel. Each connection then takes two goroutines.
	// Dial must give up when ctx ends. Its connection may be an [Unconfirmed]. An error whose method Futile returns
	// true means that the Service's other endpoints are unreachable too.
	Dial func(ctx context.Context, to *config.Endpoint) (forward.Conn, error)
}

// Server serves the connections of all front ends of a node.
type Server struct {
	node *frontend.Node
	Options
	dial      func(_ context.Context, from netip.AddrPort, to *config.Endpoint) (forward.Conn, error) // Options.Dial, or the kernel's
	register  register
	pollers   *forward.Pollers
	loops     loops
	stopping  sync.Mutex     // guards the start and the end of the loops
	panics    rate.Sometimes // limits log lines about panics of a parser
	transfers sync.WaitGroup // goroutines that exchange connections with a successor, a predecessor or the keeper
	saving    *saving        // nil without a keeper
	saved     atomic.Int64   // number of saved connections

	// ctx ends when Drain gives up the open connections.
	ctx    context.Context
	giveUp context.CancelFunc
}

// New returns a Server without listeners, whose loops use pollers. Only one goroutine at a time may call ListenTCP or
// ListenSCTP. Before each call, the goroutine checks the limit of listeners (budget.AdmitListener); the call then
// counts the listener in the budget.
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

// Serve serves a client that requested vip by another protocol, such as SOCKS, as if it had connected to vip. It takes
// ownership of client and returns at once.
func (s *Server) Serve(front *frontend.FrontEnd, client forward.Conn, from, vip netip.AddrPort) {
	a := &acceptor{server: s, front: front, Place: frontend.Place{At: vip}}
	a.SetTargets([]portal.Target{{Protocol: portal.TCP, Addr: vip.Addr(), Port: vip.Port()}})
	a.servePortable(client, from)
}

// Saved returns the number of open connections for which the keeper has copies of the sockets. They survive a crash,
// except those with bytes in this process.
func (s *Server) Saved() int64 { return s.saved.Load() }

// Drain waits until all connections have ended. When ctx ends, it resets those that are still open, and returns their
// number. The listeners must be closed.
func (s *Server) Drain(ctx context.Context) (broken int) {
	drained := make(chan struct{})
	s.register.drained.Store(&drained)
	s.register.closeDrained()
	select {
	case <-drained:
	case <-ctx.Done():
	}
	broken = int(s.node.Budget.Connections.Load())
	s.giveUp()
	s.register.each(func(_ *Conn, flow forward.Flow) { flow.Break() })
	s.loops.giveUp()
	<-drained
	s.transfers.Wait()
	s.stopping.Lock()
	defer s.stopping.Unlock()
	s.loops.stop(s)
	return broken
}

// Retire ends the connections to the given endpoints, each the next time it is idle, or at the deadline. Retire may run
// concurrently with Drain, but not with ListenTCP.
func (s *Server) Retire(endpoints map[*balance.State]bool, deadline time.Time) {
	if len(endpoints) == 0 {
		return
	}
	s.register.each(func(c *Conn, flow forward.Flow) {
		if endpoints[c.Endpoint.State] {
			flow.Retire(deadline)
		}
	})
	s.stopping.Lock()
	defer s.stopping.Unlock()
	s.loops.retire(endpoints, deadline)
}

// keepaliveProbes is the number of probes without an answer after which a peer counts as lost, keepaliveInterval the
// time between them.
const (
	keepaliveProbes   = 3
	keepaliveInterval = 30 * time.Second
)

// Receiver finds the front ends and endpoints for connections of a predecessor.
type Receiver interface {
	// Begin waits until connections can be accepted. If it returns nil, End must follow. After an error, none can be
	// accepted.
	Begin() error
	End()
	// Find returns the front end that serves port or, if there is none, the one of port's Service that serves vip. It
	// also returns the endpoint of that front end with e's address and Pod. If there is no front end, both are nil. The
	// parameter left is the time at which e was removed or began to terminate; it is zero if neither has happened or,
	// after a crash, if the time is unknown. Find is called between Begin and End.
	Find(port config.PortID, vip netip.AddrPort, e *config.Endpoint, left time.Time) (*frontend.FrontEnd, *balance.Endpoint)
}
