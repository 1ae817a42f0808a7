package health

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/proxy/balance"
	"github.com/usherproxy/usher/proxy/conn"
	"github.com/usherproxy/usher/proxy/forward"
	"github.com/usherproxy/usher/proxy/frontend"
	"github.com/usherproxy/usher/proxy/search"
)

// What is read of an HTTP response, and what is kept of an error, in bytes.
const maxHeader, maxBody, maxError = 64 << 10, 64 << 10, 200

// probe is what is asked of an address. Service ports of a namespace that want the same have one probe
// together.
type probe struct {
	namespace    string
	at           netip.AddrPort
	config.Probe // a recheck has no Interval
}

// recheck has time for a packet that is lost: TCP sends it again after a second (RFC 6298, 2.1).
var recheck = config.Probe{Check: config.Check{Kind: config.CheckTCP}, Timeout: 2 * time.Second}

// checksOf returns the checks of those endpoints that clients may use, as the view's port asks for; nil if it
// asks for none.
func checksOf(v *frontend.View) map[*balance.State]probe {
	how := v.Port.Probe
	if how.Check.Kind == 0 {
		return nil
	}
	checks := make(map[*balance.State]probe, len(v.All))
	for _, set := range []*balance.Set{v.Cluster, v.Internal, v.External} {
		for _, e := range set.Endpoints() {
			at := e.Addr
			if how.Check.Port != 0 {
				at = netip.AddrPortFrom(at.Addr(), how.Check.Port)
			}
			checks[e.State] = probe{v.Port.ID.Namespace, at, how}
		}
	}
	return checks
}

func (c *probe) isRecheck() bool { return c.Interval == 0 }

// ask makes a probe. Its connection is closed as clients close theirs, and as the kubelet does after its own
// probes: servers are used to that, while a reset would be an error to them.
func (p *Prober) ask(c probe) error {
	ctx, cancel := context.WithTimeout(p.ctx, c.Timeout)
	defer cancel()
	if c.Check.Kind != config.CheckTCP {
		return p.get(ctx, c)
	}
	conn, err := p.connect(ctx, c.at)
	if err == nil {
		conn.Close()
	}
	return err
}

func (p *Prober) connect(ctx context.Context, to netip.AddrPort) (forward.Conn, error) {
	if _, err := p.node.LeadsBack(config.TCP, to); err != nil {
		return nil, err
	}
	return p.dial(ctx, &config.Endpoint{Addr: to})
}

// statusError is the status of an HTTP response that is no success.
type statusError int

func (s statusError) Error() string { return fmt.Sprintf("HTTP status %d", int(s)) }

// get makes an HTTP request on a connection of its own, which ends with ctx. The Host is the endpoint's
// address, as with the kubelet. A redirection is a success, and is not followed.
func (p *Prober) get(ctx context.Context, c probe) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, c.Check.Kind.String()+"://"+c.at.String()+c.Check.Path, nil)
	if err != nil {
		return err
	}
	r.Header.Set("User-Agent", "usher/probe")
	transport := http.Transport{
		// The context that it is given has no end.
		DialContext: func(context.Context, string, string) (net.Conn, error) {
			conn, err := p.connect(ctx, c.at)
			if err != nil {
				return nil, err
			}
			context.AfterFunc(ctx, func() { conn.Close() })
			return conn, nil
		},
		TLSClientConfig:        &tls.Config{InsecureSkipVerify: true}, // as the kubelet and load balancers do
		DisableKeepAlives:      true,
		DisableCompression:     true,
		MaxResponseHeaderBytes: maxHeader,
	}
	response, err := transport.RoundTrip(r)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode < 200 || response.StatusCode > 399 {
		err = statusError(response.StatusCode)
	}
	_, _ = io.CopyN(io.Discard, response.Body, maxBody) // the status decides; but closing with unread data is a reset
	return err
}

func resultOf(err error) conn.Result {
	if errors.As(err, new(statusError)) {
		return conn.BadStatus
	}
	return search.ResultOf(err)
}

// short returns err in few words. What an endpoint has sent may be part of it.
func short(err error) error {
	err = search.Plain(err)
	if err == nil || len(err.Error()) <= maxError {
		return err
	}
	return errors.New(strings.ToValidUTF8(err.Error()[:maxError], "") + "…")
}

// target is an endpoint of a service port, whatever else of it changes.
type target struct {
	front *frontend.FrontEnd
	state *balance.State
}

// endpoint returns the endpoint as it is listed now, or nil if it is gone.
func (t target) endpoint() *balance.Endpoint {
	for _, e := range t.front.View().All {
		if e.State == t.state {
			return e
		}
	}
	return nil
}

// dropTargets drops the endpoints that are not to be rechecked any longer. Those of checks are removed by Update.
func (j *job) dropTargets() {
	if !j.isRecheck() {
		return
	}
	now := time.Now()
	maps.DeleteFunc(j.targets, func(t target, _ bool) bool {
		h := t.state.Health(now)
		return h.State != balance.Down || !h.Probed || t.endpoint() == nil
	})
}

// report reports the result of a probe to an endpoint, and returns after how long the next one is due; 0 if
// there is to be none.
func (j *job) report(t target, err error) (next time.Duration) {
	e := t.endpoint()
	if e == nil {
		return 0
	}
	r := balance.Report{Now: time.Now(), Err: short(err)}
	if j.isRecheck() {
		switch {
		case err == nil:
			r.Kind = balance.RecheckPassed
		case search.Blames(err):
			r.Kind = balance.RecheckFailed
		default:
			r.Kind = balance.RecheckNotMade
		}
		return e.Report(r, t.front.Policy(portal.Origin{})).Next
	}
	switch {
	case err == nil:
		r.Kind = balance.CheckPassed
	case search.Blames(err):
		r.Kind = balance.CheckFailed
	default:
		return j.Interval
	}
	e.Report(r, balance.Policy{First: j.Interval, Rise: int32(j.Rise), Fall: int32(j.Fall)})
	return j.Interval
}
