package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/usherproxy/usher/proxy/admin/client"
	"github.com/usherproxy/usher/proxy/trace"
)

// Questions are requests of one client.
type Questions struct {
	// Of is a Service of the demo, to be reached through usher, or one of the servers, to be
	// reached directly.
	Of        string
	Count     int
	HalfClose bool          // the client closes its sending direction after the request; TCP only
	Timeout   time.Duration // for one request
}

// Ask sends requests to the running demo that c queries, one after the other, and prints each
// result. It returns the number of requests without an answer.
func Ask(ctx context.Context, c *client.Client, out io.Writer, q Questions) (unanswered int, err error) {
	t, err := targetAt(ctx, c, q.Of)
	switch {
	case err != nil:
		return 0, err
	case q.HalfClose && t.protocol == corev1.ProtocolUDP:
		return 0, fmt.Errorf("%s uses UDP, which has no half-close", q.Of)
	}
	for range q.Count {
		started := time.Now()
		answer, err := t.askWith(ctx, q)
		took := trace.Short(time.Since(started))
		if err != nil {
			unanswered++
			fmt.Fprintf(out, "no answer after %s: %s\n", took, why(err))
			continue
		}
		fmt.Fprintf(out, "%s, after %s\n", answer, took)
	}
	return unanswered, nil
}

func (t target) askWith(ctx context.Context, q Questions) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, q.Timeout)
	defer cancel()
	if q.HalfClose {
		return askHTTP(ctx, &halfClosing, t.url())
	}
	return t.ask(ctx)
}

// why describes in a few words why there is no answer.
func why(err error) string {
	var errno syscall.Errno
	switch {
	case errors.As(err, &errno):
		return errno.Error()
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return "the connection was closed"
	case errors.Is(err, context.DeadlineExceeded), os.IsTimeout(err):
		return "the client's timeout was reached"
	}
	return err.Error()
}

// targetAt returns where clients reach a Service or a server of the demo of c.
func targetAt(ctx context.Context, c *client.Client, name string) (target, error) {
	s, server, err := named(name)
	if err != nil {
		return target{}, err
	}
	at := ""
	if server {
		at, err = serverAt(ctx, c, name)
	} else {
		at, err = serviceAt(ctx, c, s.name)
	}
	if err != nil {
		return target{}, err
	}
	t := target{service: s}
	t.at, err = netip.ParseAddrPort(at)
	return t, err
}

func serverAt(ctx context.Context, c *client.Client, name string) (string, error) {
	list, err := c.DemoEndpoints(ctx)
	for _, e := range list.Items {
		if e.Pod == name || e.Pod == corev1.NamespaceDefault+"/"+name {
			return e.Endpoint, nil
		}
	}
	return "", err
}

func serviceAt(ctx context.Context, c *client.Client, name string) (string, error) {
	status, err := c.Status(ctx)
	if err == nil && !status.Demo {
		err = client.ErrNoDemo
	}
	if err != nil {
		return "", err
	}
	s, err := c.Service(ctx, corev1.NamespaceDefault, name)
	if err != nil {
		return "", err
	}
	if len(s.Ports) == 0 { // its manifest was edited
		return "", fmt.Errorf("%s is not served; run usher get services %s -o wide", name, name)
	}
	port := s.Ports[0] // each Service of the demo has one port
	switch {
	case status.PortalMode != "none":
		return port.VIP, nil
	case port.Listener != "":
		return port.Listener, nil
	}
	return "", fmt.Errorf("%s is not reachable: it has no endpoint, and without root there is no portal", name)
}
