package proxy

import (
	"context"
	"net/netip"
	"time"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/proxy/balance"
	"github.com/usherproxy/usher/proxy/forward"
	"github.com/usherproxy/usher/proxy/probe"
	"github.com/usherproxy/usher/proxy/trace"
)

const (
	// probeTimeout has room for a packet that is lost: TCP sends it again after a second
	// (RFC 6298, 2.1).
	probeTimeout = 2 * time.Second
	// probeGap is a hundred probes a second, whoever failed.
	probeGap = 10 * time.Millisecond
	// mostProbes is how many may be under way: who does not answer takes probeTimeout.
	mostProbes = 64
)

// probes returns how many probes may be under way at once: each takes a descriptor, of
// those that are reserved.
func (b *budget) probes() int64 {
	return max(1, b.reserved()*mostProbes/mostReserved)
}

// newProber returns what probes the endpoints that are in quarantine.
func (p *Proxy) newProber() *probe.Prober {
	return probe.New(probe.Options{
		Dial: p.probe, Timeout: probeTimeout, Gap: probeGap, AtOnce: int(p.budget.probes()),
	})
}

// probe finds out whether an endpoint answers. The connection is closed as every client
// closes one, and as the kubelet does after its own probes: servers are used to that,
// while a reset would be an error to them.
func (p *Proxy) probe(ctx context.Context, to netip.AddrPort) error {
	err := errLeadsBack
	if !p.leadsBack(config.TCP, to) {
		var conn forward.Conn
		if conn, err = p.dial(ctx, netip.Addr{}, &config.Endpoint{Addr: to}); err == nil {
			conn.Close()
		}
	}
	switch {
	case err == nil:
		p.counters.probes[AttemptConnected].Add(1)
	case ctx.Err() != context.Canceled: // else usher stops
		p.counters.probes[ResultOf(attemptError(err).Error())].Add(1)
	}
	return err
}

// quarantine returns what goes for the endpoints of f. Only to those that the kernel
// connects to by TCP a probe is like a client: for UDP there is none, one of SCTP costs
// the endpoint an association, and one through Options.Dial costs others.
func (f *frontEnd) quarantine() balance.Quarantine {
	q := f.proxy.Quarantine
	q.Probed = q.Probed && f.protocol == config.TCP && f.proxy.Dial == nil
	return q
}

// probed is an endpoint that is probed while it is in quarantine.
type probed struct {
	front *frontEnd
	state *balance.State
}

// endpoint returns the endpoint as it is listed now, or nil if it is gone.
func (t probed) endpoint() *balance.Endpoint {
	for _, e := range t.front.view.Load().all {
		if e.State == t.state {
			return e
		}
	}
	return nil
}

// Wanted implements probe.Target.
func (t probed) Wanted() bool {
	period, quarantined := t.state.Quarantined(time.Now())
	return quarantined && period.Probed && t.endpoint() != nil
}

// Probed implements probe.Target.
func (t probed) Probed(err error) time.Duration {
	e := t.endpoint()
	if e == nil {
		return 0
	}
	now := time.Now()
	blame := err != nil && blamed(err)
	if err != nil {
		err = attemptError(err)
	}
	next, news := t.state.Probed(now, err, blame, t.front.quarantine())
	switch {
	case !news:
	case next == 0:
		t.front.recovered(e, now, trace.ByProbe)
	default:
		t.front.tellEndpoint(trace.Event{Kind: trace.EndpointProbed, Time: now, Took: next, Err: err.Error()}, e)
	}
	return next
}
