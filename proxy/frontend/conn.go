package frontend

import (
	"errors"
	"net/netip"
	"slices"
	"time"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/proxy/balance"
	"github.com/usherproxy/usher/proxy/conn"
	"github.com/usherproxy/usher/proxy/latency"
	"github.com/usherproxy/usher/proxy/outcome"
	"github.com/usherproxy/usher/proxy/proxyproto"
)

// Conn is a client's connection, association or UDP session while it is open. What outlasts that is its
// Record, of which the trace keeps many more, so the two are not one type. One goroutine at a time may use it.
type Conn struct {
	*conn.Record
	Front    *FrontEnd
	VIP      *config.VIP       // that To is; nil until the client is admitted
	Endpoint *balance.Endpoint // that the client is connected to, or that was tried last; nil if none was
}

// Why a client is not admitted.
var (
	NotAdmitted  = outcome.Result{Outcome: outcome.BypassedPortal, Err: errors.New("the connection did not come through a portal of this Service")}
	SourceDenied = outcome.Result{Outcome: outcome.SourceDenied, Err: errors.New("the client is not in loadBalancerSourceRanges")}
)

// Admit finds out, once To is known, which VIP the client meant that has come to a
// listener at p, and whether it may: behind a redirect anybody who finds the listener's
// port could connect to it. The outcome is Open if it may. If headerDue is set, who has come is
// a load balancer, which has to say first, by a header of the PROXY protocol, who the client is, and
// Introduce knows whether that may.
func (c *Conn) Admit(v *View, p *Place) (headerDue bool, r outcome.Result) {
	var vip *config.VIP
	var ok bool
	if p.Redirected {
		vip, ok = v.vipFor(c.To)
	} else { // the listener is the VIP's own
		vip, ok = v.VIPOf((*p.targets.Load())[0])
	}
	if !ok {
		return false, NotAdmitted // or the VIP has just been removed
	}
	c.VIP = vip
	switch {
	case c.Via == nil && vip.Balancers != nil && vip.Expects(c.From.Addr()):
		headerDue = true
	case !c.Allowed(vip):
		r = SourceDenied
	}
	return headerDue, r
}

// Introduce takes note of what the header that was due says: client, if that is valid, has
// come by way of who was taken for the client so far. It returns whether it may, as Admit does.
func (c *Conn) Introduce(client netip.AddrPort) outcome.Result {
	if client.IsValid() {
		balancer := c.From
		c.From, c.Via = client, &balancer
	}
	if !c.Allowed(c.VIP) {
		return SourceDenied
	}
	return outcome.Result{}
}

// Allowed reports whether vip lets the client in.
func (c *Conn) Allowed(vip *config.VIP) bool {
	if c.Via != nil && vip.Balancers != nil {
		return vip.Balancers.Allows(c.From.Addr())
	}
	return len(vip.Sources) == 0 || c.Front.Locality.Admits(vip, c.From.Addr(), c.reached())
}

// Endpoints returns those of v that the client may have, once it is admitted.
func (c *Conn) Endpoints(v *View) *balance.Set {
	if c.VIP.Kind == config.ClusterIP {
		return v.Internal
	}
	return v.Endpoints(c.VIP, c.Front.Locality.OfThisNode(c.From.Addr(), c.reached()))
}

// reached returns the address that the client itself has connected to, if that is known.
func (c *Conn) reached() netip.Addr {
	if c.Via != nil {
		return netip.Addr{}
	}
	return c.To.Addr()
}

// Header returns what an endpoint is told of the client before all else; nil for nothing.
func (c *Conn) Header(v *View) []byte {
	return proxyproto.Header(v.Port.ProxyProtocol, c.Front.Protocol, c.From, c.To)
}

// Source returns the address to connect to an endpoint of v from, once the client is admitted, so
// that the endpoint sees the client's own where that can be.
func (c *Conn) Source(v *View, to *balance.Endpoint) portal.Origin {
	if c.Via != nil && c.Payer() != c.From.Addr() {
		return portal.Origin{Seen: portal.SeenHeader}
	}
	return c.Front.Origin(v, c.From.Addr(), c.reached(), to.Endpoint)
}

// Payer returns the address whose share of the node's resources the client uses: its own, unless a
// load balancer has named it that only the Service names. Whoever may annotate a Service may name its
// load balancers, but must not use up the shares of others, or escape its own, by what those write.
func (c *Conn) Payer() netip.Addr {
	if c.Via == nil || slices.ContainsFunc(c.Front.LoadBalancers, func(p netip.Prefix) bool { return p.Contains(c.Via.Addr()) }) {
		return c.From.Addr()
	}
	return c.Via.Addr()
}

// Answered reports that the first byte has come for the client, from its endpoint.
func (c *Conn) Answered(now time.Time) {
	took := c.Record.Answered(now)
	c.Endpoint.Times().FirstByte.Observe(latency.Seconds, now, took.Seconds())
}

// Judged returns r, with which the connection has ended, as NoResponse if the endpoint ended first, or the client was
// lost, without a byte for a client that had sent some, and clients of this port did get answers. Otherwise the
// protocol may have none: uploads, syslog and statsd end like that.
func (c *Conn) Judged(r outcome.Result) outcome.Result {
	ended := r.Outcome == outcome.EndpointClosed || r.Outcome == outcome.ClientReset
	if ended && r.ToEndpoint > 0 && r.ToClient == 0 && c.Front.answers() {
		r.Outcome = outcome.NoResponse
	}
	return r
}

// RefusedUnlogged reports whether enough refused clients have been told of in this
// second. If so, it has counted this one, and nothing of it is to be told.
func (c *Conn) RefusedUnlogged(o outcome.Outcome) bool {
	f := c.Front
	if f.refusals.Allow() {
		return false
	}
	f.Counters.Unlogged.Add(1)
	ending := &conn.Ending{Result: outcome.Result{Outcome: o}, Flags: c.Flags(0, o)}
	f.Observe(c.Record, conn.Step{Kind: conn.Accepted})
	f.Observe(c.Record, conn.Step{Kind: conn.Closed, Flags: ending.Flags, Ending: ending})
	return true
}
