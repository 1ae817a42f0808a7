package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/usherproxy/usher/proxy"
	"github.com/usherproxy/usher/proxy/trace"
)

// RequestTimeout is the timeout of one request of the demo: long enough for all attempts and
// a slow server.
const RequestTimeout = 10 * time.Second

// target is where a client reaches one of the demo's Services, or one of its servers.
type target struct {
	service
	// at is its cluster IP, or usher's listening address if no portal redirects the cluster IP;
	// for a server its own address.
	at netip.AddrPort
	// unserved is the reason why it cannot be reached; "" if it can.
	unserved string
}

// targetsOf returns where p serves the demo's Services.
func targetsOf(p *proxy.Proxy) (list []target) {
	served := map[string]proxy.PortView{}
	for _, status := range p.Status() {
		served[status.Port.ID.Service] = status
	}
	for _, s := range services {
		t := target{service: s}
		switch status, ok := served[s.name]; {
		case !ok:
			t.unserved = "it no longer exists"
		case status.Problem != nil:
			t.unserved = status.Problem.Err.Error()
		case p.Portal.Traits().CarriesVIPs():
			t.at = status.Port.VIPs[0].AddrPort()
		case len(status.Listeners) > 0:
			t.at = status.Listeners[0]
		default:
			t.unserved = "not reachable without a portal"
		}
		list = append(list, t)
	}
	return list
}

// command returns the shell command that sends a request to it.
func (t target) command() string {
	switch {
	case t.unserved != "":
		return "(not served: " + t.unserved + ")"
	case t.protocol == corev1.ProtocolUDP:
		return fmt.Sprintf("echo hello | nc -u -w1 %s %d", t.at.Addr(), t.at.Port())
	}
	return "curl " + t.url()
}

func (t target) url() string {
	if t.at.Port() == 80 {
		return fmt.Sprintf("http://%s/", t.at.Addr())
	}
	return fmt.Sprintf("http://%s/", t.at)
}

// ask makes one request and returns the answer, a line.
func (t target) ask(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, RequestTimeout)
	defer cancel()
	if t.protocol == corev1.ProtocolUDP {
		return askUDP(ctx, t.at.String())
	}
	return askHTTP(ctx, &ordinary, t.url())
}

// ordinary makes a connection for each request; halfClosing also closes its sending direction
// as soon as the request is sent.
var (
	ordinary    = http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	halfClosing = http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: dialHalfClosing}}
)

// halfCloser closes its sending direction after the first write, which is the whole request.
type halfCloser struct{ *net.TCPConn }

func (c halfCloser) Write(b []byte) (int, error) {
	n, err := c.TCPConn.Write(b)
	if err == nil {
		err = c.CloseWrite()
	}
	return n, err
}

func dialHalfClosing(ctx context.Context, network, address string) (net.Conn, error) {
	c, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return halfCloser{c.(*net.TCPConn)}, nil
}

func askHTTP(ctx context.Context, client *http.Client, url string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	res, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, 1000))
	if err != nil {
		return "", err
	}
	if res.StatusCode != http.StatusOK {
		return "", fmt.Errorf("the answer was %s", res.Status)
	}
	return strings.TrimSpace(string(body)), nil
}

func askUDP(ctx context.Context, address string) (string, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "udp", address)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(0, 0)) })() // ends Read
	if _, err := conn.Write([]byte("hello")); err != nil {
		return "", err
	}
	buf := make([]byte, 1000)
	n, err := conn.Read(buf)
	return string(buf[:n]), err
}

// AskAll sends requests to every Service that p serves, one after the other, and prints
// each with the steps of its connection. The error has the number of unexpected
// results.
func AskAll(ctx context.Context, out io.Writer, p *proxy.Proxy) error {
	events := p.Trace.Reader(true)
	asked, failed := 0, 0
	for _, t := range targetsOf(p) {
		fmt.Fprintf(out, "default/%s: %s\n", t.name, t.about)
		if t.unserved != "" {
			fmt.Fprintf(out, "  skipped: %s\n\n", t.unserved)
			continue
		}
		for range t.requests {
			asked++
			if !askAndTell(ctx, out, events, t) {
				failed++
			}
		}
		fmt.Fprintln(out)
	}
	if failed > 0 {
		return fmt.Errorf("%d of %d requests had an unexpected outcome", failed, asked)
	}
	fmt.Fprintf(out, "All %d requests had the expected outcome, although some endpoints are broken.\n", asked)
	return nil
}

// askAndTell makes one request, and reports whether the result is as expected:
// answered, or refused where there is no endpoint.
func askAndTell(ctx context.Context, out io.Writer, events *trace.Reader, t target) bool {
	started := time.Now()
	answer, err := t.ask(ctx)
	took := trace.Short(time.Since(started))
	if len(t.backends) == 0 { // usher does not listen, so no step is traced
		if !errors.Is(err, syscall.ECONNREFUSED) {
			fmt.Fprintf(out, "  request WRONG after %s: %q, %v; expected: refused\n", took, answer, err)
			return false
		}
		fmt.Fprintf(out, "  request refused after %s, as expected\n", took)
		return true
	}
	printSteps(ctx, out, events, t, err == nil)
	if err != nil {
		fmt.Fprintf(out, "  request FAILED after %s: %v\n", took, err)
		return false
	}
	fmt.Fprintf(out, "  request answered in %s: %q\n", took, answer)
	return true
}

// printSteps prints the steps of one connection to t until it ends. A UDP session outlasts the
// timeout, so its steps end with the answer. A request without an answer may have no steps.
func printSteps(ctx context.Context, out io.Writer, events *trace.Reader, t target, answered bool) {
	timeout := 5 * time.Second
	if !answered {
		timeout = 100 * time.Millisecond
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	buf := make([]trace.Event, 1)
	for {
		if n, _, err := events.Next(ctx, buf); err != nil || n == 0 {
			return
		}
		e := buf[0]
		if !e.Kind.IsStep() || e.Port.Service != t.name {
			continue
		}
		fmt.Fprintf(out, "  %s %s\n", e.Time.Format("15:04:05.000"), e)
		if e.Kind == trace.Closed || e.Kind == trace.Established && t.protocol == corev1.ProtocolUDP {
			return
		}
	}
}
