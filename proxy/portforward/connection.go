package portforward

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/streaming/pkg/httpstream"
)

const (
	// connectTime is how long an attempt to connect to a Pod may take; see limitTime. After that the next caller
	// starts another one.
	connectTime = 10 * time.Second
	// idleTime is the default of Dialer.IdleTime.
	idleTime = time.Minute
)

// errLost means that the connection to a Pod broke.
var errLost = errors.New("the connection to the Pod was lost")

// connection is a connection to a Pod, with many streams. Dialer.mu guards the fields after err.
type connection struct {
	pod   pod
	ready chan struct{} // closed when http or err is set

	http httpstream.Connection
	err  error

	users   int // callers that have streams, or wait to open them
	retired bool
	idle    *time.Timer // set while there are no users
}

// connect returns a connection to p on which streams can be opened. The caller is one of its users until leave.
func (d *Dialer) connect(ctx context.Context, p pod) (*connection, error) {
	c, err := d.join(p)
	if err != nil {
		return nil, err
	}
	select {
	case <-c.ready:
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err == nil {
		err = c.err
	}
	if err != nil {
		d.leave(c)
		return nil, err
	}
	return c, nil
}

// join makes the caller a user of the connection to p, and starts one if there is none.
func (d *Dialer) join(p pod) (*connection, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, errors.New("port-forward has ended")
	}
	c := d.pods[p]
	if c == nil {
		c = &connection{pod: p, ready: make(chan struct{})}
		d.pods[p], d.all[c] = c, true
		go d.run(c)
	}
	c.users++
	if c.idle != nil {
		c.idle.Stop()
		c.idle = nil
	}
	return c, nil
}

// run establishes a connection, and removes it when it has ended.
func (d *Dialer) run(c *connection) {
	late := time.AfterFunc(connectTime, func() { d.retire(c) })
	c.http, c.err = d.upgrade(c.pod)
	late.Stop()
	close(c.ready)
	if c.err == nil {
		d.closeIfUnused(c) // all users may have left
		<-c.http.CloseChan()
	}
	d.retire(c)
	d.mu.Lock()
	delete(d.all, c)
	d.mu.Unlock()
}

// limitTime limits requests to connectTime. For SPDY this does not include the answer of an HTTP proxy, since the library
// ignores the context there.
func limitTime(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		ctx, cancel := context.WithTimeout(r.Context(), connectTime)
		defer cancel()
		return next.RoundTrip(r.WithContext(ctx))
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// upgrade requests a connection to a Pod from the API server: by WebSocket or, if that fails, by SPDY, which
// API servers before 1.30 need.
func (d *Dialer) upgrade(p pod) (httpstream.Connection, error) {
	if !d.noWebSocket.Load() {
		dialer, err := portforward.NewSPDYOverWebsocketDialerForStreaming(d.url(p), d.config)
		if err != nil {
			return nil, err
		}
		conn, err := negotiate(dialer)
		if err == nil || !worthSPDY(err) {
			return conn, d.plain(p, err)
		}
	}
	dialer, err := d.spdyDialer(p)
	if err != nil {
		return nil, err
	}
	conn, err := negotiate(dialer)
	if err == nil {
		d.noWebSocket.Store(true)
	}
	return conn, d.plain(p, err)
}

func negotiate(dialer httpstream.Dialer) (httpstream.Connection, error) {
	conn, protocol, err := dialer.Dial(portforward.PortForwardProtocolV1Name)
	if err == nil && protocol != portforward.PortForwardProtocolV1Name {
		conn.Close()
		return nil, fmt.Errorf("the API server uses an unsupported port-forward protocol: %q", protocol)
	}
	return conn, err
}

// worthSPDY reports whether SPDY may succeed where WebSocket failed: because the verb get is missing, or
// because the server or a proxy does not support WebSocket.
func worthSPDY(err error) bool {
	if upgrade, ok := errors.AsType[*httpstream.UpgradeFailureError](err); ok {
		return !apierrors.IsNotFound(upgrade.Cause)
	}
	return httpstream.IsHTTPSProxyError(err)
}

// leave ends the use that connect began.
func (d *Dialer) leave(c *connection) {
	d.mu.Lock()
	c.users--
	unused := c.users == 0
	if unused && !c.retired && d.pods[c.pod] == c {
		c.idle = time.AfterFunc(d.IdleTime, func() { d.retire(c) })
	}
	d.mu.Unlock()
	if unused {
		d.closeIfUnused(c)
	}
}

// retire takes c out of use: open streams continue, new ones get another connection.
func (d *Dialer) retire(c *connection) {
	d.mu.Lock()
	c.retired = true
	if d.pods[c.pod] == c {
		delete(d.pods, c.pod)
	}
	if c.idle != nil {
		c.idle.Stop()
		c.idle = nil
	}
	d.mu.Unlock()
	d.closeIfUnused(c)
}

// closeIfUnused closes a connection that is retired and has no users.
func (d *Dialer) closeIfUnused(c *connection) {
	d.mu.Lock()
	over := c.retired && c.users == 0
	d.mu.Unlock()
	if !over {
		return
	}
	select {
	case <-c.ready:
		if c.http != nil {
			go c.http.Close() // it writes to the network, which may block
		}
	default: // run does it
	}
}

// Close closes the connections to all Pods, and with them their open streams. It waits at most closeTime.
func (d *Dialer) Close() {
	d.mu.Lock()
	d.closed = true
	all := slices.Collect(maps.Keys(d.all))
	d.mu.Unlock()
	closed := make(chan struct{}, len(all))
	for _, c := range all {
		d.retire(c)
		go func() {
			select {
			case <-c.ready:
				if c.http != nil {
					c.http.Close() // as in closeIfUnused
				}
			default:
			}
			closed <- struct{}{}
		}()
	}
	timeout := time.After(closeTime)
	for range all {
		select {
		case <-closed:
		case <-timeout:
			return
		}
	}
}

// closeTime is how long Close waits if the API server does not accept bytes.
const closeTime = time.Second
