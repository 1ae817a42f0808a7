package stream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
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

// Conn is one client's connection (in SCTP, an association), from accept to close.
type Conn struct {
	frontend.Conn
	server *Server
	client client        // nil once established
	pair   pair          // the pair that a loop forwards, once established
	begun  chan struct{} // nil if a loop forwards; closed when the flow is in register.goroutineFlows
	stays  bool          // it was offered to a successor, which did not take it: it is not offered again
}

// client is the common part of the clients of all protocols.
type client interface {
	localAddr() netip.AddrPort
	// originalDst returns the address that a client with address from connected to (see kernel.OriginalDst). It does
	// not use the Conn, which is not set yet when a limit refuses the client.
	originalDst(from netip.Addr) (netip.AddrPort, error)
	// SetLinger(0) makes Close send a reset or an abort.
	SetLinger(sec int) error
	Close() error
}

// accepted returns the connection of a new client. It resets the client and returns nil if a limit is reached.
func (a *acceptor) accepted(client client, from netip.AddrPort) *Conn {
	c := &Conn{server: a.server, client: client}
	c.Record = &conn.Record{ID: a.front.NewID(), Port: a.front.View().Clients, From: from, Start: time.Now()}
	c.Front = a.front
	if full := a.server.register.add(c); full != nil {
		c.turnAway(outcome.Result{Outcome: outcome.Limit, Err: full}, func() {
			if c.To = a.At; a.Redirected {
				c.To, _ = client.originalDst(from.Addr())
			}
			if !c.To.IsValid() || c.To.Addr().IsUnspecified() {
				c.To = client.localAddr()
			}
		})
		return nil
	}
	return c
}

// turnAway resets a client that is not admitted; r is the reason. It calls setTo, which sets To, only if it records the
// client; in a flood it only counts.
func (c *Conn) turnAway(r outcome.Result, setTo func()) {
	if r.Outcome == outcome.Limit {
		c.logLimit(r.Err)
	}
	if !c.CountUnlogged(r.Outcome) {
		setTo()
		c.Accepted()
		c.Closed(time.Now(), r, netip.AddrPort{})
	}
	c.reset()
}

// logLimit logs why a client is refused.
func (c *Conn) logLimit(why error) {
	f := c.Front
	f.LimitLog.Do(func() {
		log := f.Log.WithField("service", f.ID().String()).WithError(why)
		if search.OutOfResources(why) {
			log.Error("This node has run out of a resource that connections need (logged at most every 10 s)")
			return
		}
		log.WithFields(map[string]any{"open": f.Budget.Connections.Load(), "limit": f.Budget.ConnectionLimit()}).
			Error("Too many connections; refusing clients (logged at most every 10 s)")
	})
}

// headerTimeout is the time for a load balancer to send the PROXY protocol header. It allows for two losses of the
// packet with the header: TCP retransmits it after about 1 s, and again 2 s later (RFC 6298).
const headerTimeout = 5 * time.Second

// readHeader reads the PROXY protocol header at the start of first and records the client that it names. It returns the
// header's length, and Open if the client is admitted, otherwise why it is not. failed is the error that ended reading.
func (c *Conn) readHeader(first []byte, failed error) (n int, r outcome.Result) {
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
	r = c.SetProxiedClient(client)
	if full := c.server.register.reassign(c, balancer.Addr()); r.Outcome == outcome.Open && full != nil {
		r = outcome.Result{Outcome: outcome.Limit, Err: full}
	}
	return n, r
}

// A runner waits on behalf of a connection that has no endpoint yet: in a loop, or in a goroutine.
type runner interface {
	frontend.Runner
	// awaitHeader reads the PROXY protocol header, and calls enter.
	awaitHeader()
	// seek starts the search for an endpoint.
	seek()
}

// start admits the client and starts the search for an endpoint, or resets the client. In a loop, the search continues
// after start has returned.
func (c *Conn) start(a *acceptor, run runner) {
	var err error
	if c.To = a.At; a.Redirected {
		c.To, err = c.client.originalDst(c.From.Addr())
	}
	if err != nil || !c.To.IsValid() || c.To.Addr().IsUnspecified() {
		c.To = c.client.localAddr()
	}
	r := outcome.Result{Outcome: outcome.BypassedPortal, Err: err}
	if err == nil {
		var due bool
		if due, r = c.Admit(c.Front.View(), &a.Place); due {
			run.awaitHeader() // SetProxiedClient decides whether the client is allowed
			return
		}
	}
	c.enter(r, run)
}

// enter seeks an endpoint for the client if r is Open, and otherwise resets it.
func (c *Conn) enter(r outcome.Result, run runner) {
	if r.Outcome != outcome.Open {
		c.turnAway(r, func() {}) // start has set To
		c.server.register.remove(c)
		return
	}
	c.Accepted()
	run.seek()
}

// Reasons why the search for an endpoint ends before there is one.
var (
	errClientLeft  = errors.New("the client left while it waited in the queue for an endpoint")
	errClientReset = errors.New("the client reset the connection before it had an endpoint")
)

