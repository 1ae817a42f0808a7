package portforward

import (
	"context"
	"errors"
	"net/netip"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/util/cache"

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

// Auto returns a Dial that connects to endpoints directly where that works, and otherwise with other. It decides per
// network of endpoints, and remembers the result for a minute. A network is a /24 of IPv4 or a /64 of IPv6, usually the
// Pod network of one node.
//
// It dials an endpoint without a Pod directly: the API server forwards no port to it.
//
// A network counts as reachable once a connection to one of its endpoints was established. So Auto is unsuitable if
// hosts in the user's own network have addresses of the cluster. A refusal decides nothing, since a firewall may have
// refused.
func Auto(direct, other Dial) Dial {
	networks := cache.NewExpiring() // a bool for each network: whether it is reachable
	return func(ctx context.Context, to *config.Endpoint) (forward.Conn, error) {
		if to.Pod == "" {
			return direct(ctx, to)
		}
		network := networkOf(to.Addr.Addr())
		reachable, known := networks.Get(network)
		if reachable == false {
			return other(ctx, to)
		}
		conn, err := tryDirect(ctx, to, direct, known)
		switch {
		case err == nil:
			networks.Set(network, true, recheckTime)
			return conn, nil
		case known, ctx.Err() != nil:
			return nil, err
		}
		if !errors.Is(err, syscall.ECONNREFUSED) {
			networks.Set(network, false, recheckTime)
		}
		return other(ctx, to)
	}
}

// tryDirect dials directly, with a short timeout unless the network is known to be reachable.
func tryDirect(ctx context.Context, to *config.Endpoint, direct Dial, known bool) (forward.Conn, error) {
	if known {
		return direct(ctx, to)
	}
	short, cancel := context.WithTimeout(ctx, directTime)
	defer cancel()
	return direct(short, to)
}

func networkOf(addr netip.Addr) netip.Prefix {
	bits := 24
	if addr.Is6() {
		bits = 64
	}
	network, _ := addr.Prefix(bits) // cannot fail for an endpoint's address
	return network
}
