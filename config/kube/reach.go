package kube

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
)

// Reach reports whether the API server sends the objects that usher needs: whether each list and watch of Services,
// EndpointSlices and Nodes succeeds. The zero value has no result yet.
type Reach struct {
	mu      sync.Mutex
	now     ReachStatus
	failing map[string]failure // by resource
	refused map[string]int     // consecutive refused watches, by path
}

// ReachStatus is the status that a Reach reports.
type ReachStatus struct {
	Connected bool      // no list and no watch fails
	Since     time.Time // when Connected last changed; zero if there is no result yet
	Reason    Reason    // why one fails; "" while Connected
	Err       error     // the details, with the verb and the resource
	// Skew is how far the API server's clock is ahead of this node's according to its last answer, accurate to some
	// seconds.
	Skew time.Duration
}

// failure is why the last list or watch of a resource failed.
type failure struct {
	watch  bool // it was a watch
	reason Reason
	err    error
}

// Reason is why usher cannot list or watch, in one word.
type Reason string

const (
	Unreachable      Reason = "unreachable"       // no connection, or no answer
	NameNotFound     Reason = "name-not-found"    // the lookup of the server's name fails
	TLSFailed        Reason = "tls"               // one side rejects the other's certificate
	NoCredentials    Reason = "no-credentials"    // an exec plugin fails, or a token file cannot be read
	Unauthorized     Reason = "unauthorized"      // 401: the credentials are not, or no longer, valid
	Forbidden        Reason = "forbidden"         // 403: a role lacks a verb or a resource
	TooManyRequests  Reason = "too-many-requests" // 429
	ServerError      Reason = "server-error"      // 5xx, or 410 for each watch
	UnexpectedAnswer Reason = "unexpected-answer" // not from an API server
)

// Denied reports whether retries fail until an operator changes the credentials or their roles. One failure does not
// prove that: the client requests new credentials for each attempt, or after an Unauthorized.
func (r Reason) Denied() bool { return r == NoCredentials || r == Unauthorized || r == Forbidden }

// Remedy returns the recommended action.
func (r Reason) Remedy() string {
	switch r {
	case NameNotFound:
		return "check the server's name in the kubeconfig, and this node's DNS"
	case TLSFailed:
		return "check the server's name and the CA in the kubeconfig, and the dates of both certificates"
	case NoCredentials:
		return "run the kubeconfig's exec plugin by hand, or check that usher can read its token file"
	case Unauthorized:
		return "renew the token or the client certificate"
	case Forbidden:
		return "give usher's user a role with list and watch on services, endpointslices and nodes"
	case TooManyRequests, ServerError:
		return "check the API server's log and load"
	case UnexpectedAnswer:
		return "check the server's URL; a proxy or another program answers there"
	}
	return "check that the API server runs and that this node can reach it"
}

// Status returns the current status.
func (r *Reach) Status() ReachStatus {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.now
}

// watched are the resources that usher needs. Of those that fail, Status reports the first one.
var watched = []string{"services", "endpointslices", "nodes"}

// note records the result of a list or watch of a resource. An established watch clears any failure of the resource; a
// list does not prove that watches are allowed.
func (r *Reach) note(resource string, watch bool, reason Reason, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case err != nil:
		if r.failing == nil {
			r.failing = map[string]failure{}
		}
		r.failing[resource] = failure{watch, reason, err}
	case watch || !r.failing[resource].watch:
		delete(r.failing, resource)
	}
	now := ReachStatus{Connected: len(r.failing) == 0, Since: r.now.Since, Skew: r.now.Skew}
	for _, name := range watched {
		if f, fails := r.failing[name]; fails && now.Err == nil {
			now.Reason, now.Err = f.reason, f.err
		}
	}
	if now.Connected != r.now.Connected || now.Since.IsZero() {
		now.Since = time.Now()
	}
	r.now = now
}

// date records the time in an answer (RFC 9110, 6.6.1), which has whole seconds.
func (r *Reach) date(text string) {
	if at, err := http.ParseTime(text); err == nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.now.Skew = time.Until(at)
	}
}

// wrap returns a transport that records the results of requests. It must be the outermost transport, to record failures
// to obtain credentials, too. A broken watch itself is not recorded: the next request shows the failure.
func (r *Reach) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(req *http.Request) (*http.Response, error) {
		res, err := next.RoundTrip(req)
		if err == nil {
			r.date(res.Header.Get("Date"))
		}
		watch := req.URL.Query().Has("watch")
		resource := path.Base(req.URL.Path)
		if err == nil && res.StatusCode == http.StatusOK && isWatched(req, resource) && !isKubernetes(req, res) {
			// client-go accepts any JSON object as an empty list.
			res.Body.Close()
			res, err = nil, notKubernetesError{req.URL.Host, res.Header.Get("Content-Type")}
		}
		if isWatched(req, resource) && !r.isExpected(req, res, err) {
			reason, err := failureOf(res, err)
			if err != nil {
				err = fmt.Errorf("%s %s: %w", map[bool]string{false: "list", true: "watch"}[watch], resource, err)
			}
			r.note(resource, watch, reason, err)
		}
		if err == nil && watch {
			r.pause(req, res.StatusCode)
		}
		return res, err
	})
}

