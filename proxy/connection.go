package proxy

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/time/rate"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/proxy/balance"
	"github.com/usherproxy/usher/proxy/forward"
	"github.com/usherproxy/usher/proxy/trace"
)

// connection is one client's connection (for SCTP, association), from accept to
// close.
type connection struct {
	id       uint64
	front    *frontEnd
	carrier  *carrier
	client   conn
	from     netip.AddrPort // the client
	to       netip.AddrPort // what it connected to
	vip      *config.VIP
	accepted time.Time

	life     *trace.Life                  // from the first event on
	endpoint *balance.Endpoint            // once established
	flow     atomic.Pointer[forward.Flow] // once established
}

// conn is what the clients of all protocols with connections have in common.
type conn interface {
	LocalAddr() net.Addr
	// SetLinger(0) makes Close send a reset or an abort.
	SetLinger(sec int) error
	Close() error
}

// endpointConn is a connection to an endpoint. The carrier that has made it can
// forward it.
type endpointConn = io.Closer

// carrier is what a protocol does differently once a client is accepted.
type carrier struct {
	// originalDst tells where a client wanted to go; see portal.OriginalDst.
	originalDst func(client conn) (netip.AddrPort, error)
	// dial connects to an endpoint for a client.
	dial func(ctx context.Context, p *Proxy, client conn, from netip.Addr, to *config.Endpoint) (endpointConn, error)
	// forward hands over a pair; see package forward.
	forward func(client conn, endpoint endpointConn, limits *forward.Limits, done func(forward.Result)) forward.Flow
}

// acceptor is what the listeners of protocols with connections have in common.
type acceptor struct {
	front      *frontEnd
	carrier    *carrier
	redirected bool
	at         netip.AddrPort // where it listens, if that is known
	targets    atomic.Pointer[[]portal.Target]
}

func (a *acceptor) setTargets(targets []portal.Target) { a.targets.Store(&targets) }

// local returns the address that a client has connected to.
func (a *acceptor) local(client conn) netip.AddrPort {
	if !a.at.IsValid() || a.at.Addr().IsUnspecified() {
		return plainAddr(client.LocalAddr())
	}
	return a.at
}

// endpointsChanged: connections go on whatever happens to their endpoints.
func (a *acceptor) endpointsChanged() {}

// acceptLoop accepts until accept returns net.ErrClosed. It never waits for
// anything that a client or an endpoint does: each connection has a goroutine of
// its own until it is established.
func (a *acceptor) acceptLoop(accept func() (client conn, from net.Addr, err error)) {
	var pause time.Duration
	for {
		client, from, err := accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			pause = a.acceptFailed(err, pause)
			a.wait(pause)
			continue
		}
		pause = 0
		if c := a.accepted(client, plainAddr(from)); c != nil {
			go c.serve(a)
		}
	}
}

// accepted returns the connection of a new client, or nil if there is no room for
// it.
func (a *acceptor) accepted(client conn, from netip.AddrPort) *connection {
	p := a.front.proxy
	c := &connection{
		id:       p.connections.next.Add(1),
		front:    a.front,
		carrier:  a.carrier,
		client:   client,
		from:     from,
		accepted: time.Now(),
	}
	if err := p.connections.add(c); err != nil {
		p.turnAway(c, err)
		return nil
	}
	return c
}

const (
	minAcceptPause = 5 * time.Millisecond
	maxAcceptPause = 100 * time.Millisecond
)

// acceptErrors bounds how often a flood can write to the log.
var acceptErrors = rate.Sometimes{First: 1, Interval: 10 * time.Second}

// acceptFailed returns how long to wait before the next client is accepted: twice
// as long as before. A client that gave up before it was accepted is no reason to
// wait.
func (a *acceptor) acceptFailed(err error, pause time.Duration) time.Duration {
	if errors.Is(err, syscall.ECONNABORTED) {
		return 0
	}
	acceptErrors.Do(func() {
		a.front.proxy.Log.WithField("service", a.front.id().String()).WithError(plainError(err)).
			Error("Clients cannot be accepted; trying again (further errors of this kind are logged every 10 s at the most)")
	})
	return min(max(2*pause, minAcceptPause), maxAcceptPause)
}

func (a *acceptor) wait(pause time.Duration) {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-a.front.proxy.ctx.Done():
	}
}

// turnAway resets a client for which there is no room, for the reason given.
func (p *Proxy) turnAway(c *connection, why error) {
	limitErrors.Do(func() {
		p.Log.WithFields(map[string]any{"service": c.front.id().String(), "open": p.budget.connections.Load(), "limit": p.budget.connectionLimit()}).
			WithError(why).Error("Too many connections: clients are turned away (logged every 10 s at the most)")
	})
	if c.refusedUnlogged(trace.Limit) {
		return
	}
	c.to = plainAddr(c.client.LocalAddr())
	c.event(trace.Event{Kind: trace.Accepted, Time: c.accepted})
	c.reset()
	c.closed(trace.Event{End: trace.Limit, Err: why.Error()})
}

