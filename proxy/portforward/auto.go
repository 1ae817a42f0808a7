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
	// directTime is how long an endpoint may take to answer directly before its network counts as
	// unreachable.
	directTime = 500 * time.Millisecond
	// recheckTime is how long the reachability of a network is remembered.
	recheckTime = time.Minute
)

// A Dial connects to an endpoint. It returns when ctx ends.
type Dial func(ctx context.Context, to *config.Endpoint) (forward.Conn, error)

// Auto connects to endpoints directly where that works, and otherwise in another way. It decides per network of
// endpoints, and remembers the result for a minute. A network is a /24 of IPv4 or a /64 of IPv6, usually the Pod
// network of one node.
//
// It dials an endpoint without a Pod directly: the API server forwards no port to it.
//
// A network counts as reachable once a connection to one of its endpoints was established. So Auto is unsuitable if
// hosts in the user's own network have addresses of the cluster. A refusal decides nothing, since a firewall may have
// refused.
type Auto struct {
	Direct, Else Dial

	mu       sync.Mutex
	networks map[netip.Prefix]verdict
}

// verdict is whether a network is reachable.
type verdict struct {
	direct bool
	until  time.Time
}

// Dial connects to an endpoint.
func (a *Auto) Dial(ctx context.Context, to *config.Endpoint) (forward.Conn, error) {
	if to.Pod == "" {
		return a.Direct(ctx, to)
	}
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

// tryDirect dials directly, with a short timeout unless the network is known to be reachable.
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
	network, _ := addr.Prefix(bits) // cannot fail for an endpoint's address
	return network
}
