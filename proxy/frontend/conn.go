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

// Conn is a client's connection, association or UDP session while it is open. Its Record outlives it: the trace keeps
// many more Records than there are Conns, so the two are separate types. One goroutine at a time may use a Conn.
type Conn struct {
	*conn.Record
	Front    *FrontEnd
	VIP      *config.VIP       // the VIP that the client uses; To may be another address; set by Admit, and nil again once a stream forwards bytes
	Endpoint *balance.Endpoint // connected, or tried last; nil if none was tried
}

// Reasons why a client is not admitted.
var (
	BypassedPortal = outcome.Result{Outcome: outcome.BypassedPortal, Err: errors.New("the connection did not come through a portal of this Service")}
	SourceDenied   = outcome.Result{Outcome: outcome.SourceDenied, Err: errors.New("the client is not in loadBalancerSourceRanges")}
)

// Admit sets VIP to the VIP that the client connected to. To must be set; p is the listener's Place. Behind a redirect,
// any client that finds the listener's port can connect to it, so Admit checks that To is a VIP. If headerDue is set,
// From is a load balancer, which first sends a PROXY protocol header with the client's address. SetProxiedClient then
// decides whether that client is allowed. Otherwise the Result has outcome.Open if the client is allowed.
func (c *Conn) Admit(v *View, p *Place) (headerDue bool, r outcome.Result) {
	var vip *config.VIP
	var ok bool
	if p.Redirected {
		vip, ok = v.vipFor(c.To)
	} else {
		// In mode none, the listener can have several targets. A load balancer gets one that expects its header. Other
		// clients get the cluster IP or, if that is not a target, the first.
		for _, t := range *p.targets.Load() {
			at, is := v.VIPAt(netip.AddrPortFrom(t.Addr, t.Port))
			expects := is && at.Balancers != nil && at.Expects(c.From.Addr())
			if is && (!ok || expects || at.Kind == config.ClusterIP) {
				vip, ok = at, true
			}
			if expects {
				break
			}
		}
		// In mode address, a node port's wildcard listener also gets clients of VIPs with that port whose own listener
		// failed to open.
		if p.At.Addr().IsUnspecified() {
			if own, is := v.VIPAt(c.To); is {
				vip = own
			} else if _, another := c.Front.Targets.Load(Target(c.Front.Protocol, config.VIP{Addr: c.To.Addr(), Port: c.To.Port()})); another {
				ok = false
			}
		}
	}
	if !ok {
		return false, BypassedPortal // it bypassed the portal, or the VIP has just been removed
	}
	c.VIP = vip
	switch {
	case vip.Balancers != nil && vip.Expects(c.From.Addr()):
		headerDue = true
	case !c.Allowed(vip):
		r = SourceDenied
	}
	return headerDue, r
}

// SetProxiedClient records the client that the PROXY protocol header names; the previous From becomes Via. If the
// header names none, client is the zero AddrPort, and From stays. Like Admit, SetProxiedClient returns whether the
// client is allowed.
func (c *Conn) SetProxiedClient(client netip.AddrPort) outcome.Result {
	if client.IsValid() {
		balancer := c.From
		c.From, c.Via = client, &balancer
	}
	if !c.Allowed(c.VIP) {
		return SourceDenied
	}
	return outcome.Result{}
}

// Allowed reports whether the client may use vip. If a PROXY protocol header named the client, Balancers.Clients
// decides, otherwise Sources.
func (c *Conn) Allowed(vip *config.VIP) bool {
	if c.Via != nil && vip.Balancers != nil {
		return vip.Balancers.Allows(c.From.Addr())
	}
	return len(vip.Sources) == 0 || c.Front.Locality.Admits(vip, c.From.Addr(), c.clientDestination())
}

// Endpoints returns the endpoints of v that an admitted client may use.
func (c *Conn) Endpoints(v *View) *balance.Set {
	if c.VIP.Kind == config.ClusterIP {
		return v.Internal
	}
	return v.Endpoints(c.VIP, c.Front.Locality.OfThisNode(c.From.Addr(), c.clientDestination()))
}

// clientDestination returns the address that the client itself connected to, if it is known.
func (c *Conn) clientDestination() netip.Addr {
	if c.Via != nil {
		return netip.Addr{}
	}
	return c.To.Addr()
}

// Header returns the PROXY protocol header for an endpoint of v; nil for none.
func (c *Conn) Header(v *View) []byte {
	return proxyproto.Header(v.Port.ProxyProtocol, c.Front.Protocol, c.From, c.To)
}

// Source returns the origin of usher's connection to an endpoint of v for an admitted client: the client's own address
// where that is possible.
func (c *Conn) Source(v *View, to *balance.Endpoint) portal.Origin {
	if c.Via != nil && c.QuotaAddr() != c.From.Addr() {
		return portal.Origin{SourceAddress: portal.SourceHeader}
	}
	return c.Front.Origin(v, c.From.Addr(), c.clientDestination(), to.Endpoint)
}

// QuotaAddr returns the address whose quota the connection uses. That is the client's, unless it comes from the header
// of a load balancer outside LoadBalancers; then it is the load balancer's. Otherwise a user with permission to
// annotate a Service could use up other clients' quotas with forged headers.
func (c *Conn) QuotaAddr() netip.Addr {
	if c.Via == nil || slices.ContainsFunc(c.Front.LoadBalancers, func(p netip.Prefix) bool { return p.Contains(c.Via.Addr()) }) {
		return c.From.Addr()
	}
	return c.Via.Addr()
}

// EndpointFirstByte records that the first byte from the endpoint has arrived for the client.
func (c *Conn) EndpointFirstByte(now time.Time) {
	took := c.Record.EndpointFirstByte(now)
	c.Endpoint.Times().FirstByte.Observe(latency.Seconds, now, took.Seconds())
}

// FinalResult returns the final Result of a connection that ended with r. It changes EndpointClosed and ClientReset to
// NoResponse if the client had sent bytes and received none, although other clients of this port did receive some. If
// none did, the protocol may have no answers, like syslog and statsd.
func (c *Conn) FinalResult(r outcome.Result) outcome.Result {
	ended := r.Outcome == outcome.EndpointClosed || r.Outcome == outcome.ClientReset
	if ended && r.ToEndpoint > 0 && r.ToClient == 0 && c.Front.answers() {
		r.Outcome = outcome.NoResponse
	}
	return r
}

// CountUnlogged counts a refused client and returns true if RefusalsPerSecond is exceeded. The caller must then not
// record the client in the trace or the access log. Otherwise it returns false and counts nothing.
func (c *Conn) CountUnlogged(o outcome.Outcome) bool {
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
