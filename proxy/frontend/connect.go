package frontend

import (
	"context"
	"net/netip"
	"time"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/proxy/outcome"
	"github.com/usherproxy/usher/proxy/search"
)

// Connecting is a Conn that has no endpoint yet. During an attempt, Endpoint is the one that is tried. Connecting
// drives the search: Next passes the next step of package search to a Runner. Only the goroutine that may use the Conn
// calls the methods of Connecting.
type Connecting struct {
	*Conn
	search search.Search
	run    Runner
	ctx    context.Context // ends when the search must be given up
	trying bool            // an attempt is under way
	source portal.Origin   // of the attempt
}

// Runner performs the steps of one connection's search: in an event loop, or in a goroutine.
type Runner interface {
	// Dial starts to connect to Connecting.Endpoint. If from is valid, it is the source address; otherwise the kernel
	// selects one. Dial calls Connecting.Done, Abandon or Stop once, perhaps before it returns; for UDP, a session that
	// ends before an answer calls End instead. If the attempt takes longer than limit (0: no limit), Dial calls Done
	// with context.DeadlineExceeded. mayLoop is the result of Node.CheckLoop.
	Dial(v *View, from netip.AddrPort, mayLoop bool, limit time.Duration)
	// Wait performs the given search.Wait step. When that is over, Connecting.Next is called. If the client leaves
	// before that, or the search must be given up, Connecting.Stop is called. v is the View that the step is based on.
	Wait(v *View, step search.Step)
	// Connected is called when the connection is established; for UDP, when the Endpoint's first datagram arrives. It
	// is the last call.
	Connected()
	// Refuse ends the connection, which gets no endpoint. It is the last call.
	Refuse(outcome.Result)
}

// Connect returns the Connecting of an admitted client; its method Next starts the search.
func (c *Conn) Connect(ctx context.Context, run Runner) Connecting {
	f := c.Front
	s := search.Search{Schedule: f.Schedule, Client: c.From.Addr(), VIP: c.VIP.Addr, Record: c.Record}
	if f.Protocol == config.UDP {
		s.Schedule = nil
	}
	return Connecting{Conn: c, search: s, run: run, ctx: ctx}
}

// Next performs the next step of the search.
func (c *Connecting) Next(now time.Time) {
	if err := c.ctx.Err(); err != nil {
		c.Stop(now, outcome.Result{Outcome: outcome.Drained, Err: err})
		return
	}
	v := c.Front.View()
	if c.search.Affinity = nil; v.Port.AffinityTimeout > 0 {
		c.search.Affinity = c.Front.Affinity
	}
	step := c.search.Next(c.Endpoints(v), now)
	switch step.Do {
	case search.GiveUp:
		c.refuse(step.Result)
		return
	case search.Wait:
		c.run.Wait(v, step)
		return
	}
	c.Endpoint, c.trying = step.Endpoint, true
	mayLoop, err := c.Front.CheckLoop(c.Front.Protocol, c.Endpoint.Addr)
	if err != nil {
		c.search.SourceAddress, c.source = 0, portal.Origin{}
		c.Done(now, err)
		return
	}
	c.source = c.Source(v, c.Endpoint)
	c.search.SourceAddress = c.source.SourceAddress
	c.run.Dial(v, c.source.Bind, mayLoop, step.For)
}

// Done ends an attempt: successfully if err is nil. Otherwise it performs the next step.
func (c *Connecting) Done(now time.Time, err error) {
	switch {
	case err == nil:
		c.search.Connected(now)
		c.run.Connected()
		return
	case c.ctx.Err() != nil: // the search is given up; err does not matter
		c.Abandon(now, err)
		return
	}
	c.search.Policy = c.Front.Policy(c.source, c.Endpoint.Endpoint)
	c.search.Failed(now, err)
	c.Endpoint.Release()
	c.trying = false
	c.Next(now)
}

// Abandon gives up an attempt for a reason that is not the endpoint's fault, and performs the next step.
func (c *Connecting) Abandon(now time.Time, why error) {
	c.End(now, why)
	c.Next(now)
}

// Stop ends the search with result r, and refuses the client.
func (c *Connecting) Stop(now time.Time, r outcome.Result) {
	c.End(now, r.Err)
	c.refuse(r)
}

func (c *Connecting) refuse(r outcome.Result) {
	r.Queued = c.search.TimeInQueue()
	c.run.Refuse(r)
}

// End ends the attempt that is under way, if there is one, or takes the client out of the queue.
func (c *Connecting) End(now time.Time, why error) {
	c.search.LeaveQueue(now)
	if c.trying {
		c.search.Abandoned(now, why)
		c.Endpoint.Release()
		c.trying = false
	}
}

// Queued reports whether the client waits in the queue for a free slot of an endpoint.
func (c *Connecting) Queued() bool { return c.search.Queued() }
