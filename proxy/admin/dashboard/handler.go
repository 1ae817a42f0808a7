package dashboard

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"net/http"
	"path"
	"strings"
	"time"
)

//go:embed page
var files embed.FS

// policy restricts the page in the browser: it may load its own files and connect to its own server. It
// permits no script or style in the markup, no string that becomes markup (trusted-types), and no frame
// around it.
var policy = strings.Join([]string{
	"default-src 'self'",
	"base-uri 'none'",
	"form-action 'none'",
	"frame-ancestors 'none'",
	"object-src 'none'",
	"require-trusted-types-for 'script'",
	"trusted-types 'none'",
}, "; ")

// contentTypes replace the system's list of types: with nosniff, the page does not work with a wrong one.
var contentTypes = map[string]string{
	".html": "text/html; charset=utf-8",
	".css":  "text/css; charset=utf-8",
	".js":   "text/javascript; charset=utf-8",
	".svg":  "image/svg+xml",
}

// Handler serves the page of a node at / and its parts below /dashboard/. Anything else is 404.
func Handler() http.Handler { return serve("index.html") }

// ClusterHandler is Handler for the page of a cluster, which queries api.ClusterPrefix, and links to the
// pages of nodes at /nodes/NODE/.
func ClusterHandler() http.Handler { return serve("cluster.html") }

// serve serves a page and the parts of all pages.
func serve(page string) http.Handler {
	mux := http.NewServeMux()
	entries, err := files.ReadDir("page")
	if err != nil {
		panic(err) // it is in the binary
	}
	for _, e := range entries {
		switch {
		case e.Name() == page:
			mux.Handle("GET /{$}", serveFile(page))
		case path.Ext(e.Name()) != ".html":
			mux.Handle("GET /dashboard/"+e.Name(), serveFile(e.Name()))
		}
	}
	return mux
}

// serveFile serves one file. Browsers cache it, but revalidate it each time: another version of usher may
// answer at this address.
func serveFile(name string) http.Handler {
	content, err := files.ReadFile("page/" + name)
	if err != nil {
		panic(err)
	}
	sum := sha256.Sum256(content)
	etag := `"` + hex.EncodeToString(sum[:8]) + `"`
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		header := w.Header()
		header.Set("Content-Type", contentTypes[path.Ext(name)])
		header.Set("Content-Security-Policy", policy)
		header.Set("Cache-Control", "no-cache")
		header.Set("ETag", etag)
		http.ServeContent(w, r, name, time.Time{}, bytes.NewReader(content))
	})
}
