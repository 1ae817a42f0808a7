package proxy

import (
	"context"
	"errors"
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

// connection is one client's connection, from accept to close.
type connection struct {
	id       uint64
	front    *frontEnd
	client   *net.TCPConn
	from     netip.AddrPort // the client
	to       netip.AddrPort // what it connected to
	vip      config.VIP
	accepted time.Time

	endpoint *balance.Endpoint            // once established
	flow     atomic.Pointer[forward.Flow] // once established
}

// acceptLoop accepts until l is closed. It never waits for anything that a
// client or an endpoint does: each connection has a goroutine of its own until
// it is established.
func (l *tcpListener) acceptLoop() {
	f := l.front
	defer f.proxy.connections.listeners.Add(-1)
	defer close(l.closed)
	var pause time.Duration
	for {
		client, err := l.AcceptTCP()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			pause = l.acceptFailed(err, pause)
			continue
		}
		pause = 0
		c := &connection{
			id:       f.proxy.connections.next.Add(1),
			front:    f,
			client:   client,
			from:     plainAddr(client.RemoteAddr()),
			accepted: time.Now(),
		}
		if !f.proxy.connections.add(c, f.proxy.MaxConnectionsPerPort) {
			f.proxy.turnAway(c)
			continue
		}
		go c.serve(l)
	}
}

const (
	minAcceptPause = 5 * time.Millisecond
	maxAcceptPause = 100 * time.Millisecond
)

// acceptErrors bounds how often a flood can write to the log.
var acceptErrors = rate.Sometimes{First: 1, Interval: 10 * time.Second}

// acceptFailed waits a little, twice as long as before, and returns for how
// long. A client that gave up before it was accepted is no reason to wait.
func (l *tcpListener) acceptFailed(err error, pause time.Duration) time.Duration {
	if errors.Is(err, syscall.ECONNABORTED) {
		return 0
	}
	acceptErrors.Do(func() {
		l.front.proxy.Log.WithField("service", l.front.id.String()).WithError(plainError(err)).
			Error("Clients cannot be accepted; trying again (further errors of this kind are logged every 10 s at the most)")
	})
	pause = min(max(2*pause, minAcceptPause), maxAcceptPause)
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-l.front.proxy.ctx.Done():
	}
	return pause
}

// turnAway resets a client for which there is no room.
func (p *Proxy) turnAway(c *connection) {
	c.to = plainAddr(c.client.LocalAddr())
	c.event(trace.Event{Kind: trace.Accepted, Time: c.accepted})
	limitErrors.Do(func() {
		p.Log.WithFields(map[string]any{"service": c.front.id.String(), "open": p.connections.open.Load(), "limit": p.connections.limit()}).
			Error("Too many connections: clients are turned away (logged every 10 s at the most)")
	})
	c.reset()
	c.closed(trace.Event{End: trace.Limit, Err: "too many connections"})
}

var limitErrors = rate.Sometimes{First: 1, Interval: 10 * time.Second}

