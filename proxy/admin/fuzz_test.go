package admin_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/portal/none"
	"github.com/usherproxy/usher/proxy"
	"github.com/usherproxy/usher/proxy/admin"
	"github.com/usherproxy/usher/proxy/stream"
	"github.com/usherproxy/usher/proxy/trace"
)

// FuzzQuery: every query gets a response or a client error, never a server error.
func FuzzQuery(f *testing.F) {
	pt, err := none.Mode.New(context.Background(), portal.Options{})
	if err != nil {
		f.Fatal(err)
	}
	log := logrus.New()
	log.SetOutput(io.Discard)
	o := proxy.Defaults()
	o.Portal, o.Log, o.Trace, o.SCTP = pt, log, trace.NewLog(100), stream.SCTPOff
	p := proxy.New(o)
	h := &admin.Health{Sync: p.SyncStatus, Timeout: time.Minute}
	a := admin.NewAPI(p, admin.APIOptions{Version: "v1", Health: h})
	handler := admin.Guard("127.0.0.1:0", admin.Handler(a, admin.NewMetrics(a, nil).Registry, nil))

	f.Add("/api/v1/connections", "client=10.0.0.1&endpoint=10.1.0.1:80&state=open&limit=5", "127.0.0.1:10249")
	f.Add("/api/v1/services", "service=default/web:http&sort=-rate", "localhost")
	f.Add("/api/v1/explain", "vip=10.96.0.10:80&protocol=TCP&client=10.244.0.1", "[::1]:1")
	f.Add("/api/v1/affinity", "client=10.0.0.0/8&continue=x", "evil.example")
	f.Add("/api/v1/changes", "since=9999999999999999999", "")
	f.Add("/configz", "", "127.0.0.1")
	f.Fuzz(func(t *testing.T, path, query, host string) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond) // some never end
		defer cancel()
		r := (&http.Request{Method: http.MethodGet, URL: &url.URL{Path: path, RawQuery: query}, Host: host, RemoteAddr: "127.0.0.1:1", Header: http.Header{}}).WithContext(ctx)
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		if w.Code >= 500 && w.Code != http.StatusServiceUnavailable { // healthz: no Service is served
			t.Errorf("%s?%s: %d %s", path, query, w.Code, w.Body)
		}
	})
}
