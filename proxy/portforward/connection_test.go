package portforward

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"k8s.io/client-go/rest"
	"k8s.io/streaming/pkg/httpstream"
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
