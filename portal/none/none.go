package none

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"syscall"

	"github.com/usherproxy/usher/portal"
)

// none implements the mode. If all of 127.0.0.0/8 is usable, each Service has a dedicated IPv4 address there. Its
// listeners have the Service's own ports, unless these are below 1024 and unavailable (see highPort) or
// Options.ProxyPorts is set. For IPv6 there is only ::1.
type none struct {
	portal.Plain
	system loopback

	mu        sync.Mutex // guards addresses and ports
	addresses *addressAllocator
	ports     *portal.PortAllocator // for listeners without a dedicated address, or for all if Options.ProxyPorts is set
	ownPorts  bool                  // Services with a dedicated address keep their ports, since Options.ProxyPorts is not set
}

// loopback says on which loopback addresses and ports this process can listen.
type loopback struct {
	many bool // all of 127.0.0.0/8, and not just 127.0.0.1
	low  bool // ports below 1024
}

// nonePorts is the port range of listeners that share an address, unless Options.ProxyPorts is set. It is below the
// node ports (30000-32767) and below Linux's ports for clients (from 32768), so that neither collides.
var nonePorts = portal.PortRange{First: 20000, Last: 29999}

// highPort is added to ports below 1024 if those are unavailable: 80 becomes 8080, 443 8443.
const highPort = 8000

// Mode is the mode that installs nothing.
var Mode = portal.Mode{
	Name:   "none",
	Traits: portal.Traits{About: "usher installs no rules and listens on loopback addresses.\n(As root, with another portal, it serves the cluster IPs.)"},
	Open: func(_ context.Context, opts portal.Options) (portal.Portal, error) {
		return newOn(lookAtLoopback(), opts), nil
	},
}

func newOn(system loopback, opts portal.Options) *none {
	n := &none{system: system, addresses: newAddressAllocator(ownAddresses), ownPorts: opts.ProxyPorts.IsZero()}
	within := opts.ProxyPorts
	if n.ownPorts {
		within = nonePorts
	}
	n.ports = portal.NewPortAllocator(within)
	return n
}

// lookAtLoopback determines the system's loopback addresses and ports by listening there. Linux and Windows have all of
// 127.0.0.0/8; macOS has 127.0.0.1, unless others were added.
func lookAtLoopback() loopback {
	tryPort := func(port uint16) error {
		l, err := net.ListenTCP("tcp4", net.TCPAddrFromAddrPort(netip.AddrPortFrom(ownAddresses.Addr().Next(), port)))
		if err == nil {
			l.Close()
		}
		return err
	}
	low := tryPort(1023)
	return loopback{many: tryPort(0) == nil, low: low == nil || errors.Is(low, syscall.EADDRINUSE)}
}

func (n *none) Mode() string { return Mode.Name }

func (n *none) Traits() portal.Traits { return Mode.Traits }

// Listen requests one listener on loopback for each family and protocol of a service port. It prefers the address and
// port from before a restart.
func (n *none) Listen(service string, targets []portal.Target) []portal.Bind {
	n.mu.Lock()
	defer n.mu.Unlock()
	var binds []portal.Bind
	for _, group := range portal.ByListener(targets) {
		binds = append(binds, portal.Bind{Addr: n.place(service, group), Preferred: true, Targets: group})
	}
	return binds
}

// place returns where to listen for a group of targets.
func (n *none) place(service string, group []portal.Target) netip.AddrPort {
	first := portal.FirstTarget(group)
	addr := netip.IPv6Loopback()
	if first.Addr.Is4() {
		addr = netip.AddrFrom4([4]byte{127, 0, 0, 1})
		if n.system.many {
			addr = n.addresses.propose(service, group)
		}
	}
	switch own := n.system.many && first.Addr.Is4(); {
	case !own || !n.ownPorts:
		return netip.AddrPortFrom(addr, n.ports.Propose(first))
	case first.Port < 1024 && !n.system.low:
		return netip.AddrPortFrom(addr, first.Port+highPort)
	}
	return netip.AddrPortFrom(addr, first.Port)
}

func (n *none) Apply(_ context.Context, set []portal.Rule, gone []portal.Target) portal.Result {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, t := range gone {
		n.ports.Forget(t.Plain())
		n.addresses.forget(t.Plain())
	}
	bad := map[portal.Target]error{}
	for _, r := range set {
		if err := r.Check(); err != nil && r.Action != portal.Redirect {
			bad[r.Target] = err
		}
	}
	return portal.Result{Refused: bad}
}