// searchEnded returns the Result for a client whose search ended because the client left or usher stops.
func searchEnded(why error) outcome.Result {
	if why == errClientLeft || why == errClientReset {
		return outcome.Result{Outcome: outcome.ClientReset, Err: why}
	}
	return outcome.Result{Outcome: outcome.Drained, Err: why}
}

// flowing records flow as the part that forwards the connection's bytes from now on.
func (c *Conn) flowing(flow forward.Flow) {
	c.client = nil // flow owns it
	c.VIP = nil    // unused from now on; the pointer would keep a replaced list of up to 100,000 VIPs
	c.Front.Trace.Moves(c.Record, flow)
	// Retire and Drain may have visited the open connections before this one was among them.
	if by, drained := c.Endpoint.Drained(); drained {
		flow.Retire(by)
	}
	if c.server.ctx.Err() != nil {
		flow.Break()
	}
}

// A connection's maximum age is shortened at random, by up to 1/ageJitter. Otherwise connections that were opened at
// the same time would all reconnect at the same time.
const ageJitter = 10

// limits returns the limits of the connection, with its own maximum age.
func (c *Conn) limits() *forward.Limits {
	shared := c.Front.View().Limits
	if shared.Age == 0 {
		return shared
	}
	own := *shared
	own.Age -= rand.N(1 + own.Age/ageJitter)
	return &own
}

// A connection that its client closes or resets within unusedTime, before any byte has moved, counts as unused.
const unusedTime = time.Second

// Ended implements forward.Owner. The embedded frontend.Conn and Record have its other methods.
func (c *Conn) Ended(r outcome.Result) {
	if c.begun != nil {
		<-c.begun
		c.server.register.goroutineFlows.Delete(c)
	}
	now, e, kind := time.Now(), c.Endpoint, balance.Closed
	switch r = c.FinalResult(r); {
	case r.Outcome == outcome.NoResponse:
		e.CountNoResponse(now)
	case r.Outcome.Fault() == outcome.FaultEndpoint:
		kind = balance.Broken
	case r.ToEndpoint == 0 && r.ToClient == 0 && now.Sub(c.Start) < unusedTime && (r.Outcome == outcome.ClientClosed || r.Outcome == outcome.ClientReset):
		e.CountUnused(now)
	}
	e.Release()
	e.Moved(r.ToEndpoint, r.ToClient)
	e.Report(balance.Report{Kind: kind, Now: now}, balance.Policy{})
	c.Closed(now, r, e.Addr)
	c.server.register.remove(c)
}

// Refuse implements frontend.Runner: it resets the client, so that the client sees an error and not an empty answer.
func (c *Conn) Refuse(r outcome.Result) {
	if r.Outcome == outcome.Limit {
		c.logLimit(r.Err)
	}
	c.reset()
	c.Closed(time.Now(), r, netip.AddrPort{})
	c.server.register.remove(c)
}

// reset closes the client's connection with a TCP reset or an SCTP abort.
func (c *Conn) reset() {
	_ = c.client.SetLinger(0) // fails only if the connection is already closed
	c.client.Close()
}

// register counts the open connections.
type register struct {
	budget         *budget.Budget
	goroutineFlows sync.Map                      // forward.Flow of connections that goroutines serve, by *Conn
	clients        budget.Clients                // the number of open connections of each client
	drained        atomic.Pointer[chan struct{}] // closed when no connection is open; nil if no goroutine waits
}

// add counts conn as open, or returns the limit that it exceeds.
func (r *register) add(conn *Conn) error {
	ofPort, client := conn.Front.Open.Add(1), conn.QuotaAddr()
	err := r.budget.TakeConnection(ofPort, r.clients.Add(client, 1))
	if err != nil {
		conn.Front.Open.Add(-1)
		r.clients.Add(client, -1)
		r.closeDrained()
	}
	return err
}

// reassign counts conn for its QuotaAddr instead of balancer (see frontend.Conn.QuotaAddr), now that the client is
// known. It returns an error if the QuotaAddr's limit is exceeded; conn stays counted.
func (r *register) reassign(conn *Conn, balancer netip.Addr) error {
	r.clients.Add(balancer, -1)
	return r.budget.AdmitClient(r.clients.Add(conn.QuotaAddr(), 1))
}

func (r *register) remove(conn *Conn) {
	conn.Front.Open.Add(-1)
	r.clients.Add(conn.QuotaAddr(), -1)
	r.budget.Connections.Add(-1)
	if r.drained.Load() != nil {
		r.closeDrained()
	}
}

// each calls f for the established connections that goroutines serve.
func (r *register) each(f func(*Conn, forward.Flow)) {
	r.goroutineFlows.Range(func(conn, flow any) bool {
		f(conn.(*Conn), flow.(forward.Flow))
		return true
	})
}

// closeDrained closes drained if no connection is open.
func (r *register) closeDrained() {
	if drained := r.drained.Load(); drained != nil && r.budget.Connections.Load() == 0 && r.drained.CompareAndSwap(drained, nil) {
		close(*drained)
	}
}
