package stream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"syscall"
	"time"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/proxy/balance"
	"github.com/usherproxy/usher/proxy/conn"
	"github.com/usherproxy/usher/proxy/forward"
	"github.com/usherproxy/usher/proxy/frontend"
	"github.com/usherproxy/usher/proxy/outcome"
	"github.com/usherproxy/usher/proxy/proxyproto"
	"github.com/usherproxy/usher/proxy/search"
)

// connection is one client's connection (for SCTP, association), from accept to
// close. What outlasts that is its Record.
type connection struct {
	frontend.Client
	server   *Server
	client   client            // nil once established
	endpoint *balance.Endpoint // once established; the connection releases it
}

// client is what the clients of all protocols have in common.
type client interface {
	LocalAddr() net.Addr
	// originalDst tells where the client wanted to go; see kernel.OriginalDst.
	originalDst() (netip.AddrPort, error)
	// SetLinger(0) makes Close send a reset or an abort.
	SetLinger(sec int) error
	Close() error
}

// accepted makes c the connection of a new client. It reports whether there is room for
// it: if not, it has been reset.
func (a *acceptor) accepted(c *connection, client client, from netip.AddrPort) bool {
	c.Record = &conn.Record{ID: a.front.NewID(), Port: a.front.View().Clients, From: from, Began: time.Now()}
	c.Front, c.server, c.client = a.front, a.server, client
	if err := a.server.register.add(c); err != nil {
		c.turnAway(err)
		return false
	}
	return true
}

// turnAway resets a client for which there is no room, for the reason given.
func (c *connection) turnAway(why error) {
	f := c.Front
	f.LimitErrors.Do(func() {
		f.Log.WithFields(map[string]any{"service": f.ID().String(), "open": f.Budget.Connections.Load(), "limit": f.Budget.ConnectionLimit()}).
			WithError(why).Error("Too many connections: clients are turned away (logged at most every 10 s)")
	})
	if c.RefusedUnlogged(outcome.Limit) {
		c.reset()
		return
	}
	c.To = plainAddr(c.client.LocalAddr())
	c.Accepted()
	c.reset()
	c.Closed(time.Now(), outcome.Result{Outcome: outcome.Limit, Err: why}, netip.AddrPort{})
}

// headerTimeout is how long a load balancer may take to say who the client is. It does so
// with its first packet, and that may be lost twice (tcp(7): after 1 s and 2 s).
const headerTimeout = 5 * time.Second

// introduced takes note of who the client is, by the header with which first begins, and
// returns how long that is and, as Admit does, whether the client may. failed is what kept more
// from coming.
func (c *connection) introduced(first []byte, failed error) (n int, r outcome.Result) {
	var client netip.AddrPort
	if failed == nil {
		client, n, failed = proxyproto.Read(first)
	}
	if errors.Is(failed, proxyproto.ErrPanic) {
		c.server.panics.Do(func() {
			c.Front.Log.WithFields(map[string]any{"service": c.Front.ID().String(), "from": c.From.String()}).
				WithError(failed).Error("The parser of PROXY protocol headers failed; the connection is refused (logged at most every 10 s)")
		})
	}
	switch {
	case c.server.ctx.Err() != nil:
		return 0, outcome.Result{Outcome: outcome.Drained, Err: c.server.ctx.Err()}
	case search.OutOfResources(failed):
		return 0, outcome.Result{Outcome: outcome.Limit, Err: failed}
	case errors.Is(failed, context.DeadlineExceeded):
		failed = fmt.Errorf("its PROXY protocol header did not come within %s", headerTimeout)
	case errors.Is(failed, io.ErrUnexpectedEOF) && len(first) == 0:
		failed = proxyproto.ErrMissing
	case errors.Is(failed, io.ErrUnexpectedEOF):
		failed = proxyproto.ErrCut
	}
	if failed != nil {
		return 0, outcome.Result{Outcome: outcome.HeaderRefused, Err: failed}
	}
	balancer := c.From
	r = c.Introduce(client)
	if full := c.server.register.reassign(c, balancer.Addr()); r.Outcome == outcome.Open && full != nil {
		r = outcome.Result{Outcome: outcome.Limit, Err: full}
	}
	return n, r
}

// entered reports whether the client may go on, who was admitted if r is Open. If not, it has
// been reset.
func (c *connection) entered(r outcome.Result) bool {
	refused := r.Outcome != outcome.Open
	if refused && c.RefusedUnlogged(r.Outcome) {
		c.reset()
		c.server.register.remove(c)
		return false
	}
	c.Accepted()
	if refused {
		c.refuse(r)
	}
	return !refused
}

// admit finds out where the client wanted to go, and whether it may.
func (c *connection) admit(a *acceptor) outcome.Result {
	if !a.Redirected {
		c.To = a.local(c.client)
		return c.Admit(c.Front.View(), &a.Place)
	}
	var err error
	if c.To, err = c.client.originalDst(); err != nil {
		c.To = a.local(c.client)
		return outcome.Result{Outcome: outcome.NotAdmitted, Err: err}
	}
	return c.Admit(c.Front.View(), &a.Place)
}

// A dialer connects to an endpoint, from an address that need not be the node's, or, if
// it is not valid, one that the kernel picks. It returns when ctx ends.
type dialer func(_ context.Context, from netip.AddrPort, to *config.Endpoint) (forwarder, error)

// A forwarder begins to forward between the client and the endpoint that it is connected
// to. It returns at once, and calls back from a goroutine of its own.
type forwarder func(*forward.Limits, forward.Owner) forward.Flow

// serve takes the connection from accepted to established, by the goroutine that calls
// it, and hands it to the forwarder; or resets it. introduce is called if a header is due,
// and finds out who the client is.
func (c *connection) serve(a *acceptor, introduce func() outcome.Result, dial dialer) {
	r := c.admit(a)
	if r.Outcome == outcome.Open && c.HeaderDue() {
		r = introduce()
	}
	if !c.entered(r) {
		return
	}
	forward, endpoint, r := c.find(dial)
	if r.Outcome != outcome.Open {
		c.refuse(r)
		return
	}
	c.endpoint = endpoint
	c.forward(forward)
}

// forward hands the connection to the forwarder.
func (c *connection) forward(begin forwarder) {
	owner := registered{c, make(chan struct{})}
	flow := begin(c.limits(), owner)
	c.server.register.moves(c, flow)
	c.flowing(flow)
	close(owner.begun)
}

// registered is a connection as the owner of what the register has of it.
type registered struct {
	*connection
	begun chan struct{} // closed when the register has it
}

// Ended implements forward.Owner.
func (r registered) Ended(result outcome.Result) {
	<-r.begun
	r.server.register.moves(r.connection, nil)
	r.connection.Ended(result)
}

// find makes attempts until one succeeds. Otherwise it returns how the client ends.
func (c *connection) find(dial dialer) (forwarder, *balance.Endpoint, outcome.Result) {
	ctx, s := c.server.ctx, c.NewSearch()
	for {
		v := c.Front.View()
		step := s.Next(c.Endpoints(v), time.Now())
		switch step.Do {
		case search.GiveUp:
			return nil, nil, step.Result
		case search.Wait:
			why, gone := errClientReset, forward.WaitReset
			if s.Queued() {
				why, gone = errClientLeft, c.waitLeft
			}
			err := c.whileThere(ctx, why, gone, func(ctx context.Context) error {
				wait(ctx, step, v.Replaced)
				return ctx.Err()
			})
			if err != nil {
				s.Abandon(time.Now())
				return nil, nil, left(err)
			}
			continue
		}
		forward, err := c.attempt(ctx, &s, step, dial)
		switch now := time.Now(); {
		case err == nil:
			s.Answered(now)
			return forward, step.Endpoint, outcome.Result{}
		case ctx.Err() != nil:
			s.Left(now, err) // whatever became of the attempt
			step.Endpoint.Release()
			return nil, nil, left(ctx.Err())
		case err == errClientReset:
			s.Left(now, err)
			step.Endpoint.Release()
			return nil, nil, left(err)
		default:
			s.Failed(now, err)
			step.Endpoint.Release()
		}
	}
}

// Why a client is not served any more for which an endpoint was sought.
var (
	errClientLeft  = errors.New("the client left while it waited in the queue for an endpoint")
	errClientReset = errors.New("the client reset the connection before it had an endpoint")
)

// left returns the Result of a client that is not served any more since it is gone, or else since
// usher stops.
func left(why error) outcome.Result {
	if why == errClientLeft || why == errClientReset {
		return outcome.Result{Outcome: outcome.ClientReset, Err: why}
	}
	return outcome.Result{Outcome: outcome.Drained, Err: why}
}

