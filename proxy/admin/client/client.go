package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/usherproxy/usher/proxy/admin/api"
)

// answerTimeout is the default of Client.Timeout.
const answerTimeout = 30 * time.Second

// Limits of answers, in bytes, and of lists, in pages of 1,000 items: far more than usher returns. Another
// program, or a faulty usher, might send an endless answer.
const (
	maxAnswer = 64 << 20  // of one answer
	maxList   = 256 << 20 // of all pages of a list
	maxPages  = 2000
)

// leastObject is the minimum average size of the objects in an answer, in bytes; those of usher are larger. An object
// of two bytes would occupy hundreds when decoded. slackForObjects is added to the answer's size, so that the limit
// does not affect small answers.
const (
	leastObject     = 32
	slackForObjects = 64 << 10
)

// slowAfter is how long a request waits before Client.Slow is called.
const slowAfter = time.Second

// Client queries one usher process. It is safe for concurrent use.
type Client struct {
	// Slow, unless nil, is called when a request has waited for a second. reason is a sentence that names the
	// cause of the wait; most is the longest possible wait from the start of the request. Slow may be called
	// from any goroutine. Set it before the first request.
	Slow func(reason string, most time.Duration)
	// Timeout is the maximum time for an answer; the stream of events has no such limit. Set it before the
	// first request.
	Timeout time.Duration

	address string
	http    http.Client
}

// New returns a Client for the usher process whose --admin-address is address, "host:port". It sends nothing
// yet. An address without host is loopback.
func New(address string) (*Client, error) {
	dialer := &net.Dialer{Timeout: 5 * time.Second}
	return NewWithDial(address, func(ctx context.Context, at string) (net.Conn, error) {
		return dialer.DialContext(ctx, "tcp", at)
	})
}

// NewWithDial is New for an usher process on another host: dial connects to its address, as seen from that
// host.
func NewWithDial(address string, dial func(ctx context.Context, address string) (net.Conn, error)) (*Client, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, fmt.Errorf("%q is not host:port, such as 127.0.0.1:10249", address)
	}
	if _, err := net.LookupPort("tcp", port); err != nil || port == "" {
		return nil, fmt.Errorf("%q: %q is not a port from 1 to 65535", address, port)
	}
	if host == "" {
		host = "127.0.0.1"
	}
	c := &Client{Timeout: answerTimeout, address: net.JoinHostPort(host, port)}
	// Ignore the environment's proxy: usher is on this node, or dial reaches it.
	c.http.Transport = &http.Transport{
		DialContext:         func(ctx context.Context, _, at string) (net.Conn, error) { return dial(ctx, at) },
		DisableCompression:  true, // maxAnswer limits decompressed bytes, but a few compressed ones can become many
		MaxIdleConnsPerHost: 4,
		IdleConnTimeout:     30 * time.Second,
	}
	// usher never redirects.
	c.http.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return c, nil
}

// Address returns usher's address, "host:port".
func (c *Client) Address() string { return c.address }

// Transport sends requests to usher unchanged, for callers that pass on others' requests: the host of their
// URL is Address.
func (c *Client) Transport() http.RoundTripper { return c.http.Transport }

// Close closes idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// get asks for a path under api.Prefix and decodes the answer into out.
func (c *Client) get(ctx context.Context, path string, query url.Values, out any) error {
	return c.ask(ctx, http.MethodGet, api.Prefix+path, query, nil, out)
}

// ask sends one request, with in as its body unless in is nil, and decodes the answer into out.
func (c *Client) ask(ctx context.Context, method, path string, query url.Values, in, out any) error {
	_, err := c.read(ctx, method, path, query, in, out, maxAnswer)
	return err
}

// read is ask with a limit in bytes for the answer. It returns the number of bytes read.
func (c *Client) read(ctx context.Context, method, path string, query url.Values, in, out any, most int64) (int64, error) {
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	res, err := c.send(ctx, method, path, query, nil, in)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(io.LimitReader(res.Body, most+1))
	switch {
	case err != nil:
	case int64(len(text)) > most:
		err = fmt.Errorf("more than %d bytes", most)
	case (bytes.Count(text, []byte("{"))+bytes.Count(text, []byte("null")))*leastObject > len(text)+slackForObjects:
		err = fmt.Errorf("its objects have fewer than %d bytes on average", leastObject)
	default:
		err = json.Unmarshal(text, out)
	}
	if err != nil {
		return 0, c.failed(ctx, began, fmt.Errorf("reading the response to %s: %w", path, err))
	}
	return int64(len(text)), nil
}

