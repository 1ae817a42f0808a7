package admin_test

import (
	"net/http"
	"net/http/httptest"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/usherproxy/usher/proxy/admin"
)

var _ = Describe("the guard of the admin server", func() {
	ok := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })
	ask := func(listen, host string, headers ...string) *httptest.ResponseRecorder {
		r := httptest.NewRequest(http.MethodGet, "/api/v1/status", nil)
		r.Host = host
		for i := 0; i < len(headers); i += 2 {
			r.Header.Set(headers[i], headers[i+1])
		}
		w := httptest.NewRecorder()
		admin.Guard(listen, ok).ServeHTTP(w, r)
		return w
	}

	DescribeTable("checks the Host header",
		func(listen, host string, code int) { Expect(ask(listen, host).Code).To(Equal(code)) },
		Entry("an address", "127.0.0.1:10249", "127.0.0.1:10249", 200),
		Entry("any address, which cannot be rebound", "0.0.0.0:10249", "192.0.2.7:10249", 200),
		Entry("an IPv6 address", "[::1]:10249", "[::1]:10249", 200),
		Entry("an IPv6 address without port", "[::1]:80", "[::1]", 200),
		Entry("localhost", "127.0.0.1:10249", "LocalHost:10249", 200),
		Entry("the name that it listens on", "node-1.example:10249", "node-1.example:10249", 200),
		Entry("no name, as in HTTP/1.0", "127.0.0.1:10249", "", 200),
		Entry("a foreign name that resolves to this address", "127.0.0.1:10249", "evil.example:10249", 421),
		Entry("a foreign name that starts with localhost", "127.0.0.1:10249", "localhost.evil.example", 421),
		Entry("a foreign name that starts with an address", "127.0.0.1:10249", "127.0.0.1.evil.example", 421),
	)

	It("rejects requests by pages of other sites, except navigation", func() {
		Expect(ask("127.0.0.1:1", "127.0.0.1:1", "Sec-Fetch-Site", "cross-site").Code).To(Equal(403))
		Expect(ask("127.0.0.1:1", "127.0.0.1:1", "Sec-Fetch-Site", "same-site", "Sec-Fetch-Mode", "no-cors").Code).To(Equal(403))
		Expect(ask("127.0.0.1:1", "127.0.0.1:1", "Sec-Fetch-Site", "same-origin").Code).To(Equal(200))
		Expect(ask("127.0.0.1:1", "127.0.0.1:1", "Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate").Code).To(Equal(200))
		Expect(ask("127.0.0.1:1", "127.0.0.1:1", "Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document").Code).To(Equal(200))
		Expect(ask("127.0.0.1:1", "127.0.0.1:1", "Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "iframe").Code).To(Equal(403))
	})

	It("sets strict security headers and allows no other origin", func() {
		h := ask("127.0.0.1:1", "127.0.0.1:1", "Origin", "http://evil.example").Header()
		Expect(h.Get("Access-Control-Allow-Origin")).To(BeEmpty())
		Expect(h.Get("X-Content-Type-Options")).To(Equal("nosniff"))
		Expect(h.Get("X-Frame-Options")).To(Equal("DENY"))
		Expect(h.Get("Content-Security-Policy")).To(HavePrefix("default-src 'none'"))
	})
})
