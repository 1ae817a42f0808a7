package top_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

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
	source := top.Renewed(clientOf(gone), func(context.Context) (*client.Client, error) {
		searches.Add(1)
		return clientOf(replacement), nil
	})
	g.Expect(source.Status(t.Context())).Error().To(HaveOccurred())
	g.Expect(searches.Load()).To(BeEquivalentTo(1))
	g.Expect(queries.Load()).To(BeZero())
	_, _ = source.Status(t.Context()) // the replacement's answer is empty
	g.Expect(queries.Load()).NotTo(BeZero())
	g.Expect(searches.Load()).To(BeEquivalentTo(1))
}