// Raw returns the body and the status of the answer for a path of the server, which may have a query. It
// truncates the body to most bytes, and accepts any status.
func (c *Client) Raw(ctx context.Context, path string, most int64) (body []byte, status int, err error) {
	path, query, _ := strings.Cut(path, "?")
	values, err := url.ParseQuery(query)
	if err != nil {
		return nil, 0, err
	}
	res, err := c.sendAny(ctx, http.MethodGet, path, values, nil, nil)
	if err != nil {
		return nil, 0, err
	}
	defer res.Body.Close()
	body, err = io.ReadAll(io.LimitReader(res.Body, most))
	return body, res.StatusCode, err
}

// send returns an answer with status 200; the caller closes its body.
func (c *Client) send(ctx context.Context, method, path string, query url.Values, header http.Header, in any) (*http.Response, error) {
	res, err := c.sendAny(ctx, method, path, query, header, in)
	if err == nil && res.StatusCode != http.StatusOK {
		defer res.Body.Close()
		return nil, c.refused(res)
	}
	return res, err
}

// sendAny is send for any status.
func (c *Client) sendAny(ctx context.Context, method, path string, query url.Values, header http.Header, in any) (*http.Response, error) {
	var body io.Reader
	if in != nil {
		text, err := json.Marshal(in)
		if err != nil {
			return nil, err
		}
		body = bytes.NewReader(text)
	}
	plain, err := url.PathUnescape(path)
	if err != nil {
		return nil, err
	}
	to := url.URL{Scheme: "http", Host: c.address, Path: plain, RawPath: path, RawQuery: query.Encode()}
	req, err := http.NewRequestWithContext(ctx, method, to.String(), body)
	if err != nil {
		return nil, err
	}
	req.Header.Set("User-Agent", "usher")
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set(api.DemoHeader, "1")
	}
	for name, values := range header {
		req.Header[name] = values
	}
	var connected atomic.Bool
	req = req.WithContext(httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { connected.Store(true) }}))
	began := time.Now()
	if c.Slow != nil {
		most := c.Timeout
		if deadline, is := ctx.Deadline(); is {
			most = deadline.Sub(began).Round(100 * time.Millisecond)
		}
		defer time.AfterFunc(slowAfter, func() {
			if connected.Load() {
				c.Slow("usher at "+c.address+" accepted the connection but has not responded", most)
			} else {
				c.Slow("the connection to "+c.address+" is not established yet", most)
			}
		}).Stop()
	}
	res, err := c.http.Do(req)
	if err != nil {
		if u, ok := errors.AsType[*url.Error](err); ok {
			err = u.Err // without method and URL, which the user did not type
		}
		err = c.failed(ctx, began, err)
		if unreachable, ok := errors.AsType[*UnreachableError](err); ok {
			unreachable.Silent = connected.Load() && ctx.Err() != nil
		}
		return nil, err
	}
	return res, nil
}

// failed returns the error for a request, sent at began, that got no answer.
func (c *Client) failed(ctx context.Context, began time.Time, err error) error {
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		deadline, _ := ctx.Deadline() // the caller's, if that came first
		err = fmt.Errorf("no response within %s", max(deadline.Sub(began), 0).Round(10*time.Millisecond))
	case ctx.Err() != nil:
		return ctx.Err()
	}
	return &UnreachableError{Address: c.address, Err: err}
}

// refused returns the error of an answer that is not 200.
func (c *Client) refused(res *http.Response) error {
	var e api.Error
	kind, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type"))
	if kind == "application/json" &&
		json.NewDecoder(io.LimitReader(res.Body, 64<<10)).Decode(&e) == nil && e.Message != "" {
		e.Message = api.Clean(e.Message)
		return &e
	}
	return &NotUsherError{Address: c.address, Status: api.Clean(res.Status)}
}
