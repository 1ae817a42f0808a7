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
	"github.com/usherproxy/usher/proxy/search"
)

// Client is who has come to a front end, from the first packet to the end: with a
// connection, an association, or a UDP session. One goroutine at a time may use it.
type Client struct {
	*conn.Record // who it is, and its steps
	Front        *FrontEnd
	VIP          *config.VIP // that To is; nil until it is admitted
}

// Why a client is not admitted.
var (
	NotAdmitted   = outcome.Result{Outcome: outcome.NotAdmitted, Err: errors.New("it did not come through a portal of this Service")}
	SourceRefused = outcome.Result{Outcome: outcome.SourceRefused, Err: errors.New("the client is not in loadBalancerSourceRanges")}
)

// Admit finds out, once To is known, which VIP the client meant that has come to a
// listener at p, and whether it may: behind a redirect anybody who finds the listener's
// port could connect to it. The outcome is Open if it may. Of one that HeaderDue is true of,
// Introduce knows whether it may.
func (c *Client) Admit(v *View, p *Place) outcome.Result {
	vip, ok := p.vip(v, c.To)
	if !ok {
		return NotAdmitted // or the VIP has just been removed
	}
	c.VIP = vip
	if !c.HeaderDue() && !c.Allowed(vip) {
		return SourceRefused
	}
	return outcome.Result{}
}

// HeaderDue reports whether who has come is a load balancer, which has to say first, by a
// header of the PROXY protocol, who the client is.
func (c *Client) HeaderDue() bool {
	return c.Via == nil && c.VIP != nil && c.VIP.Expects(c.From.Addr())
}

// Introduce takes note of what the header that was due says: client, if that is valid, has
// come by way of who was taken for the client so far. It returns whether it may, as Admit does.
func (c *Client) Introduce(client netip.AddrPort) outcome.Result {
	if client.IsValid() {
		balancer := c.From
		c.From, c.Via = client, &balancer
	}
	if !c.Allowed(c.VIP) {
		return SourceRefused
	}
	return outcome.Result{}
}

// Allowed reports whether vip lets the client in.
func (c *Client) Allowed(vip *config.VIP) bool {
	if c.Via != nil && vip.Balancers != nil {
		return vip.Balancers.Allows(c.From.Addr())
	}
	return c.Front.Locality.Admits(vip, c.From.Addr(), c.reached())
}

// Endpoints returns those of v that the client may have, once it is admitted.
func (c *Client) Endpoints(v *View) *balance.Set {
	local := c.VIP.External() && c.Front.Locality.OfThisNode(c.From.Addr(), c.reached())
	return v.Endpoints(c.VIP, local)
}

// reached returns the address that the client itself has connected to, if that is known.
func (c *Client) reached() netip.Addr {
	if c.Via != nil {
		return netip.Addr{}
	}
	return c.To.Addr()
}

// Header returns what an endpoint is told of the client before all else; nil for nothing.
func (c *Client) Header(v *View) []byte {
	return proxyproto.Header(v.Port.ProxyProtocol, c.Front.Protocol, c.From, c.To)
}

// Origin returns the address to connect to an endpoint from, once the client is admitted, so
// that it sees the client's own where that can be. If it is not valid, the kernel picks
// one of the node. It sets what that means for the endpoint if the attempt fails.
func (c *Client) Origin(s *search.Search, to *balance.Endpoint) netip.AddrPort {
	o := portal.Origin{Seen: portal.SeenHeader}
	if c.Via == nil || c.Payer() == c.From.Addr() {
		o = c.Front.Origin(c.From.Addr(), c.reached(), to.Endpoint)
	}
	s.Seen, s.Policy = o.Seen, c.Front.Policy(o)
	return o.Bind
}

// Payer returns the address whose share of the node's resources the client uses: its own, unless a
// load balancer has named it that only the Service names. Whoever may annotate a Service may name its
// load balancers, but must not use up the shares of others, or escape its own, by what those write.
func (c *Client) Payer() netip.Addr {
	if c.Via == nil || slices.ContainsFunc(c.Front.LoadBalancers, func(p netip.Prefix) bool { return p.Contains(c.Via.Addr()) }) {
		return c.From.Addr()
	}
	return c.Via.Addr()
}

// NewSearch returns the client's search for an endpoint.
func (c *Client) NewSearch() search.Search {
	f := c.Front
	s := search.Search{Schedule: f.Schedule, Policy: f.Policy(portal.Origin{}), Affinity: f.Affinity, Client: c.From.Addr(), VIP: c.VIP.Addr, Record: c.Record}
	if f.Protocol == config.UDP {
		s.Schedule = nil
	}
	return s
}

// Answered reports that the first byte has come for the client, from the endpoint that it has.
func (c *Client) Answered(now time.Time, from *balance.Endpoint) {
	took := c.Record.Answered(now)
	from.Times().FirstByte.Observe(latency.Seconds, now, took.Seconds())
}

// Parted notes that the connection with an endpoint is over; broken, that this was the endpoint's fault.
func (c *Client) Parted(now time.Time, e *balance.Endpoint, broken bool) {
	kind := balance.Closed
	if broken {
		kind = balance.Broken
	}
	e.Report(balance.Report{Kind: kind, Now: now}, balance.Policy{})
}

// RefusedUnlogged reports whether enough refused clients have been told of in this
// second. If so, it has counted this one, and nothing of it is to be told.
func (c *Client) RefusedUnlogged(o outcome.Outcome) bool {
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
