package top_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/usherproxy/usher/cmd/kubectl-usher/top"
	"github.com/usherproxy/usher/proxy/admin/client"
)

func TestReplacedInstanceIsFoundAgain(t *testing.T) {
	g := NewWithT(t)
	var queries, searches atomic.Int32
	replacement := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { queries.Add(1) }))
	defer replacement.Close()
	gone := httptest.NewServer(nil)
	gone.Close()
	clientOf := func(s *httptest.Server) *client.Client {
		c, err := client.New(s.Listener.Addr().String())
		g.Expect(err).NotTo(HaveOccurred())
		t.Cleanup(c.Close)
		return c
	}
	p := &person{top.New(t.Context(), clientOf(gone), top.Options{Interval: time.Hour, Renew: func(context.Context) (*client.Client, error) {
		searches.Add(1)
		return clientOf(replacement), nil
	}})}
	p.asks() // before the first answer, there is nothing to replace
	g.Expect(searches.Load()).To(BeZero())
	g.Expect(queries.Load()).To(BeZero())
	for range 2 {
		p.asks()
		g.Expect(queries.Load()).NotTo(BeZero())
		g.Expect(searches.Load()).To(BeEquivalentTo(1))
		queries.Store(0)
	}
}
