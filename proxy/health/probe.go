package health

import (
	"cmp"
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

// The limits, in bytes, for the header and the body of an HTTP response, and for the text of a reported error.
const maxHeader, maxBody, maxError = 64 << 10, 64 << 10, 200

// probe is a check or a recheck at an address. Service ports of one namespace that need the same probe share it.
type probe struct {
	namespace    string
	at           netip.AddrPort
	config.Probe // how to probe; Interval is 0 for a recheck
}

// recheck makes a TCP connection. Its timeout allows for one lost packet: TCP resends it after a second (RFC 6298,
// 2.1).
var recheck = config.Probe{Check: config.Check{Kind: config.CheckTCP}, Timeout: 2 * time.Second}

// checksOf returns the checks of the endpoints that clients may use, or nil if v's service port requests none. The key
// is the endpoint's *State, a pointer that stays the same when its weight or conditions change.
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

func (pr *probe) isRecheck() bool { return pr.Interval == 0 }

// ask carries out a probe. It closes its connection normally, as the kubelet does, because servers log a reset as an
// error. A reset is still possible if a response exceeds the limits or the timeout, or if the server of a TCP probe
// sends data first.
func (p *Prober) ask(pr probe) error {
	ctx, cancel := context.WithTimeout(p.ctx, pr.Timeout)
	defer cancel()
	if pr.Check.Kind != config.CheckTCP {
		return p.get(ctx, pr)
	}
	conn, err := p.connect(ctx, pr.at)
	if err == nil {
		conn.Close()
	}
	return err
}

// connect opens a connection to addr. It fails if the connection would come back to usher.
func (p *Prober) connect(ctx context.Context, addr netip.AddrPort) (forward.Conn, error) {
	if _, err := p.node.CheckLoop(config.TCP, addr); err != nil {
		return nil, err
	}
	return p.dial(ctx, &config.Endpoint{Addr: addr})
}

// statusError is the status of an unsuccessful HTTP response.
type statusError int

func (s statusError) Error() string { return fmt.Sprintf("HTTP status %d", int(s)) }

// get makes an HTTP request on a dedicated connection, which closes when ctx ends. The Host is the endpoint's address,
// as with the kubelet. A redirect counts as success and is not followed.
func (p *Prober) get(ctx context.Context, pr probe) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, pr.Check.Kind.String()+"://"+pr.at.String()+pr.Check.Path, nil)
	if err != nil {
		return err
	}
	r.Header.Set("User-Agent", "usher/probe")
	transport := http.Transport{
		// RoundTrip calls DialContext with a context that outlives ctx. When ctx ends, AfterFunc closes the connection.
		DialContext: func(context.Context, string, string) (net.Conn, error) {
			conn, err := p.connect(ctx, pr.at)
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
		return cmp.Or(ctx.Err(), err) // AfterFunc may have closed the connection first
	}
	defer response.Body.Close()
	if response.StatusCode < 200 || response.StatusCode > 399 {
		err = statusError(response.StatusCode)
	}
	_, _ = io.CopyN(io.Discard, response.Body, maxBody) // closing with unread data would reset the connection
	return err
}

func resultOf(err error) conn.Result {
	if errors.As(err, new(statusError)) {
		return conn.BadStatus
	}
	return search.ResultOf(err)
}

// short truncates err's text to maxError bytes, because an endpoint could make it very long.
func short(err error) error {
	err = search.Plain(err)
	if err == nil || len(err.Error()) <= maxError {
		return err
	}
	return errors.New(strings.ToValidUTF8(err.Error()[:maxError], "") + "…")
}

// target identifies an endpoint of a service port. It stays valid when the endpoint's weight or conditions change.
type target struct {
	front *frontend.FrontEnd
	state *balance.State
}

// endpoint returns the endpoint in the current View, or nil if it was removed.
func (t target) endpoint() *balance.Endpoint { return t.front.View().Endpoint(t.state) }

// dropTargets drops those targets of a recheck whose endpoint was removed, is not in quarantine, or is in a quarantine
// that ends after a fixed time and not with a probe. Update drops the targets of checks.
func (j *job) dropTargets() {
	if !j.isRecheck() {
		return
	}
	now := time.Now()
	maps.DeleteFunc(j.targets, func(t target, _ bool) bool {
		h := t.state.Health(now)
		return h.State != balance.Down || !h.UntilProbe || t.endpoint() == nil
	})
}

// report applies the result of a probe to t's endpoint. It returns the time until t's next probe, or 0 if t needs none.
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
		case search.EndpointAtFault(err):
			r.Kind = balance.RecheckFailed
		default:
			r.Kind = balance.RecheckInconclusive
		}
		// Any Origin will do: the report of a recheck uses only the policy's First and Max, which do not depend on it.
		return e.Report(r, t.front.Policy(portal.Origin{}, e.Endpoint)).Next
	}
	switch {
	case err == nil:
		r.Kind = balance.CheckPassed
	case search.EndpointAtFault(err):
		r.Kind = balance.CheckFailed
	default:
		return j.Interval
	}
	e.Report(r, balance.Policy{First: j.Interval, Rise: int32(j.Rise), Fall: int32(j.Fall)})
	return j.Interval
}
