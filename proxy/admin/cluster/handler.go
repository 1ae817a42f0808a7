package cluster

import (
	"fmt"
	"maps"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/usherproxy/usher/proxy/admin"
	"github.com/usherproxy/usher/proxy/admin/api"
	"github.com/usherproxy/usher/proxy/admin/client"
	"github.com/usherproxy/usher/proxy/admin/dashboard"
)

// Handler serves the cluster's page and API, and the page of each node below /nodes/NODE/. The files of those
// pages are this program's; only their data comes from usher on the node. So a node cannot pass a script to a
// browser that sees all nodes.
func (v *View) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /{$}", dashboard.ClusterHandler())
	mux.Handle("GET /dashboard/", dashboard.Handler())
	answers := map[string]admin.Answerer{
		"/nodes":    func(r *http.Request) (any, error) { return v.Nodes(r.Context()) },
		"/services": func(r *http.Request) (any, error) { return v.services(r) },
		"/services/{namespace}/{name}": func(r *http.Request) (any, error) {
			return v.Service(r.Context(), r.PathValue("namespace"), r.PathValue("name"))
		},
	}
	for _, route := range api.ClusterRoutes {
		mux.Handle("GET "+api.ClusterPrefix+route.Path, admin.Reply(route, answers[route.Path]))
	}
	mux.HandleFunc("GET "+api.ClusterPrefix+"/openapi.json", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(api.ClusterOpenAPI) // the client may have disconnected
	})
	mux.HandleFunc("GET /api/", func(w http.ResponseWriter, r *http.Request) {
		admin.WriteError(w, http.StatusNotFound, "there is no "+r.URL.Path+"; "+api.ClusterPrefix+"/openapi.json lists all paths, and /nodes/NODE"+api.Prefix+"/ is the API of a node")
	})

	node := func(pattern string, h http.Handler) {
		method, path, _ := strings.Cut(pattern, " ")
		mux.HandleFunc(method+" /nodes/{node}"+path, func(w http.ResponseWriter, r *http.Request) {
			http.StripPrefix("/nodes/"+r.PathValue("node"), h).ServeHTTP(w, r)
		})
	}
	node("GET /{$}", dashboard.Handler())
	node("GET /dashboard/", dashboard.Handler())
	passed := http.HandlerFunc(v.pass)
	node("GET "+api.Prefix+"/", passed)
	node("GET "+api.DemoEndpointsPath, passed)
	node("POST "+api.DemoBreakPath, passed)
	node("POST "+api.DemoRepairPath, passed)
	return mux
}

// maxQuery is the maximum length of a search text for Services: longer than any name.
const maxQuery = 253

func (v *View) services(r *http.Request) (any, error) {
	q := strings.ToLower(strings.TrimSpace(r.URL.Query().Get("q")))
	if len(q) > maxQuery {
		return nil, &api.Error{Code: http.StatusBadRequest, Message: fmt.Sprintf("q: text too long: %d bytes, at most %d", len(q), maxQuery)}
	}
	return v.Services(r.Context(), q)
}

// The only headers that pass to usher on a node, and back.
var (
	requestHeaders  = []string{"Accept", "Content-Type", "Last-Event-Id", api.DemoHeader}
	responseHeaders = []string{"Content-Type", "Content-Length"}
)

const (
	maxBody       = 4 << 10          // of a request
	readerTimeout = 10 * time.Second // for a browser that does not read
)

// pass passes a request to usher on the node in its path.
func (v *View) pass(w http.ResponseWriter, r *http.Request) {
	nodes, err := v.nodes(r.Context())
	if err != nil {
		admin.WriteError(w, http.StatusBadGateway, err.Error())
		return
	}
	name := r.PathValue("node")
	i := slices.IndexFunc(nodes, func(n Node) bool { return n.Name == name })
	if i < 0 {
		admin.WriteError(w, http.StatusNotFound, fmt.Sprintf("no usher instance on a node %q", name))
		return
	}
	c := nodes[i].Client
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Time{}) // a stream of events does not end
	r.Body = http.MaxBytesReader(w, r.Body, maxBody)
	proxy := httputil.ReverseProxy{
		Transport: c.Transport(),
		Rewrite: func(p *httputil.ProxyRequest) {
			p.Out.URL = &url.URL{Scheme: "http", Host: c.Address(), Path: p.In.URL.Path, RawPath: p.In.URL.RawPath, RawQuery: p.In.URL.RawQuery}
			p.Out.Host = ""
			p.Out.Header = only(p.In.Header, requestHeaders)
			p.Out.Header.Set("User-Agent", "usher")
		},
		ModifyResponse: func(res *http.Response) error {
			if res.StatusCode == http.StatusSwitchingProtocols { // the node would take over the browser's connection
				return &client.NotUsherError{Address: c.Address(), Status: res.Status}
			}
			res.Header = only(res.Header, responseHeaders)
			switch kind, _, _ := strings.Cut(res.Header.Get("Content-Type"), ";"); kind {
			case "application/json", "text/event-stream":
			default:
				return &client.NotUsherError{Address: c.Address(), Status: res.Status}
			}
			res.Header.Set("Cache-Control", "no-store")
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			admin.WriteError(w, http.StatusBadGateway, fmt.Sprintf("usher on node %s does not respond: %s", name, client.Cause(err)))
		},
	}
	proxy.ServeHTTP(&patient{w, control, w.Header().Clone()}, r)
}

// only returns the named headers.
func only(h http.Header, names []string) http.Header {
	out := http.Header{}
	for _, name := range names {
		if values := h.Values(name); len(values) > 0 {
			out[http.CanonicalHeaderKey(name)] = values
		}
	}
	return out
}

// patient is a ResponseWriter that extends the write deadline with each write, since a stream of events has
// no end. A node's response cannot remove the headers that were set before.
type patient struct {
	http.ResponseWriter
	control *http.ResponseController
	headers http.Header
}

// WriteHeader implements http.ResponseWriter. It drops informational responses such as 103 Early Hints, after
// which ReverseProxy clears all headers.
func (p *patient) WriteHeader(code int) {
	if code >= http.StatusOK {
		maps.Copy(p.Header(), p.headers)
		p.ResponseWriter.WriteHeader(code)
	}
}

func (p *patient) Write(b []byte) (int, error) {
	_ = p.control.SetWriteDeadline(time.Now().Add(readerTimeout)) // otherwise the server's applies
	return p.ResponseWriter.Write(b)
}

// Unwrap is for http.ResponseController.
func (p *patient) Unwrap() http.ResponseWriter { return p.ResponseWriter }
