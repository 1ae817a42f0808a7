package stream

import (
	"context"
	"net/netip"
	"syscall"
	"time"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/proxy/forward"
	"github.com/usherproxy/usher/proxy/frontend"
	"github.com/usherproxy/usher/proxy/outcome"
	"github.com/usherproxy/usher/proxy/search"
)

// goroutine serves a client that has no endpoint yet, in a goroutine. It is used for SCTP. For TCP it is used on
// systems without loops, if Options.Dial connects to endpoints, and for clients passed to Serve.
type goroutine struct {
	*Conn
	connecting       frontend.Connecting
	setProxiedClient func() outcome.Result // reads the PROXY protocol header and records the client; nil for SCTP, which has none
	dial             dialer

	forward  forwarder // of the successful attempt
	callNext bool      // seek must call search.Next: at first, and when a Wait has ended
}

// A dialer connects to an endpoint. from need not be an address of this node; if it is zero, the kernel picks the
// address. The dialer gives up when ctx ends.
type dialer func(_ context.Context, v *frontend.View, from netip.AddrPort, to *config.Endpoint) (forwarder, error)

// A forwarder starts to forward between the client and an endpoint to which a connection is open. It returns at once,
// and calls the Owner from another goroutine.
type forwarder func(*forward.Limits, forward.Owner) forward.Flow

// awaitHeader implements runner.
func (g *goroutine) awaitHeader() { g.enter(g.setProxiedClient(), g) }

// seek implements runner.
func (g *goroutine) seek() {
	g.connecting = g.Connect(g.server.ctx, g)
	for g.callNext = true; g.callNext; {
		g.callNext = false
		g.connecting.Next(time.Now())
	}
}

// Wait implements frontend.Runner.
func (g *goroutine) Wait(v *frontend.View, step search.Step) {
	why, gone := errClientReset, forward.WaitReset
	if g.connecting.Queued() {
		why, gone = errClientLeft, g.waitLeft
	}
	err := g.withClient(g.server.ctx, why, gone, func(ctx context.Context) error {
		wait(ctx, step, v.Replaced)
		return ctx.Err()
	})
	if err != nil {
		g.connecting.Stop(time.Now(), searchEnded(err))
		return
	}
	g.callNext = true
}

// Dial implements frontend.Runner.
func (g *goroutine) Dial(v *frontend.View, from netip.AddrPort, _ bool, limit time.Duration) {
	ctx, cancel := context.WithTimeout(g.server.ctx, limit)
	var err error
	g.forward, err = g.dial(ctx, v, from, g.Endpoint.Endpoint)
	cancel()
	if err == errClientReset {
		g.connecting.Stop(time.Now(), searchEnded(err))
		return
	}
	g.connecting.Done(time.Now(), err)
}

// Connected implements frontend.Runner.
func (g *goroutine) Connected() {
	g.begun = make(chan struct{})
	g.Endpoint = g.Endpoint.Own()
	flow := g.forward(g.limits(), g.Conn)
	g.server.register.goroutineFlows.Store(g.Conn, flow)
	g.flowing(flow)
	close(g.begun)
}

// wait returns when a Wait step is over, or ctx ends. replaced is closed when the endpoints have changed.
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

// waitLeft returns true when the client has left, and false when its read deadline has passed.
func (g *goroutine) waitLeft(raw syscall.RawConn) bool {
	tcp, is := g.client.(*keptClient)
	return forward.WaitLeft(raw, is && len(tcp.kept) > 0)
}

// withClient calls f with a context that also ends when the client leaves. To detect that, it calls gone with the
// client's socket. gone must return true when the client has left, and false when the client's read deadline has
// passed. If f fails after the client has left, withClient returns why. f must not read from the client. For clients
// without a socket, and on systems that do not report a leaving client, the context ends with ctx.
func (g *goroutine) withClient(ctx context.Context, why error, gone func(syscall.RawConn) bool, f func(context.Context) error) error {
	client, ok := g.client.(interface {
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
	clientCtx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if gone(raw) {
			cancel(why)
		}
	}()
	err = f(clientCtx)
	_ = client.SetReadDeadline(time.Unix(1, 0)) // fails only if the client's socket is closed
	<-done
	_ = client.SetReadDeadline(time.Time{})
	if err != nil && context.Cause(clientCtx) == why {
		return why
	}
	return err
}
