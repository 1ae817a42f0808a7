package portforward

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/streaming/pkg/httpstream"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/proxy/forward"
)

// Schedule is the list of timeouts of attempts through port-forward. The first attempt for a Pod takes about five round
// trips to the API server, later ones take one.
var Schedule = []time.Duration{2 * time.Second, 2 * time.Second, 4 * time.Second}

// ErrTCPOnly is the reason that UDP and SCTP service ports are not served.
var ErrTCPOnly = errors.New("port-forward supports only TCP")

// Dialer connects to Pods through an API server. It is safe for concurrent use.
type Dialer struct {
	// IdleTime is how long a connection to a Pod stays open without streams. Set it before the first Dial.
	IdleTime time.Duration

	config *rest.Config
	base   *url.URL // of the API, with its version
	log    logrus.FieldLogger

	requests     atomic.Uint64 // numbers for pairs of streams
	noWebSocket  atomic.Bool   // the API server, or a proxy in front of it, supports SPDY only
	loggedRights sync.Map      // namespaces for which the missing permission was logged

	mu     sync.Mutex
	pods   map[pod]*connection // that new streams may use
	all    map[*connection]bool
	closed bool
}

// pod is a Pod's name.
type pod struct{ namespace, name string }

func (p pod) String() string { return p.namespace + "/" + p.name }

// New returns a Dialer for config's API server. It connects to nothing yet.
func New(config *rest.Config, log logrus.FieldLogger) (*Dialer, error) {
	base, version, err := rest.DefaultServerUrlFor(forCore(config))
	if err != nil {
		return nil, fmt.Errorf("the API server's URL %q: %w", config.Host, err)
	}
	config = rest.CopyConfig(config)
	config.Wrap(limitTime)
	return &Dialer{
		IdleTime: idleTime, config: config, base: base.JoinPath(version), log: log,
		pods: map[pod]*connection{}, all: map[*connection]bool{},
	}, nil
}

// forCore returns config with the path of the core API.
func forCore(config *rest.Config) *rest.Config {
	core := rest.CopyConfig(config)
	core.APIPath, core.GroupVersion = "/api", &corev1.SchemeGroupVersion
	return core
}

func (d *Dialer) url(p pod) *url.URL {
	return d.base.JoinPath("namespaces", p.namespace, "pods", p.name, "portforward")
}

// Dial opens a connection to the endpoint's port in its Pod. It returns when ctx ends. An open connection
// does not mean that a process listens in the Pod: see [Conn.Confirm].
func (d *Dialer) Dial(ctx context.Context, to *config.Endpoint) (forward.Conn, error) {
	namespace, name, ok := strings.Cut(to.Pod, "/")
	if !ok {
		return nil, fmt.Errorf("port-forward reaches only Pods, and the EndpointSlice names no Pod for %s", to.Addr.Addr())
	}
	c, err := d.connect(ctx, pod{namespace, name})
	if err != nil {
		return nil, err
	}
	conn, err := d.open(ctx, c, to.Addr.Port())
	if err != nil {
		d.leave(c)
		return nil, err
	}
	return conn, nil
}

// open opens the streams for one client on c.
func (d *Dialer) open(ctx context.Context, c *connection, port uint16) (*Conn, error) {
	request := strconv.FormatUint(d.requests.Add(1), 10)
	made := make(chan stream, 2)
	for _, kind := range []string{corev1.StreamTypeError, corev1.StreamTypeData} {
		h := http.Header{}
		h.Set(corev1.StreamType, kind)
		h.Set(corev1.PortHeader, strconv.Itoa(int(port)))
		h.Set(corev1.PortForwardRequestIDHeader, request)
		go func() {
			s, err := c.http.CreateStream(h) // waits for an answer, at most 30 s
			made <- stream{kind, s, err}
		}()
	}
	pair := map[string]httpstream.Stream{}
	for range cap(made) {
		select {
		case s := <-made:
			if s.err != nil {
				d.abandon(c, made, pair)
				return nil, fmt.Errorf("opening a stream to Pod %s: %w", c.pod, s.err)
			}
			pair[s.kind] = s.Stream
		case <-c.http.CloseChan():
			return nil, errLost
		case <-ctx.Done():
			d.abandon(c, made, pair)
			return nil, ctx.Err()
		}
	}
	return newConn(d, c, pair[corev1.StreamTypeData], pair[corev1.StreamTypeError]), nil
}

// stream is the result of opening a stream.
type stream struct {
	kind string
	httpstream.Stream
	err error
}

// abandon retires c, since it does not answer, and resets those of its two streams that are open or open
// later.
func (d *Dialer) abandon(c *connection, made <-chan stream, pair map[string]httpstream.Stream) {
	d.retire(c)
	reset := func(s httpstream.Stream) {
		_ = s.Reset()
		c.http.RemoveStreams(s)
	}
	for _, s := range pair {
		go reset(s) // it may block on the network
	}
	go func() {
		for range cap(made) - len(pair) {
			select {
			case s := <-made:
				if s.err == nil {
					reset(s.Stream)
				}
			case <-c.http.CloseChan():
				return
			}
		}
	}()
}
