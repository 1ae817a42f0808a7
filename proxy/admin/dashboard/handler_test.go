package dashboard_test

import (
	"net/http"
	"net/http/httptest"
	"regexp"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/usherproxy/usher/proxy/admin/dashboard"
)

func TestDashboard(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "dashboard")
}

func get(path string, header ...string) *httptest.ResponseRecorder {
	return getFrom(dashboard.Handler(), path, header...)
}

func getFrom(h http.Handler, path string, header ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodGet, path, nil)
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// references finds the files that markup, style sheets and modules name.
var references = regexp.MustCompile(`(?:src|href)="(dashboard/[^"]+)"|from '\./([^']+)'`)

var _ = Describe("the dashboard", func() {
	DescribeTable("serves every file that its files reference", func(handler func() http.Handler, first string) {
		seen, left := map[string]bool{}, []string{"/"}
		for len(left) > 0 {
			path := left[0]
			left = left[1:]
			if seen[path] {
				continue
			}
			seen[path] = true
			w := getFrom(handler(), path)
			Expect(w.Code).To(Equal(http.StatusOK), path)
			for _, m := range references.FindAllStringSubmatch(w.Body.String(), -1) {
				if m[1] != "" {
					left = append(left, "/"+m[1])
				} else {
					left = append(left, "/dashboard/"+m[2])
				}
			}
		}
		Expect(seen).To(HaveKey("/dashboard/" + first))
		Expect(seen).To(HaveKey("/dashboard/base.css"))
		Expect(seen).To(HaveKey("/dashboard/dom.js"))
		Expect(getFrom(handler(), "/").Body.String()).NotTo(MatchRegexp(`<style|style=|<script>|\son[a-z]+=|https?://`), "its markup has no inline script or style")
	},
		Entry("for a node", dashboard.Handler, "main.js"),
		Entry("for a cluster", dashboard.ClusterHandler, "cluster.js"),
	)

	It("sends a content type and a security policy with each file", func() {
		for path, kind := range map[string]string{"/": "text/html", "/dashboard/main.js": "text/javascript", "/dashboard/base.css": "text/css", "/dashboard/icon.svg": "image/svg+xml"} {
			header := get(path).Header()
			Expect(header.Get("Content-Type")).To(HavePrefix(kind), path)
			Expect(header.Get("Content-Security-Policy")).To(HavePrefix("default-src 'self'; "), path)
		}
	})

	It("answers 304 if a file has not changed", func() {
		first := get("/dashboard/main.js")
		again := get("/dashboard/main.js", "If-None-Match", first.Header().Get("ETag"))
		Expect(again.Code).To(Equal(http.StatusNotModified))
		Expect(again.Body.Len()).To(BeZero())
	})

	It("serves no other paths and rejects POST", func() {
		for _, path := range []string{"/index.html", "/dashboard/", "/dashboard/index.html", "/dashboard/../handler.go", "/favicon.ico"} {
			Expect(get(path).Code).NotTo(Equal(http.StatusOK), path)
		}
		w := httptest.NewRecorder()
		dashboard.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/", nil))
		Expect(w.Code).To(Equal(http.StatusMethodNotAllowed))
	})
})
