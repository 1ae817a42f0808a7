package portforward

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/proxy/forward"
)

const (
	// directTime is how long an endpoint may take to answer directly before its
	// network counts as out of reach.
	directTime = 500 * time.Millisecond
	// recheckTime is how long it is remembered whether a network is within reach.
	recheckTime = time.Minute
)

// A Dial connects to an endpoint. It returns when ctx ends.
type Dial func(ctx context.Context, to *config.Endpoint) (forward.Conn, error)

// Auto connects to endpoints directly where that works, and otherwise in another
// way. It decides for a network of endpoints at a time, a /24 of IPv4 or a /64 of
// IPv6, which is what a node has for its Pods as a rule; and remembers that for a
// minute.
//
// A network is within reach when a connection to one of its endpoints was made.
// One that is refused does not count: it may be a firewall that refuses. So Auto
// is not for those whose own network has the cluster's addresses.
type Auto struct {
	Direct, Else Dial

	mu       sync.Mutex
	networks map[netip.Prefix]verdict
}

// verdict is whether a network is within reach.
type verdict struct {
	direct bool
	until  time.Time
}

// Dial connects to an endpoint.
func (a *Auto) Dial(ctx context.Context, to *config.Endpoint) (forward.Conn, error) {
	network := networkOf(to.Addr.Addr())
	known, direct := a.verdict(network)
	if known && !direct {
		return a.Else(ctx, to)
	}
	conn, err := a.tryDirect(ctx, to, known)
	switch {
	case err == nil:
		a.decide(network, true)
		return conn, nil
	case known, ctx.Err() != nil:
		return nil, err
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		a.decide(network, false)
	}
	return a.Else(ctx, to)
}

// tryDirect dials directly, for a short time only unless the network is known to
// be within reach.
func (a *Auto) tryDirect(ctx context.Context, to *config.Endpoint, known bool) (forward.Conn, error) {
	if known {
		return a.Direct(ctx, to)
	}
	short, cancel := context.WithTimeout(ctx, directTime)
	defer cancel()
	return a.Direct(short, to)
}

func (a *Auto) verdict(network netip.Prefix) (known, direct bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	v := a.networks[network]
	return time.Now().Before(v.until), v.direct
}

func (a *Auto) decide(network netip.Prefix, direct bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.networks == nil {
		a.networks = map[netip.Prefix]verdict{}
	}
	a.networks[network] = verdict{direct, time.Now().Add(recheckTime)}
}

func networkOf(addr netip.Addr) netip.Prefix {
	bits := 24
	if addr.Is6() {
		bits = 64
	}
	network, _ := addr.Prefix(bits) // fails for no address that an endpoint may have
	return network
}
