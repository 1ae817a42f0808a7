package dashboard

import (
	"bufio"
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

// hostile is a name that would do harm if a page interpreted it as markup.
const hostile = `<img src=x onerror=document.title=1>`

// hostileTwin returns the URL of a server that responds as u does, but with hostile in place of a name. Neither a
// cluster nor usher accepts such a name.
func hostileTwin(u *usher, name string) string {
	GinkgoHelper()
	target, err := url.Parse(u.url)
	Expect(err).NotTo(HaveOccurred())
	twin := httptest.NewServer(&httputil.ReverseProxy{
		FlushInterval: -1, // forwards events at once
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			r.Out.URL.Path, r.Out.URL.RawPath = strings.ReplaceAll(r.In.URL.Path, hostile, name), ""
			query := r.In.URL.Query()
			for _, values := range query {
				for i := range values {
					values[i] = strings.ReplaceAll(values[i], hostile, name)
				}
			}
			r.Out.URL.RawQuery = query.Encode()
		},
		ModifyResponse: func(res *http.Response) error {
			if strings.HasPrefix(res.Request.URL.Path, "/api/") {
				res.Header.Del("Content-Length")
				res.ContentLength = -1
				res.Body = &renamed{lines: bufio.NewReader(res.Body), Closer: res.Body, name: []byte(name)}
			}
			return nil
		},
	})
	DeferCleanup(func() {
		twin.CloseClientConnections()
		twin.Close()
	})
	return twin.URL + "/"
}

// renamed reads line by line and replaces name by hostile.
type renamed struct {
	lines *bufio.Reader
	io.Closer
	name []byte
	rest []byte
}

func (r *renamed) Read(p []byte) (int, error) {
	if len(r.rest) == 0 {
		line, err := r.lines.ReadBytes('\n')
		if len(line) == 0 {
			return 0, err
		}
		r.rest = bytes.ReplaceAll(line, r.name, []byte(hostile))
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

var _ = Describe("names that look like markup", func() {
	It("are shown literally on every page", func() {
		u := run(service("hostile", "10.96.0.10", refusing(), answering()))
		twin := hostileTwin(u, "hostile")
		p := open(twin)
		eventually(func() string { return p.text(".services tbody th") }).Should(Equal("default/" + hostile))
		for range 3 {
			Expect(u.connect("hostile")).To(Equal("hello\n"))
		}
		eventually(func() []string { return p.texts(".chip") }).Should(ContainElement(ContainSubstring(hostile + "-1")))
		eventually(func() []string { return p.texts(".box") }).Should(ContainElement(HavePrefix(hostile)))

		p.click(".services tbody th a")
		eventually(func() string { return p.text("h1") }).Should(HavePrefix(hostile))
		eventually(func() []string { return p.texts(".endpoints .who b") }).Should(ContainElement(hostile + "-0"))
		eventually(func() []string { return p.texts(".changes span") }).Should(ContainElement(ContainSubstring(hostile)))

		p.click(".connections tbody th a")
		eventually(func() []string { return p.texts(".waterfall .who small") }).Should(ContainElement("default/" + hostile + "-1"))
		Expect(p.text(".crumbs")).To(ContainSubstring(hostile))

		Expect(p.count("main img")).To(BeZero())
		Expect(eval[string](p, "document.title")).To(HavePrefix("Connection"))

		p = open(dashboardOf(map[string]string{"a": twin}))
		eventually(func() string { return p.text(".over-nodes tbody th") }).Should(Equal("default/" + hostile))
		p.click(".over-nodes tbody th a")
		eventually(func() []string { return p.texts(".matrix tbody th") }).Should(ContainElement(ContainSubstring(hostile[len(hostile)-7:] + "-1")))
		eventually(func() string { return p.text(".findings") }).Should(ContainSubstring("the Pod " + hostile + "-0"))
		Expect(p.count("main img")).To(BeZero())
	})
})

var _ = Describe("the content security policy", func() {
	It("allows only the page's own files, and no markup from strings", func() {
		u := run(service("web", "10.96.0.10"))
		policy := strings.Split(header(u.url, "Content-Security-Policy"), "; ")
		Expect(policy).To(ContainElements("default-src 'self'", "require-trusted-types-for 'script'", "trusted-types 'none'", "frame-ancestors 'none'", "base-uri 'none'"))
		Expect(policy).NotTo(ContainElement(ContainSubstring("unsafe")))
		Expect(header(u.url+"dashboard/main.js", "X-Content-Type-Options")).To(Equal("nosniff"))

		p := open(u.url)
		Expect(eval[string](p, `(() => { try { document.body.innerHTML = "x"; return "done" } catch (err) { return err.name } })()`)).To(Equal("TypeError"))
		p.downtime = true // the browser logs the refusal to the console
	})
})