var limitErrors = rate.Sometimes{First: 1, Interval: 10 * time.Second}

// serve takes the connection from accepted to established, and hands it to the
// forwarder; or resets it.
func (c *connection) serve(a *acceptor) {
	if c.admitted(a) {
		c.findEndpoint(c.search())
	}
}

// refusalsPerSecond bounds how much of the trace and of the access log clients can
// take that are not admitted, or for whom there is no room, however many come.
const refusalsPerSecond = 10

// refusedUnlogged resets such a client, if enough of them have been told of in this
// second, and reports whether it has.
func (c *connection) refusedUnlogged(end trace.End) bool {
	if c.front.proxy.refusals.Allow() {
		return false
	}
	c.reset()
	c.front.unlogged(trace.Subject{Conn: c.id, Port: c.front.id(), Protocol: c.front.protocol}, end)
	return true
}

// admitted reports whether the client is admitted. If not, it has been reset.
func (c *connection) admitted(a *acceptor) bool {
	end, err := c.admit(a)
	if err != nil && c.refusedUnlogged(end) {
		c.front.proxy.connections.remove(c)
		return false
	}
	c.event(trace.Event{Kind: trace.Accepted, Time: c.accepted})
	if err != nil {
		c.refuse(end, err)
		return false
	}
	return true
}

// findEndpoint connects the client to an endpoint that answers, or resets it.
func (c *connection) findEndpoint(search *attempts) {
	conn, endpoint, err := search.run(c.front.proxy.ctx)
	if err != nil {
		c.refuse(endOf(err), err)
		return
	}
	c.forward(conn, endpoint)
}

// Why a client is not admitted.
var (
	errDirect = errors.New("it did not come through a portal of this Service")
	errSource = errors.New("the client is not in loadBalancerSourceRanges")
)

// admit finds out which VIP the client connected to, and whether it may: behind
// a redirect anybody who finds the listener's port could connect to it.
func (c *connection) admit(a *acceptor) (trace.End, error) {
	v := c.front.view.Load()
	if a.redirected {
		original, err := c.carrier.originalDst(c.client)
		if err != nil {
			c.to = a.local(c.client)
			return trace.NotAdmitted, err
		}
		c.to = original
		var ok bool
		if c.vip, ok = v.vip(original); !ok {
			return trace.NotAdmitted, errDirect
		}
	} else {
		t := (*a.targets.Load())[0]
		c.to = a.local(c.client)
		var ok bool
		if c.vip, ok = v.vipOf(t); !ok {
			return trace.NotAdmitted, errDirect // it has just been removed
		}
	}
	if !c.front.proxy.locality.admits(c.vip, c.from.Addr(), c.to.Addr()) {
		return trace.SourceRefused, errSource
	}
	return "", nil
}

// vip returns the VIP that a client which connected to original meant.
func (v *view) vip(original netip.AddrPort) (*config.VIP, bool) {
	if vip, ok := v.vipAt(original); ok {
		return vip, true
	}
	anywhere := netip.IPv4Unspecified()
	if original.Addr().Is6() {
		anywhere = netip.IPv6Unspecified()
	}
	return v.vipAt(netip.AddrPortFrom(anywhere, original.Port()))
}

// search returns the connection's search for an endpoint.
func (c *connection) search() *attempts {
	p := c.front.proxy
	return &attempts{
		schedule:   p.Schedule,
		quarantine: c.front.quarantine(),
		dial: func(ctx context.Context, from netip.Addr, to *config.Endpoint) (endpointConn, error) {
			if p.leadsBack(c.front.protocol, to.Addr) {
				return nil, errLeadsBack
			}
			return c.carrier.dial(ctx, p, c.client, from, to)
		},
		affinity: c.front.affinity,
		client:   c.from.Addr(),
		report:   c.event,
		endpoints: func() (*balance.Set, <-chan struct{}) {
			v := c.front.view.Load()
			local := c.vip.External() && p.locality.ofThisNode(c.from.Addr(), c.to.Addr())
			return v.endpoints(c.vip, local), v.replaced
		},
	}
}

// errLeadsBack is why usher does not connect to some endpoints.
var errLeadsBack = errors.New("refused: it is a VIP or a node port of this node, or usher's own address, and would lead back here")

