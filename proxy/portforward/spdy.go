package portforward

import (
	"bufio"
	"net"
	"net/http"
	"strings"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport/spdy"
	"k8s.io/streaming/pkg/httpstream"
	streamspdy "k8s.io/streaming/pkg/httpstream/spdy"
)

// pingPeriod is the interval of pings on SPDY connections, as in client-go.
const pingPeriod = 5 * time.Second

// spdyUpgrader requests a SPDY connection. The RoundTrip of the embedded SpdyRoundTripper ignores the request's context
// while it waits for the answer, so spdyUpgrader replaces it.
type spdyUpgrader struct {
	*streamspdy.SpdyRoundTripper
	conn net.Conn // to the API server
}

// spdyDialer returns a Dialer for one SPDY connection to p.
func (d *Dialer) spdyDialer(p pod) (httpstream.Dialer, error) {
	c := streamspdy.RoundTripperConfig{Proxier: d.config.Proxy}
	if c.Proxier == nil {
		c.Proxier = http.ProxyFromEnvironment
	}
	var err error
	if c.TLS, err = rest.TLSConfigFor(d.config); err != nil {
		return nil, err
	}
	u := &spdyUpgrader{}
	if u.SpdyRoundTripper, err = streamspdy.NewRoundTripperWithConfig(c); err != nil {
		return nil, err
	}
	transport, err := rest.HTTPWrappersForConfig(d.config, u)
	if err != nil {
		return nil, err
	}
	return spdy.NewDialerForStreaming(spdy.NewUpgraderForStreaming(u), &http.Client{Transport: transport}, http.MethodPost, d.url(p)), nil
}

// RoundTrip requests the upgrade and returns the answer.
func (u *spdyUpgrader) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Add(httpstream.HeaderConnection, httpstream.HeaderUpgrade)
	r.Header.Add(httpstream.HeaderUpgrade, streamspdy.HeaderSpdy31)
	var err error
	if u.conn, err = u.Dial(r); err != nil {
		return nil, err
	}
	limit, _ := r.Context().Deadline()
	_ = u.conn.SetDeadline(limit) // fails only once it is closed
	resp, err := http.ReadResponse(bufio.NewReader(u.conn), nil)
	if err != nil {
		u.conn.Close()
	}
	return resp, err
}

// NewConnection returns the connection, or the error in the answer.
func (u *spdyUpgrader) NewConnection(resp *http.Response) (httpstream.Connection, error) {
	if resp.StatusCode != http.StatusSwitchingProtocols || !strings.EqualFold(resp.Header.Get(httpstream.HeaderUpgrade), streamspdy.HeaderSpdy31) {
		defer u.conn.Close()
		return u.SpdyRoundTripper.NewConnection(resp)
	}
	_ = u.conn.SetDeadline(time.Time{})
	return streamspdy.NewClientConnectionWithPings(u.conn, pingPeriod)
}
