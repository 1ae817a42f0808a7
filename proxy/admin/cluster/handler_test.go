package cluster

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/usherproxy/usher/proxy/admin"
	"github.com/usherproxy/usher/proxy/admin/client"
)

func TestNodeResponseCannotRemoveSecurityHeaders(t *testing.T) {
	answers := map[string]struct {
		node http.HandlerFunc
		code int
	}{
		"immediately": {func(http.ResponseWriter, *http.Request) {}, http.StatusOK},
		"after early hints": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Link", "</evil.js>; rel=preload")
			w.WriteHeader(http.StatusEarlyHints)
		}, http.StatusOK},
		"after early hints, with another content type": {func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusEarlyHints)
			w.Header().Set("Content-Type", "text/html")
		}, http.StatusBadGateway},
		"with a protocol switch": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Upgrade", "x")
			w.Header().Set("Connection", "Upgrade")
			w.WriteHeader(http.StatusSwitchingProtocols)
		}, http.StatusBadGateway},
	}
	for name, a := range answers {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			node := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				a.node(w, r)
			}))
			defer node.Close()
			c, err := client.New(node.Listener.Addr().String())
			g.Expect(err).NotTo(HaveOccurred())
			defer c.Close()
			v := NewView(func(context.Context) ([]Node, error) { return []Node{{"a", c}}, nil })
			defer v.Close()
			page := httptest.NewServer(admin.Guard("127.0.0.1:0", v.Handler()))
			defer page.Close()
			res, err := http.Get(page.URL + "/nodes/a/api/v1/status")
			g.Expect(err).NotTo(HaveOccurred())
			defer res.Body.Close()
			g.Expect(res.StatusCode).To(Equal(a.code))
			g.Expect(res.Header.Get("Content-Security-Policy")).To(Equal("default-src 'none'; frame-ancestors 'none'"))
			g.Expect(res.Header.Get("X-Frame-Options")).To(Equal("DENY"))
			g.Expect(res.Header).NotTo(HaveKey("Link"))
		})
	}
}
