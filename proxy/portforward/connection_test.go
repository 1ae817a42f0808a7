package portforward

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
)

func TestAnAttemptToConnectHasADeadline(t *testing.T) {
	d, err := New(&rest.Config{Host: "https://192.0.2.1"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	limited := false
	_, _ = d.config.WrapTransport(roundTripper(func(r *http.Request) (*http.Response, error) {
		_, limited = r.Context().Deadline()
		return nil, errLost
	})).RoundTrip(httptest.NewRequest(http.MethodGet, "/", nil))
	if !limited {
		t.Error("it has none")
	}
}

// bySPDY requests a connection from an API server that does not support WebSocket and handles SPDY with post. Each
// request may take limit.
func bySPDY(t *testing.T, limit time.Duration, post http.HandlerFunc) (httpstream.Connection, error) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			http.Error(w, "no", http.StatusBadRequest)
			return
		}
		post(w, r)
	}))
	t.Cleanup(s.Close)
	t.Cleanup(s.CloseClientConnections)
	d, err := New(&rest.Config{Host: s.URL}, nil)
	if err != nil {
		t.Fatal(err)
	}
	d.config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			ctx, cancel := context.WithTimeout(r.Context(), limit)
			defer cancel()
			return next.RoundTrip(r.WithContext(ctx))
		})
	})
	return d.upgrade(pod{"default", "web"})
}

func TestSPDYWithoutAnAnswerEnds(t *testing.T) {
	closed := make(chan struct{})
	_, err := bySPDY(t, 3*time.Second, func(_ http.ResponseWriter, r *http.Request) {
		<-r.Context().Done() // until the client closes the connection
		close(closed)
	})
	if err == nil || !strings.Contains(err.Error(), "i/o timeout") {
		t.Fatal(err)
	}
	select {
	case <-closed:
	case <-time.After(time.Minute):
		t.Error("the connection is still open")
	}
}

func TestSPDYReturnsTheAPIServersError(t *testing.T) {
	_, err := bySPDY(t, time.Minute, func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "no such Pod", http.StatusNotFound)
	})
	if err == nil || !strings.Contains(err.Error(), "no such Pod") {
		t.Error(err)
	}
}

func TestASPDYConnectionOutlivesTheTimeLimit(t *testing.T) {
	const limit = time.Second
	conn, err := bySPDY(t, limit, func(w http.ResponseWriter, r *http.Request) {
		if _, err := httpstream.Handshake(r, w, []string{portforward.PortForwardProtocolV1Name}); err != nil {
			t.Error(err)
		}
		c := spdy.NewResponseUpgrader().UpgradeResponse(w, r, func(httpstream.Stream, <-chan struct{}) error { return nil })
		<-c.CloseChan()
	})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	time.Sleep(limit)
	if _, err := conn.CreateStream(http.Header{}); err != nil {
		t.Error(err)
	}
}

// closable is a connection that records Close.
type closable struct {
	httpstream.Connection
	closed chan bool
}

func (c closable) Close() error { c.closed <- true; return nil }

func TestCloseEndsStreamsOfARetiredConnection(t *testing.T) {
	http := closable{closed: make(chan bool, 1)}
	c := &connection{ready: make(chan struct{}), http: http, users: 1}
	close(c.ready)
	d := &Dialer{all: map[*connection]bool{c: true}}
	d.retire(c)
	d.Close()
	if len(http.closed) == 0 {
		t.Error("the connection is open")
	}
}
