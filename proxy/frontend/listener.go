package frontend

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"sync/atomic"
	"syscall"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/portal/handover"
	"github.com/usherproxy/usher/portal/kernel"
	"github.com/usherproxy/usher/proxy/budget"
	"github.com/usherproxy/usher/proxy/search"
)

// Listener accepts the clients of some VIPs of a service port, its targets. Any goroutine may call Addr; only one at a
// time may call the other methods.
type Listener interface {
	// Addr returns the address that the listener is bound to.
	Addr() netip.AddrPort
	// Serves reports whether the listener meets the requirements of b.
	Serves(b portal.Bind) bool
	// SetTargets sets the VIPs that the listener serves.
	SetTargets(targets []portal.Target)
	// HandOver returns a copy of the socket for a successor, or false if it cannot be copied. The caller closes it.
	HandOver() (handover.Socket, bool)
	// ViewReplaced is called when the front end's view has been replaced.
	ViewReplaced()
	// Close stops accepting clients. None is accepted after it returns. Exception: with HandedOver, a UDP listener may
	// accept clients until datagram.Server.Retired has returned.
	Close(Closing)
}

// Closing is the reason why a listener is closed.
type Closing uint8

const (
	Withdrawn  Closing = iota // the portal no longer uses the listener
	Stopped                   // usher stops
	HandedOver                // usher stops, and a successor has the sockets
)

// ErrProtocol is the error for a protocol that this version does not support.
var ErrProtocol = errors.New("protocol not supported by this version of usher")

// Place is a listener's address and its targets. Listeners embed one.
type Place struct {
	At         netip.AddrPort
	Redirected bool   // see portal.Bind
	service    uint16 // the VIPs' port or, without VIPs, the node port: see portal.FirstTarget
	targets    atomic.Pointer[[]portal.Target]
}

// SetBound records that the listener for b is bound to address at.
func (p *Place) SetBound(b portal.Bind, at netip.AddrPort) {
	p.At, p.Redirected, p.service = at, b.Redirected, portal.FirstTarget(b.Targets).Port
	p.targets.Store(&b.Targets)
}

// Addr implements Listener.
func (p *Place) Addr() netip.AddrPort { return p.At }

// SetTargets implements Listener.
func (p *Place) SetTargets(targets []portal.Target) { p.targets.Store(&targets) }

// Serves implements Listener. The address and Redirected must be the same as in b. The port may differ only if b merely
// prefers its port. Without a redirect, the VIPs' port must also be the same as before.
func (p *Place) Serves(b portal.Bind) bool {
	samePort := p.At.Port() == b.Addr.Port() || b.Preferred && (b.Redirected || p.service == portal.FirstTarget(b.Targets).Port)
	return samePort && p.At.Addr() == b.Addr.Addr() && p.Redirected == b.Redirected
}

// maxTries limits the ports that Listen tries if the portal has assigned all ports of the range. Thousands of listeners
// may then find no port, and each would try the whole range.
const maxTries = 64

// Listen calls listen with b's address. If b's port is 0 and n.Ports is limited, it tries ports of n.Ports only. If b's
// port is unavailable and only preferred, Listen tries other ports of the same address.
func Listen[T any](n *Node, b portal.Bind, listen func(netip.AddrPort) (T, error)) (T, error) {
	var l T
	err := error(syscall.EADDRINUSE)
	// The portal has assigned every port of the range, but some may be unbound.
	exhausted := b.Addr.Port() == 0 && n.Ports.First != 0
	if !exhausted {
		l, err = listen(b.Addr)
	}
	// Only these errors depend on the port.
	unavailable := func() bool { return errors.Is(err, syscall.EADDRINUSE) || errors.Is(err, syscall.EACCES) }
	others := ""
	if b.Preferred && unavailable() {
		ports := otherPorts(n.Ports)
		if exhausted {
			ports = ports[:min(len(ports), maxTries)]
		}
		for _, port := range ports {
			others = " or another port of that address"
			if l, err = listen(netip.AddrPortFrom(b.Addr.Addr(), port)); !unavailable() {
				break
			}
		}
	}
	if err == nil {
		return l, nil
	}
	if exhausted && unavailable() {
		return l, fmt.Errorf("%w: found no free port from %d to %d (set --proxy-port-range to more ports)", budget.ErrLocalPorts, n.Ports.First, n.Ports.Last)
	}
	err = fmt.Errorf("cannot listen on %s%s: %w", b.Addr, others, search.Plain(err))
	if errors.Is(err, syscall.EADDRINUSE) && n.Socket == nil && len(b.Targets) > 0 {
		if who := kernel.Holder(portal.Target{Protocol: b.Targets[0].Protocol, Addr: b.Addr.Addr(), Port: b.Addr.Port()}, nil); who != "" {
			err = fmt.Errorf("%w: %s", err, who)
		}
	}
	return l, err
}

// SocketName returns the name that the socket of a listener at addr has in a handover.
func SocketName(protocol config.Protocol, addr netip.AddrPort) string {
	return strings.ToLower(string(protocol)) + " " + addr.String()
}

// otherPorts returns the ports to try if the preferred one is taken, in random order. If the user allows all ports, it
// returns only 0, which means any port.
func otherPorts(allowed portal.PortRange) []uint16 {
	if allowed.First == 0 {
		return []uint16{0}
	}
	var ports []uint16
	for _, i := range rand.Perm(int(allowed.Last-allowed.First) + 1) {
		ports = append(ports, allowed.First+uint16(i))
	}
	return ports
}