// leadsBack reports whether a connection to an endpoint would come back to usher. A
// VIP does not where the portal leaves usher's own connections alone: a process of
// this node may be there. (Most endpoints that are VIPs are refused by package
// translate.) Nor does anything where the kernel leads nothing to usher, where the
// listeners are in another network namespace than the endpoints, or where something
// else than this node's kernel connects to those.
func (p *Proxy) leadsBack(protocol config.Protocol, to netip.AddrPort) bool {
	if p.Portal.Mode() == portal.ModeNone || p.Socket != nil || p.Dial != nil {
		return false
	}
	if portal.IsLanding(to.Addr()) {
		return true
	}
	t := portal.Target{Protocol: portalProtocols[protocol], Addr: to.Addr(), Port: to.Port()}
	if _, vip := p.targets.Load(t); vip && p.Portal.Mark() == 0 {
		return true
	}
	t.Addr = netip.IPv4Unspecified()
	if to.Addr().Is6() {
		t.Addr = netip.IPv6Unspecified()
	}
	_, nodePort := p.targets.Load(t)
	return nodePort && p.locality.isNode(to.Addr())
}

// forward moves bytes until both sides are done.
func (c *connection) forward(conn endpointConn, endpoint *balance.Endpoint) {
	p := c.front.proxy
	c.endpoint = endpoint
	endpoint.Active.Add(1)
	c.event(trace.Event{Kind: trace.Established, Time: time.Now(), Endpoint: endpoint.Addr, Pod: endpoint.Pod})
	flow := c.carrier.forward(c.client, conn, c.limits(), c.forwarded)
	c.flow.Store(&flow)
	c.life.Moves(flow)
	if p.ctx.Err() != nil { // Drain may have passed by already
		flow.Break()
	}
}

// ends are the trace's words for the forwarder's.
var ends = map[forward.End]trace.End{
	forward.ClientClosed:      trace.ClientClosed,
	forward.EndpointClosed:    trace.EndpointClosed,
	forward.ClientReset:       trace.ClientReset,
	forward.EndpointReset:     trace.EndpointReset,
	forward.HalfClosedTimeout: trace.HalfClosedTimeout,
	forward.IdleTimeout:       trace.Idle,
	forward.Aged:              trace.Aged,
	forward.Broken:            trace.Drained,
}

// forwarded is called when the forwarder is done with the connection.
func (c *connection) forwarded(r forward.Result) {
	c.endpoint.Active.Add(-1)
	c.endpoint.Moved(r.ToEndpoint, r.ToClient)
	e := trace.Event{End: ends[r.End], ToEndpoint: r.ToEndpoint, ToClient: r.ToClient, Endpoint: c.endpoint.Addr, Pod: c.endpoint.Pod}
	if r.Err != nil {
		e.Err = r.Err.Error()
	}
	c.closed(e)
	c.front.proxy.connections.remove(c)
}

// endOf says what an error of attempt means for the client.
func endOf(err error) trace.End {
	switch {
	case errors.Is(err, errNoEndpoint):
		return trace.NoEndpoint
	case errors.Is(err, errAllFailed), futile(err):
		return trace.AttemptsFailed
	case errors.Is(err, context.Canceled):
		return trace.Drained
	case outOfResources(err):
		return trace.Limit
	}
	return trace.Internal
}

// refuse resets the client, so that it sees an error and not an empty answer.
func (c *connection) refuse(end trace.End, err error) {
	if end == trace.Limit {
		limitErrors.Do(func() {
			c.front.proxy.Log.WithField("service", c.front.id().String()).WithError(err).
				Error("This node has run out of something that connections need (logged every 10 s at the most)")
		})
	}
	c.reset()
	c.closed(trace.Event{End: end, Err: err.Error()})
	c.front.proxy.connections.remove(c)
}

// reset closes the client's connection with a TCP reset or an SCTP abort.
func (c *connection) reset() {
	_ = c.client.SetLinger(0) // fails only if the connection is gone already
	c.client.Close()
}

func (c *connection) closed(e trace.Event) {
	e.Kind, e.Time = trace.Closed, time.Now()
	e.Took = e.Time.Sub(c.accepted)
	c.event(e)
}

// event puts e into the trace.
func (c *connection) event(e trace.Event) {
	if c.life == nil {
		c.life = c.front.begin(c.id, c.from, c.to, c.accepted)
	}
	c.front.step(c.life, &e)
}

// plainAddr returns an address as netip has it, IPv4 as IPv4.
func plainAddr(a net.Addr) netip.AddrPort {
	ap := a.(interface{ AddrPort() netip.AddrPort }).AddrPort()
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
}

// plainError returns the system error in err, without the operation and
// addresses that package net wraps around it.
func plainError(err error) error {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return errno
	}
	return err
}
