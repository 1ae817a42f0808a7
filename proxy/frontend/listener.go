package frontend

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"regexp"
	"strings"
	"sync/atomic"
	"syscall"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/portal/handover"
	"github.com/usherproxy/usher/portal/kernel"
	"github.com/usherproxy/usher/proxy/search"
)

// Listener takes in what clients send to some targets of a service port. Its methods
// are called by one goroutine at a time, but for Addr, which any may call at any time.
type Listener interface {
	// Addr returns where it listens.
	Addr() netip.AddrPort
	// Serves reports whether it is the listener that b asks for.
	Serves(b portal.Bind) bool
	// SetTargets says which targets lead to it.
	SetTargets(targets []portal.Target)
	// HandOver returns copies of the sockets that a successor can go on with: the
	// caller closes them.
	HandOver() []handover.Socket
	// EndpointsChanged is called after the front end's view was replaced.
	EndpointsChanged()
	// Close stops taking in new clients, and returns when nobody does any more: for UDP
	// that is HandedOver, Server.Retired of package datagram does.
	Close(Closing)
}

// Closing says why a listener is closed.
type Closing uint8

// The reasons.
const (
	Withdrawn  Closing = iota // the portal leads nothing there any more
	Stopped                   // usher stops
	HandedOver                // and a successor has the sockets
)

// ErrProtocol is why a protocol is not served that this version cannot carry.
var ErrProtocol = errors.New("protocol not supported by this version of usher")

// Place is where a listener listens, and what leads there. Listeners embed one.
type Place struct {
	At         netip.AddrPort
	Redirected bool // see portal.Bind
	Namespace  portal.Namespace
	targets    atomic.Pointer[[]portal.Target]
}

// Addr implements Listener.
func (p *Place) Addr() netip.AddrPort { return p.At }

// SetTargets implements Listener.
func (p *Place) SetTargets(targets []portal.Target) { p.targets.Store(&targets) }

// Serves implements Listener: it is the same place, or one on another port where b does
// not insist on its own.
func (p *Place) Serves(b portal.Bind) bool {
	samePort := p.At.Port() == b.Addr.Port() || b.Addr.Port() == 0 || b.Preferred
	return samePort && p.At.Addr() == b.Addr.Addr() && p.Redirected == b.Redirected && p.Namespace == b.Namespace
}

// Listen opens what b asks for: by listen, which is given b's address, or, if its
// port is taken and b does not insist on it, the same address with another port.
func Listen[T any](n *Node, b portal.Bind, listen func(netip.AddrPort) (T, error)) (T, error) {
	l, err := listen(b.Addr)
	if b.Preferred {
		for _, port := range otherPorts(n.Ports) {
			if !errors.Is(err, syscall.EADDRINUSE) && !errors.Is(err, syscall.EACCES) { // in use, or not for this user
				break
			}
			l, err = listen(netip.AddrPortFrom(b.Addr.Addr(), port))
		}
	}
	if err == nil {
		return l, nil
	}
	err = fmt.Errorf("cannot listen on %s: %w", b.Addr, search.Plain(err))
	if errors.Is(err, syscall.EADDRINUSE) && b.Namespace == nil && n.Socket == nil && len(b.Targets) > 0 {
		if who := kernel.Holder(portal.Target{Protocol: b.Targets[0].Protocol, Addr: b.Addr.Addr(), Port: b.Addr.Port()}, nil); who != "" {
			err = fmt.Errorf("%w: %s", err, who)
		}
	}
	return l, err
}

// SocketName returns the name that the socket of a listener at addr has in a handover;
// apart is one in the portal's namespace.
func SocketName(protocol config.Protocol, addr netip.AddrPort, apart bool) string {
	name := strings.ToLower(string(protocol)) + " " + addr.String()
	if apart {
		name += " in the portal's namespace" // or else who has none would take it for its own
	}
	return name
}

// numbered is a number in names that earlier versions gave: their UDP listeners had several
// sockets.
var numbered = regexp.MustCompile(`^(udp \S+) #\d+`)

// PlainSocketName returns the name that SocketName returns for a socket which may have been
// named by an earlier version.
func PlainSocketName(name string) string { return numbered.ReplaceAllString(name, "$1") }

// Sockets returns what makes the sockets of the listener that b asks for; nil is socket(2).
func (n *Node) Sockets(b portal.Bind) func(domain, kind, protocol int) (fd int, err error) {
	if b.Namespace != nil {
		return b.Namespace.Socket
	}
	return n.Socket
}

// otherPorts returns the ports to try when the preferred one is taken, in a random
// order: those that the user allows, or 0 for any.
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
