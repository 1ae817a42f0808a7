package portforward

import (
	"context"
	"errors"
	"net/netip"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/proxy/forward"
)

// In each step, the test dials an endpoint whose network responds in some way, and checks the ways that were tried.
func TestAutoRemembersReachableNetworks(t *testing.T) {
	answers, refuses, silent := error(nil), error(syscall.ECONNREFUSED), errors.New("silent")
	unreachable := error(syscall.ENETUNREACH)
	const withoutPod = "10.1.0.99:6443"
	type step struct {
		endpoint string
		direct   error // result of a direct connection
		later    time.Duration
		tried    string
	}
	for name, steps := range map[string][]step{
		"a network that answered is dialed directly, even when an endpoint refuses": {
			{"10.1.0.1:80", answers, 0, "direct"}, {"10.1.0.2:80", refuses, 0, "direct"}, {"10.1.0.2:80", silent, 0, "direct"}},
		"a network that did not answer is not dialed directly again": {
			{"10.1.0.1:80", silent, 0, "direct else"}, {"10.1.0.2:80", answers, 0, "else"}, {"10.1.0.2:80", answers, 59 * time.Second, "else"}},
		"a network without a route is not dialed directly again": {
			{"10.1.0.1:80", unreachable, 0, "direct else"}, {"10.1.0.2:80", unreachable, 0, "else"}},
		"a network that did not answer is dialed directly after a minute": {
			{"10.1.0.1:80", silent, 0, "direct else"}, {"10.1.0.2:80", answers, time.Minute, "direct"}},
		"a network that answered is checked again after a minute": {
			{"10.1.0.1:80", answers, 0, "direct"}, {"10.1.0.1:80", silent, time.Minute, "direct else"}, {"10.1.0.1:80", silent, 0, "else"}},
		"a refusal does not determine whether a network is reachable": {
			{"10.1.0.1:80", refuses, 0, "direct else"}, {"10.1.0.2:80", refuses, 0, "direct else"}, {"10.1.0.3:80", answers, 0, "direct"}},
		"each IPv4 network is checked separately": {
			{"10.1.0.1:80", silent, 0, "direct else"}, {"10.1.1.1:80", answers, 0, "direct"}, {"10.1.0.9:80", answers, 0, "else"}},
		"an endpoint without a Pod is always dialed directly": {
			{"10.1.0.1:80", silent, 0, "direct else"}, {withoutPod, answers, 0, "direct"}, {withoutPod, silent, 0, "direct"}, {"10.1.0.2:80", answers, 0, "else"}},
		"each IPv6 network is checked separately": {
			{"[fd00::1]:80", silent, 0, "direct else"}, {"[fd00::ffff:1]:80", answers, 0, "else"}, {"[fd00:0:0:1::1]:80", answers, 0, "direct"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var now step
				var tried string
				dial := Auto(
					func(ctx context.Context, _ *config.Endpoint) (forward.Conn, error) {
						tried += " direct"
						if now.direct == silent {
							<-ctx.Done()
							return nil, ctx.Err()
						}
						return nil, now.direct
					},
					func(context.Context, *config.Endpoint) (forward.Conn, error) {
						tried += " else"
						return nil, nil
					},
				)
				for i, s := range steps {
					now, tried = s, ""
					time.Sleep(s.later)
					pod := "some-pod"
					if s.endpoint == withoutPod {
						pod = ""
					}
					ctx, cancel := context.WithTimeout(t.Context(), Schedule[0])
					_, _ = dial(ctx, &config.Endpoint{Addr: netip.MustParseAddrPort(s.endpoint), Pod: pod})
					cancel()
					if tried != " "+s.tried {
						t.Errorf("step %d: tried%s, not %s", i+1, tried, s.tried)
					}
				}
			})
		})
	}
}
