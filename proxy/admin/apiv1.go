package admin

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/proxy"
	"github.com/usherproxy/usher/proxy/accesslog"
	"github.com/usherproxy/usher/proxy/admin/api"
)

// API serves /api/v1: see package api.
type API struct {
	proxy  *proxy.Proxy
	opts   APIOptions
	finder problemFinder
	starts starts

	instance    string
	started     time.Time
	subscribers subscribers
	unread      unread
}

// APIOptions hold facts about the program that an API reports.
type APIOptions struct {
	Version string
	Demo    bool
	Via     string // see api.Status
	Source  string // see api.Status
	// Conntrack is that of api.Status.
	Conntrack map[string]int
	// HealthChecks provide that of api.Status. Nil: there are none.
	HealthChecks *HealthChecks
	// Reports returns the problems that the source has found. Nil: none.
	Reports func() []config.Report
	// Policy is the node's: the defaults of Services.
	Policy config.Policy
	// Health is required.
	Health *Health
	// AccessLog is checked for problems. Nil: there is none.
	AccessLog *accesslog.Log
}

// NewAPI returns the API of p, which has just been started.
func NewAPI(p *proxy.Proxy, o APIOptions) *API {
	now := time.Now()
	return &API{proxy: p, opts: o, instance: strconv.FormatInt(now.UnixMilli(), 36), started: now, unread: unread{limit: maxUnread}}
}

// Answerer answers a request with a value that is encoded as JSON. An error that is no *api.Error is an
// internal error of usher.
type Answerer func(*http.Request) (any, error)

// register adds the routes of package api to mux.
func (a *API) register(mux *http.ServeMux) {
	answers := map[string]Answerer{
		"/status":                      a.status,
		"/ends":                        a.ends,
		"/services":                    a.services,
		"/services/{namespace}/{name}": a.service,
		"/connections":                 a.connections,
		"/connections/{id}":            a.connection,
		"/affinity":                    a.affinity,
		"/portals":                     a.portals,
		"/explain":                     a.explain,
	}
	turns, ofService := make(chan struct{}, maxTurns), make(chan struct{}, 1)
	for _, route := range api.Routes {
		pattern := "GET " + api.Prefix + route.Path
		if route.Stream {
			mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) { a.events(w, r, route) })
			continue
		}
		reply := Reply(route, answers[route.Path])
		switch route.Path {
		case "/portals": // PortalStatus answers one at a time, and may wait for another program
		case "/services/{namespace}/{name}", "/explain": // not in pages: one Service may have 250,000 endpoints
			reply = inTurn(ofService, reply)
		default:
			reply = inTurn(turns, reply)
		}
		mux.Handle(pattern, a.unread.limited(reply))
	}
	mux.HandleFunc("GET "+api.Prefix+"/openapi.json", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(api.OpenAPI) // the client may have disconnected
	})
	mux.HandleFunc("GET /api/", func(w http.ResponseWriter, r *http.Request) {
		WriteError(w, http.StatusNotFound, "there is no "+r.URL.Path+"; "+api.Prefix+"/openapi.json lists all paths")
	})
}

// An answer may visit all Services, endpoints or connections. At most maxTurns API requests, maxTurns requests for
// metrics and one about a single Service are answered at once; a further one waits for at most turnTimeout.
const (
	maxTurns    = 4
	turnTimeout = 4 * time.Second // the dashboard waits for 5 s
)

// inTurn returns next with a limit of concurrent calls: the capacity of turns, with one element for each call. A call no
// longer counts once next writes the body, so that clients that do not read keep no other client out.
func inTurn(turns chan struct{}, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case turns <- struct{}{}:
			done := sync.OnceFunc(func() { <-turns })
			defer done()
			next.ServeHTTP(&bodyWriter{ResponseWriter: w, write: func(body []byte) (int, error) {
				done()
				return w.Write(body)
			}}, r)
		case <-r.Context().Done():
		case <-time.After(turnTimeout):
			WriteError(w, http.StatusServiceUnavailable, fmt.Sprintf("too many concurrent requests (at most %d); try again", cap(turns)))
		}
	})
}

// Reply returns a handler that checks the query, and writes the value that answer returns.
func Reply(route api.Route, answer Answerer) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		err := checkQuery(route, r.URL.Query())
		var body any
		if err == nil {
			body, err = answer(r)
		}
		if err != nil {
			fail(w, r, err)
			return
		}
		WriteJSON(w, http.StatusOK, body)
	})
}

// fail answers with an error.
func fail(w http.ResponseWriter, r *http.Request, err error) {
	var known *api.Error
	switch {
	case errors.As(err, &known):
		WriteError(w, known.Code, known.Message)
	case errors.Is(err, context.Canceled) && r.Context().Err() != nil: // the client no longer waits for it
	default:
		WriteError(w, http.StatusInternalServerError, err.Error())
	}
}

// notFound returns the error for an object that does not exist.
func notFound(message string) error { return &api.Error{Code: http.StatusNotFound, Message: message} }

// milliseconds returns d in the API's unit.
func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// offset returns the page of items at the position in token, and the token of the next page.
func offset[T any](items []T, limit int, token string) ([]T, string, error) {
	at := 0
	if token != "" {
		n, err := strconv.Atoi(strings.TrimPrefix(token, "@"))
		if err != nil || n < 0 || !strings.HasPrefix(token, "@") {
			return nil, "", badQuery("continue", token, "the value of continue in a response")
		}
		at = min(n, len(items))
	}
	items = items[at:]
	if len(items) <= limit {
		return items, "", nil
	}
	return items[:limit], "@" + strconv.Itoa(at+limit), nil
}