// isWatched reports whether a request lists or watches a resource that usher needs.
func isWatched(req *http.Request, resource string) bool {
	return req.Method == http.MethodGet && slices.Contains(watched, resource)
}

// isExpected reports whether an answer says nothing about the API server's state:
//
//   - usher has canceled the request;
//   - a watch begins too far back, which may happen a few times in a row;
//   - the API server is too old for a watch that begins with a list, or for the field selector;
//     usher then sends another request.
func (r *Reach) isExpected(req *http.Request, res *http.Response, err error) bool {
	if err != nil {
		return req.Context().Err() != nil
	}
	switch res.StatusCode {
	case http.StatusGone:
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.refused[req.URL.Path] < 3
	case http.StatusBadRequest, http.StatusUnprocessableEntity:
		query := req.URL.Query()
		return query.Has("sendInitialEvents") || query.Get("fieldSelector") == notHeadless
	}
	return false
}

// notKubernetesError is why a server's answer 200 is rejected.
type notKubernetesError struct{ host, contentType string }

func (e notKubernetesError) Error() string {
	return fmt.Sprintf("the response from %s is not a Kubernetes API list (Content-Type: %q)", e.host, e.contentType)
}

// isKubernetes reports whether the answer 200 to a list or watch begins like an API server's: with protobuf, a list or
// an event. A watch without initial events may stay silent for long, so its body is not read: the answer must not be
// text or have a Content-Length. isKubernetes restores the part of the body that it reads.
func isKubernetes(req *http.Request, res *http.Response) bool {
	kind, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type"))
	watch, query := false, req.URL.Query()
	switch watch = query.Has("watch"); {
	case kind == runtime.ContentTypeProtobuf:
		return true
	case strings.HasPrefix(kind, "text/"):
		return false
	case watch && !query.Has("sendInitialEvents"):
		return res.ContentLength <= 0
	}
	const enough = 64 << 10
	var start bytes.Buffer
	d := json.NewDecoder(io.TeeReader(io.LimitReader(res.Body, enough), &start))
	defer func() {
		res.Body = struct {
			io.Reader
			io.Closer
		}{io.MultiReader(&start, res.Body), res.Body}
	}()
	if first, err := d.Token(); err != nil || first != json.Delim('{') {
		return false
	}
	for d.More() {
		key, err := d.Token()
		var value json.RawMessage
		switch {
		case err != nil:
			return false
		case watch && key == "type", !watch && key == "items":
			return true
		case d.Decode(&value) != nil:
			return false
		case !watch && key == "kind":
			return bytes.HasSuffix(value, []byte(`List"`))
		}
	}
	return false
}

// failureOf returns why usher cannot list or watch with this answer, or nil if it can.
func failureOf(res *http.Response, err error) (Reason, error) {
	if err != nil {
		return reasonOf(err), err
	}
	var reason Reason
	switch code := res.StatusCode; {
	case code == http.StatusOK:
		return "", nil
	case code == http.StatusUnauthorized:
		reason = Unauthorized
	case code == http.StatusForbidden:
		reason = Forbidden
	case code == http.StatusTooManyRequests:
		reason = TooManyRequests
	case code >= http.StatusInternalServerError, code == http.StatusGone:
		reason = ServerError
	default:
		reason = UnexpectedAnswer
	}
	return reason, fmt.Errorf("the API server returned %d %s", res.StatusCode, http.StatusText(res.StatusCode))
}

// reasonOf returns why there is no answer. client-go has no error types for failures before a request is sent, nor
// crypto/tls for alerts of the other side.
func reasonOf(err error) Reason {
	var name *net.DNSError
	text := err.Error()
	switch {
	case errors.As(err, &notKubernetesError{}):
		return UnexpectedAnswer
	case strings.HasPrefix(text, "getting credentials: "), strings.HasPrefix(text, "failed to read token file"):
		return NoCredentials
	case errors.As(err, &name):
		return NameNotFound
	case strings.Contains(text, "tls: "), strings.Contains(text, "x509: "):
		return TLSFailed
	}
	return Unreachable
}

// maxPause limits how long an answer is delayed.
const maxPause = 30 * time.Second

// pause delays the answer to a refused watch, increasingly with each; the first is not delayed. client-go retries at
// once after 410 Gone. If the API server answered each watch so, there would be hundreds of requests a second.
func (r *Reach) pause(req *http.Request, status int) {
	r.mu.Lock()
	if status < http.StatusBadRequest {
		delete(r.refused, req.URL.Path)
		r.mu.Unlock()
		return
	}
	if r.refused == nil {
		r.refused = map[string]int{}
	}
	before := r.refused[req.URL.Path]
	r.refused[req.URL.Path]++
	r.mu.Unlock()
	if before == 0 {
		return
	}
	select {
	case <-time.After(min(100*time.Millisecond<<min(before, 10), maxPause)):
	case <-req.Context().Done():
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }
