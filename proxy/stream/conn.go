package stream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/usherproxy/usher/proxy/balance"
	"github.com/usherproxy/usher/proxy/budget"
	"github.com/usherproxy/usher/proxy/conn"
	"github.com/usherproxy/usher/proxy/forward"
	"github.com/usherproxy/usher/proxy/frontend"
	"github.com/usherproxy/usher/proxy/outcome"
	"github.com/usherproxy/usher/proxy/proxyproto"
	"github.com/usherproxy/usher/proxy/search"
)

// Conn is one client's connection (for SCTP, association), from accept to close.
type Conn struct {
	frontend.Conn
	server *Server
	client client        // nil once established
	pair   pair          // what a loop moves, once established
	begun  chan struct{} // of one that goroutines serve, once established: closed when the register has it
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

// accepted returns the connection of a new client, or nil if there is no room for it: then it has
// been reset.
func (a *acceptor) accepted(client client, from netip.AddrPort) *Conn {
	c := &Conn{server: a.server, client: client}
	c.Record = &conn.Record{ID: a.front.NewID(), Port: a.front.View().Clients, From: from, Began: time.Now()}
	c.Front = a.front
	if err := a.server.register.add(c); err != nil {
		c.turnAway(err)
		return nil
	}
	return c
}

// turnAway resets a client for which there is no room, for the reason given.
func (c *Conn) turnAway(why error) {
	f := c.Front
	f.LimitErrors.Do(func() {
		f.Log.WithFields(map[string]any{"service": f.ID().String(), "open": f.Budget.Connections.Load(), "limit": f.Budget.ConnectionLimit()}).
			WithError(why).Error("Too many connections; refusing clients (logged at most every 10 s)")
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
func (c *Conn) introduced(first []byte, failed error) (n int, r outcome.Result) {
	var client netip.AddrPort
	if failed == nil {
		client, n, failed = proxyproto.Read(first)
	}
	if errors.Is(failed, proxyproto.ErrPanic) {
		c.server.panics.Do(func() {
			c.Front.Log.WithFields(map[string]any{"service": c.Front.ID().String(), "from": c.From.String()}).
				WithError(failed).Error("PROXY protocol header parser failed; refusing the connection (logged at most every 10 s)")
		})
	}
	switch {
	case c.server.ctx.Err() != nil:
		return 0, outcome.Result{Outcome: outcome.Drained, Err: c.server.ctx.Err()}
	case search.OutOfResources(failed):
		return 0, outcome.Result{Outcome: outcome.Limit, Err: failed}
	case errors.Is(failed, context.DeadlineExceeded):
		failed = fmt.Errorf("no PROXY protocol header received within %s", headerTimeout)
	case errors.Is(failed, io.ErrUnexpectedEOF) && len(first) == 0:
		failed = proxyproto.ErrMissing
	case errors.Is(failed, io.ErrUnexpectedEOF):
		failed = proxyproto.ErrCut
	}
	if failed != nil {
		return 0, outcome.Result{Outcome: outcome.ProxyHeaderInvalid, Err: failed}
	}
	balancer := c.From
	r = c.Introduce(client)
	if full := c.server.register.reassign(c, balancer.Addr()); r.Outcome == outcome.Open && full != nil {
		r = outcome.Result{Outcome: outcome.Limit, Err: full}
	}
	return n, r
}

// A runner is how a connection waits while it has no endpoint: in a loop, or in a goroutine.
type runner interface {
	frontend.Runner
	// awaitHeader reads the PROXY protocol header that is due, and calls enter.
	awaitHeader()
	// seek seeks an endpoint.
	seek()
}

// start takes the connection from accepted to established, or resets the client.
func (c *Conn) start(a *acceptor, run runner) {
	var err error
	if c.To = a.At; a.Redirected {
		c.To, err = c.client.originalDst()
	}
	if err != nil || !c.To.IsValid() || c.To.Addr().IsUnspecified() {
		c.To = plainAddr(c.client.LocalAddr())
	}
	r := outcome.Result{Outcome: outcome.BypassedPortal, Err: err}
	if err == nil {
		var due bool
		if due, r = c.Admit(c.Front.View(), &a.Place); due {
			run.awaitHeader() // Introduce knows whether the client may
			return
		}
	}
	c.enter(r, run)
}

// enter seeks an endpoint for the client if r is Open, and resets it otherwise.
func (c *Conn) enter(r outcome.Result, run runner) {
	refused := r.Outcome != outcome.Open
	if refused && c.RefusedUnlogged(r.Outcome) {
		c.reset()
		c.server.register.remove(c)
		return
	}
	c.Accepted()
	if refused {
		c.Refuse(r)
		return
	}
	run.seek()
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

// flowing notes what moves the connection's bytes from now on.
func (c *Conn) flowing(flow forward.Flow) {
	c.client = nil // flow has it
	c.Front.Trace.Moves(c.Record, flow)
	// Who goes through all that are open may have passed by already.
	if by, drained := c.Endpoint.Drained(); drained {
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
func (c *Conn) limits() *forward.Limits {
	shared := c.Front.View().Limits
	if shared.Age == 0 {
		return shared
	}
	own := *shared
	own.Age -= rand.N(1 + own.Age/ageJitter)
	return &own
}

// Ended implements forward.Owner, as frontend.Conn does with Answered, and the Record with Asked.
func (c *Conn) Ended(r outcome.Result) {
	if c.begun != nil {
		<-c.begun
		c.server.register.moving.Delete(c)
	}
	now, e, kind := time.Now(), c.Endpoint, balance.Closed
	switch r = c.Judged(r); {
	case r.Outcome == outcome.NoResponse:
		e.CountNoResponse(now)
	case r.Outcome.Fault() == outcome.FaultEndpoint:
		kind = balance.Broken
	}
	e.Release()
	e.Moved(r.ToEndpoint, r.ToClient)
	e.Report(balance.Report{Kind: kind, Now: now}, balance.Policy{})
	c.Closed(now, r, e.Addr)
	c.server.register.remove(c)
}

// Refuse implements frontend.Runner: it resets the client, so that it sees an error and not an empty answer.
func (c *Conn) Refuse(r outcome.Result) {
	if r.Outcome == outcome.Limit {
		c.Front.LimitErrors.Do(func() {
			c.Front.Log.WithField("service", c.Front.ID().String()).WithError(r.Err).
				Error("This node has run out of a resource that connections need (logged at most every 10 s)")
		})
	}
	c.reset()
	c.Closed(time.Now(), r, netip.AddrPort{})
	c.server.register.remove(c)
}

// reset closes the client's connection with a TCP reset or an SCTP abort.
func (c *Conn) reset() {
	_ = c.client.SetLinger(0) // fails only if the connection is gone already
	c.client.Close()
}

// register counts the connections that are open.
type register struct {
	budget  *budget.Budget
	moving  sync.Map                      // forward.Flow of those that goroutines serve, by *Conn
	clients [16]clients                   // who shares one shares a lock
	drained atomic.Pointer[chan struct{}] // closed when there is none any more; nil if nobody waits
}

// clients are some clients, and how many connections each has.
type clients struct {
	mu   sync.Mutex
	open map[netip.Addr]int64
}

// add takes room for conn, or says why there is none.
func (r *register) add(conn *Conn) error {
	toPort, client := conn.Front.Open.Add(1), conn.Payer()
	err := r.budget.TakeConnection(toPort, r.count(client, 1))
	if err != nil {
		conn.Front.Open.Add(-1)
		r.count(client, -1)
		r.tell()
	}
	return err
}

// reassign makes conn count as one of its Payer's now that its client is known: it counted as
// one of balancer's. The error is add's, and conn stays in the register.
func (r *register) reassign(conn *Conn, balancer netip.Addr) error {
	r.count(balancer, -1)
	return r.budget.RoomForClient(r.count(conn.Payer(), 1))
}

func (r *register) remove(conn *Conn) {
	conn.Front.Open.Add(-1)
	r.count(conn.Payer(), -1)
	r.budget.Connections.Add(-1)
	r.tell()
}

// count counts so many more of a client's, and returns how many that makes.
func (r *register) count(client netip.Addr, more int64) int64 {
	bits := client.As16()
	c := &r.clients[bits[15]%uint8(len(r.clients))]
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open == nil {
		c.open = map[netip.Addr]int64{}
	}
	n := c.open[client] + more
	if c.open[client] = n; n == 0 {
		delete(c.open, client)
	}
	return n
}

// each calls f for those that goroutines serve and that have an endpoint.
func (r *register) each(f func(*Conn, forward.Flow)) {
	r.moving.Range(func(conn, flow any) bool {
		f(conn.(*Conn), flow.(forward.Flow))
		return true
	})
}

// whenDrained returns a channel that is closed when no connection is open. It is asked for
// once, and no more are added then.
func (r *register) whenDrained() <-chan struct{} {
	drained := make(chan struct{})
	r.drained.Store(&drained)
	r.tell()
	return drained
}

// tell closes drained if it is time.
func (r *register) tell() {
	if r.budget.Connections.Load() != 0 {
		return
	}
	if drained := r.drained.Load(); drained != nil && r.drained.CompareAndSwap(drained, nil) {
		close(*drained)
	}
}
