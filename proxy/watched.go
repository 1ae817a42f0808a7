package proxy

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/proxy/balance"
	"github.com/usherproxy/usher/proxy/conn"
	"github.com/usherproxy/usher/proxy/frontend"
	"github.com/usherproxy/usher/proxy/probe"
	"github.com/usherproxy/usher/proxy/search"
	"github.com/usherproxy/usher/proxy/trace"
)

const (
	// watchGap is five hundred probes a second for which Services ask.
	watchGap = 2 * time.Millisecond
	// What of an answer by HTTP is taken, and what of an error is told, in bytes.
	maxProbeHeader, maxProbeBody, maxProbeError = 64 << 10, 64 << 10, 200
)

// check is what is probed, and how. Service ports of a namespace that want the same have one probe
// together.
type check struct {
	namespace string
	at        netip.AddrPort
	config.Probe
}

// ProbeOf returns how the endpoints of a port are probed. What is reached through a tunnel is
// not: see FrontEnd.Policy.
func (o *Options) ProbeOf(port config.ServicePort) config.Probe {
	if probe := port.Probe.Or(o.Probe); probe.Wanted(port.Protocol) && o.Dial == nil {
		return probe
	}
	return config.Probe{}
}

// newWatcher returns what probes the endpoints whose Services ask for it.
func (p *Proxy) newWatcher() *probe.Prober[check] {
	told := rate.Sometimes{Interval: time.Minute}
	return probe.New(probe.Options[check]{
		Dial: p.check, Gap: watchGap, AtOnce: int(p.node.Budget.Probes()), InTurn: true,
		Share: func(c check) string { return c.namespace },
		Began: func(c check, late time.Duration) {
			if late <= c.Interval {
				return
			}
			p.node.Counters.LateProbes.Add(1)
			told.Do(func() {
				p.Log.Warnf("Services ask for more probes of endpoints than are made, %d a second and %d at once: the one of %s begins %s late",
					time.Second/watchGap, p.node.Budget.Probes(), c.at, trace.Short(late))
			})
		},
	})
}

// check makes a probe, and counts it.
func (p *Proxy) check(ctx context.Context, c check) (err error) {
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	if c.Check.Kind == config.CheckTCP {
		err = p.connect(ctx, c.at)
	} else {
		err = p.get(ctx, c)
	}
	result := search.ResultOf(err)
	if errors.As(err, new(statusError)) {
		result = conn.BadStatus
	}
	p.countProbe(ctx, result)
	return err
}

// statusError is an answer by HTTP that is no success.
type statusError int

func (s statusError) Error() string { return fmt.Sprintf("HTTP status %d", int(s)) }

// get asks by HTTP, on a connection of its own, which ends with ctx. The Host is the endpoint's address,
// as with the kubelet. A redirection is a success, and is not followed.
func (p *Proxy) get(ctx context.Context, c check) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, c.Check.Kind.String()+"://"+c.at.String()+c.Check.Path, nil)
	if err != nil {
		return err
	}
	r.Header.Set("User-Agent", "usher/probe")
	transport := http.Transport{
		// The context that it is given has no end.
		DialContext: func(context.Context, string, string) (net.Conn, error) {
			conn, err := p.dialProbe(ctx, c.at)
			if err != nil {
				return nil, err
			}
			context.AfterFunc(ctx, func() { conn.Close() })
			return conn, nil
		},
		TLSClientConfig:        &tls.Config{InsecureSkipVerify: true}, // as the kubelet and load balancers do
		DisableKeepAlives:      true,
		DisableCompression:     true,
		MaxResponseHeaderBytes: maxProbeHeader,
	}
	answer, err := transport.RoundTrip(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode < 200 || answer.StatusCode > 399 {
		err = statusError(answer.StatusCode)
	}
	_, _ = io.CopyN(io.Discard, answer.Body, maxProbeBody) // the status has said it; but a body that is not read is a reset
	return err
}

// watch is an endpoint that is probed all the time. It is a probe.Target.
type watch struct {
	check
	front    *frontEnd
	endpoint *balance.Endpoint

	mu   sync.Mutex
	over bool
}

// watch probes those endpoints of v that clients may use, as its port says, and no others.
func (f *frontEnd) watch(v *frontend.View) {
	before := f.watches
	f.watches = nil
	if how := v.Port.Probe; how.Check.Kind != 0 {
		f.watches = make(map[*balance.State]*watch, len(v.All))
		for _, set := range []*balance.Set{v.Cluster, v.Internal, v.External} {
			for _, e := range set.Endpoints() {
				f.watches[e.State] = f.watchOne(e, how, before)
			}
		}
	}
	for state, w := range before {
		if f.watches[state] == w {
			continue
		}
		w.end(slices.ContainsFunc(v.All, func(e *balance.Endpoint) bool { return e.State == state }))
		f.proxy.watcher.Remove(w.check, w)
	}
}

// watchOne returns what watches an endpoint: what did before, or what was begun for another
// group of clients, if it is the same.
func (f *frontEnd) watchOne(e *balance.Endpoint, how config.Probe, before map[*balance.State]*watch) *watch {
	c := check{f.ID().Namespace, e.Addr, how}
	if how.Check.Port != 0 {
		c.at = netip.AddrPortFrom(e.Addr.Addr(), how.Check.Port)
	}
	for _, w := range []*watch{f.watches[e.State], before[e.State]} {
		if w != nil && w.check == c {
			w.mu.Lock()
			w.endpoint = e // of the model as it is now
			w.mu.Unlock()
			return w
		}
	}
	w := &watch{check: c, front: f, endpoint: e}
	f.proxy.watcher.Add(c, w, rand.N(c.Interval)) // not all at once, nor from all nodes
	return w
}

// end ends the probes. If the endpoint is still listed, what they have shown is forgotten.
func (w *watch) end(listed bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.over = true
	if listed {
		w.endpoint.Report(balance.Report{Kind: balance.CheckOff, Now: time.Now()}, balance.Policy{})
	}
}

// Wanted implements probe.Target.
func (w *watch) Wanted() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !w.over
}

// Probed implements probe.Target.
func (w *watch) Probed(err error) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.over {
		return 0
	}
	if err != nil && !search.Blames(err) {
		return w.Interval
	}
	r := balance.Report{Kind: balance.CheckPassed, Now: time.Now(), Err: told(err)}
	if err != nil {
		r.Kind = balance.CheckFailed
	}
	w.endpoint.Report(r, balance.Policy{First: w.Interval, Rise: int32(w.Rise), Fall: int32(w.Fall)})
	return w.Interval
}

// told returns what is told of an error. What an endpoint has said may be part of it.
func told(err error) error {
	err = search.Plain(err)
	if err == nil || len(err.Error()) <= maxProbeError {
		return err
	}
	return errors.New(strings.ToValidUTF8(err.Error()[:maxProbeError], "") + "…")
}