// serve takes the connection from accepted to established, and hands it to the
// forwarder; or resets it.
func (c *connection) serve(l *tcpListener) {
	end, err := c.admit(l)
	c.event(trace.Event{Kind: trace.Accepted, Time: c.accepted})
	if err != nil {
		c.refuse(end, err)
		return
	}
	conn, endpoint, err := c.attempt()
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
func (c *connection) admit(l *tcpListener) (trace.End, error) {
	v := c.front.view.Load()
	if l.redirected {
		original, err := portal.OriginalDst(c.client)
		if err != nil {
			c.to = plainAddr(c.client.LocalAddr())
			return trace.NotAdmitted, err
		}
		c.to = original
		var ok bool
		if c.vip, ok = v.vip(original); !ok {
			return trace.NotAdmitted, errDirect
		}
	} else {
		t := (*l.targets.Load())[0]
		c.vip = v.vips[netip.AddrPortFrom(t.Addr, t.Port)]
		c.to = plainAddr(c.client.LocalAddr())
	}
	if !c.vip.Allows(c.from.Addr()) {
		return trace.SourceRefused, errSource
	}
	return "", nil
}

// vip returns the VIP that a client which connected to original meant.
func (v *view) vip(original netip.AddrPort) (config.VIP, bool) {
	if vip, ok := v.vips[original]; ok {
		return vip, true
	}
	anywhere := netip.IPv4Unspecified()
	if original.Addr().Is6() {
		anywhere = netip.IPv6Unspecified()
	}
	vip, ok := v.vips[netip.AddrPortFrom(anywhere, original.Port())]
	return vip, ok
}

// attempt finds an endpoint that answers.
func (c *connection) attempt() (forward.Conn, *balance.Endpoint, error) {
	p := c.front.proxy
	a := attempts{
		schedule:   p.Schedule,
		quarantine: p.Quarantine,
		dial:       p.dialTCP,
		affinity:   c.front.affinity,
		client:     c.from.Addr(),
		report:     c.event,
		endpoints: func() (*balance.Set, <-chan struct{}) {
			v := c.front.view.Load()
			return v.endpoints(c.vip, c.ofThisNode()), v.replaced
		},
	}
	return a.run(p.ctx)
}

// ofThisNode reports whether the client is a process or a Pod of this node. Where
// a VIP is an address of the node, its processes connect to it from itself.
func (c *connection) ofThisNode() bool {
	return c.from.Addr() == c.to.Addr() || c.front.proxy.locality.local(c.from.Addr())
}

// dialTCP connects to an endpoint, with keepalive.
func (p *Proxy) dialTCP(ctx context.Context, from netip.Addr, to netip.AddrPort) (forward.Conn, error) {
	d := net.Dialer{
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: p.Keepalive, Interval: keepaliveInterval, Count: keepaliveProbes},
	}
	if from.IsValid() {
		d.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(from, 0))
	}
	conn, err := d.DialContext(ctx, "tcp", to.String())
	if err != nil {
		return nil, err
	}
	return conn.(*net.TCPConn), nil
}

// forward moves bytes until both sides are done.
func (c *connection) forward(conn forward.Conn, endpoint *balance.Endpoint) {
	p := c.front.proxy
	c.endpoint = endpoint
	endpoint.Active.Add(1)
	c.event(trace.Event{Kind: trace.Established, Time: time.Now(), Endpoint: endpoint.Addr, Pod: endpoint.Pod})
	c.flow.Store(p.forwarder.Forward(c.client, conn, c.forwarded))
	if p.ctx.Err() != nil { // Drain may have passed by already
		c.flow.Load().Break()
	}
}

// ends are the trace's words for the forwarder's.
var ends = map[forward.End]trace.End{
	forward.ClientClosed:      trace.ClientClosed,
	forward.EndpointClosed:    trace.EndpointClosed,
	forward.ClientReset:       trace.ClientReset,
	forward.EndpointReset:     trace.EndpointReset,
	forward.HalfClosedTimeout: trace.HalfClosedTimeout,
	forward.Broken:            trace.Drained,
}

// forwarded is called when the forwarder is done with the connection.
func (c *connection) forwarded(r forward.Result) {
	c.endpoint.Active.Add(-1)
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
	case errors.Is(err, errAllFailed):
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
			c.front.proxy.Log.WithField("service", c.front.id.String()).WithError(err).
				Error("This node has run out of something that connections need (logged every 10 s at the most)")
		})
	}
	c.reset()
	c.closed(trace.Event{End: end, Err: err.Error()})
	c.front.proxy.connections.remove(c)
}

// reset closes the client's connection with a TCP reset.
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
	e.Conn, e.Port, e.Protocol, e.Client, e.VIP = c.id, c.front.id, c.front.protocol, c.from, c.to
	c.front.proxy.counters.count(&e)
	c.front.proxy.Trace.Add(e)
}

// plainAddr returns a TCP address as netip has it, IPv4 as IPv4.
func plainAddr(a net.Addr) netip.AddrPort {
	ap := a.(*net.TCPAddr).AddrPort()
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
