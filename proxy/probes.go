package proxy

import (
	"context"
	"net/netip"
	"time"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/proxy/balance"
	"github.com/usherproxy/usher/proxy/conn"
	"github.com/usherproxy/usher/proxy/forward"
	"github.com/usherproxy/usher/proxy/probe"
	"github.com/usherproxy/usher/proxy/search"
)

const (
	// probeTimeout has room for a packet that is lost: TCP sends it again after a second
	// (RFC 6298, 2.1).
	probeTimeout = 2 * time.Second
	// probeGap is a hundred probes a second, whoever failed.
	probeGap = 10 * time.Millisecond
)

// newProber returns what probes the endpoints that are in quarantine.
func (p *Proxy) newProber() *probe.Prober[netip.AddrPort] {
	return probe.New(probe.Options[netip.AddrPort]{Dial: p.probe, Gap: probeGap, AtOnce: int(p.node.Budget.Probes())})
}

// probe finds out whether an endpoint answers. The connection is closed as every client
// closes one, and as the kubelet does after its own probes: servers are used to that,
// while a reset would be an error to them.
func (p *Proxy) probe(ctx context.Context, to netip.AddrPort) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	err := p.connect(ctx, to)
	p.countProbe(ctx, search.ResultOf(err))
	return err
}

// connect makes the connection that is a probe, and ends it.
func (p *Proxy) connect(ctx context.Context, to netip.AddrPort) error {
	conn, err := p.dialProbe(ctx, to)
	if err == nil {
		conn.Close()
	}
	return err
}

func (p *Proxy) dialProbe(ctx context.Context, to netip.AddrPort) (forward.Conn, error) {
	if err := p.node.LeadsBack(config.TCP, to); err != nil {
		return nil, err
	}
	return p.DirectDial(ctx, &config.Endpoint{Addr: to})
}

// countProbe counts a probe that was made with ctx.
func (p *Proxy) countProbe(ctx context.Context, result conn.Result) {
	if result == conn.Connected || ctx.Err() != context.Canceled { // else usher stops
		p.node.Counters.Probes[result].Add(1)
	}
}

// probed is an endpoint that is probed while it is in quarantine.
type probed struct {
	front *frontEnd
	state *balance.State
}

// endpoint returns the endpoint as it is listed now, or nil if it is gone.
func (t probed) endpoint() *balance.Endpoint {
	for _, e := range t.front.View().All {
		if e.State == t.state {
			return e
		}
	}
	return nil
}

// Wanted implements probe.Target.
func (t probed) Wanted() bool {
	h := t.state.Health(time.Now())
	return h.State == balance.Down && h.Probed && t.endpoint() != nil
}

// Probed implements probe.Target.
func (t probed) Probed(err error) time.Duration {
	e := t.endpoint()
	if e == nil {
		return 0
	}
	r := balance.Report{Kind: balance.RecheckPassed, Now: time.Now(), Err: search.Plain(err)}
	switch {
	case err == nil:
	case search.Blames(err):
		r.Kind = balance.RecheckFailed
	default:
		r.Kind = balance.RecheckNotMade
	}
	return e.Report(r, t.front.Policy(portal.Origin{})).Next
}