// attempt makes one attempt, and gives up when its time is over.
func (c *connection) attempt(ctx context.Context, s *search.Search, step search.Step, dial dialer) (forwarder, error) {
	if err := c.Front.LeadsBack(c.Front.Protocol, step.Endpoint.Addr); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, step.For)
	defer cancel()
	return dial(ctx, c.Origin(s, step.Endpoint), step.Endpoint.Endpoint)
}

// wait returns when a step that says Wait is over, or ctx ends. replaced is closed when there are other endpoints.
func wait(ctx context.Context, step search.Step, replaced <-chan struct{}) {
	timer := time.NewTimer(step.For)
	defer timer.Stop()
	if step.Behind {
		replaced = nil
	}
	select {
	case <-timer.C:
	case <-step.Woken:
	case <-replaced:
	case <-ctx.Done():
	}
}

// waitLeft returns true when the client has left, and false when its read deadline is over.
func (c *connection) waitLeft(raw syscall.RawConn) bool {
	tcp, is := c.client.(*keptClient)
	return forward.WaitLeft(raw, is && len(tcp.kept) > 0)
}

// whileThere calls f with a context that also ends when gone, which is called with the client's socket,
// returns true: if f fails then, whileThere returns why. The client is not read meanwhile. For clients
// without a socket, and on systems that do not report it, the context is ctx.
func (c *connection) whileThere(ctx context.Context, why error, gone func(syscall.RawConn) bool, f func(context.Context) error) error {
	client, ok := c.client.(interface {
		SyscallConn() (syscall.RawConn, error)
		SetReadDeadline(time.Time) error
	})
	if !ok {
		return f(ctx)
	}
	raw, err := client.SyscallConn()
	if err != nil {
		return f(ctx)
	}
	there, left := context.WithCancelCause(ctx)
	defer left(nil)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if gone(raw) {
			left(why)
		}
	}()
	err = f(there)
	_ = client.SetReadDeadline(time.Unix(1, 0)) // fails only if the client is gone
	<-done
	_ = client.SetReadDeadline(time.Time{})
	if err != nil && context.Cause(there) == why {
		return why
	}
	return err
}

// flowing notes what moves the connection's bytes from now on.
func (c *connection) flowing(flow forward.Flow) {
	c.client = nil // flow has it
	c.Front.Trace.Moves(c.Record, flow)
	// Who goes through all that are open may have passed by already.
	if by, drained := c.endpoint.Drained(); drained {
		flow.Retire(by)
	}
	if c.server.ctx.Err() != nil {
		flow.Break()
	}
}

// A connection may lack an ageJitter-th part of its maximum age: those that were
// opened at the same time shall not all come back at the same time.
const ageJitter = 10

// limits returns how long the connection may last.
func (c *connection) limits() *forward.Limits {
	shared := c.Front.View().Limits
	if shared.Age == 0 {
		return shared
	}
	own := *shared
	own.Age -= rand.N(1 + own.Age/ageJitter)
	return &own
}

// Answered implements forward.Owner, as Record does with Asked.
func (c *connection) Answered(now time.Time) { c.Client.Answered(now, c.endpoint) }

// Ended implements forward.Owner.
func (c *connection) Ended(r outcome.Result) {
	if r.Outcome == outcome.Unanswered {
		c.endpoint.CountUnanswered()
	}
	c.endpoint.Release()
	c.endpoint.Moved(r.ToEndpoint, r.ToClient)
	now := time.Now()
	c.Parted(now, c.endpoint, r.Outcome.Fault() == outcome.FaultEndpoint)
	c.Closed(now, r, c.endpoint.Addr)
	c.server.register.remove(c)
}

// refuse resets the client, so that it sees an error and not an empty answer.
func (c *connection) refuse(r outcome.Result) {
	if r.Outcome == outcome.Limit {
		c.Front.LimitErrors.Do(func() {
			c.Front.Log.WithField("service", c.Front.ID().String()).WithError(r.Err).
				Error("This node has run out of something that connections need (logged at most every 10 s)")
		})
	}
	c.reset()
	c.Closed(time.Now(), r, netip.AddrPort{})
	c.server.register.remove(c)
}

// reset closes the client's connection with a TCP reset or an SCTP abort.
func (c *connection) reset() {
	_ = c.client.SetLinger(0) // fails only if the connection is gone already
	c.client.Close()
}
