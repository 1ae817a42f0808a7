package portal

import (
	"context"
	"net/netip"
	"sync"
)

// nonePorts is where listeners of mode none go unless Options.ProxyPorts says
// otherwise: below the node ports (30000-32767) and below what Linux hands out
// to clients (from 32768), so that neither collides.
var nonePorts = PortRange{First: 20000, Last: 29999}

// none is the portal for those who may change nothing in the kernel: clients
// are told the loopback address at which a Service listens.
type none struct {
	mu    sync.Mutex // guards ports
	ports *portBook
}

func newNone(_ context.Context, opts Options) (Portal, error) {
	within := opts.ProxyPorts
	if within.isZero() {
		within = nonePorts
	}
	return &none{ports: newPortBook(within)}, nil
}

func (n *none) Mode() string { return ModeNone }

// Listen asks for one listener on loopback per family, with a port that
// follows from the first target and so is the same after a restart.
func (n *none) Listen(targets []Target) []Bind {
	n.mu.Lock()
	defer n.mu.Unlock()
	var binds []Bind
	for _, group := range byListener(targets) {
		loopback := netip.IPv6Loopback()
		if group[0].Addr.Is4() {
			loopback = netip.AddrFrom4([4]byte{127, 0, 0, 1})
		}
		binds = append(binds, Bind{
			Addr:      netip.AddrPortFrom(loopback, n.ports.propose(firstTarget(group))),
			Preferred: true,
			Targets:   group,
		})
	}
	return binds
}

// firstTarget returns the target that a group's port is derived from: the
// first VIP rather than the node port, since a Service keeps its cluster IP
// when it becomes a NodePort Service.
func firstTarget(group []Target) Target {
	for _, t := range group {
		if !t.Addr.IsUnspecified() {
			return t
		}
	}
	return group[0]
}

func (n *none) Apply(_ context.Context, set []Rule, gone []Target) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, t := range gone {
		n.ports.forget(t.plain())
	}
	bad := map[Target]error{}
	for _, r := range set {
		if err := r.check(); err != nil && r.Action != Redirect {
			bad[r.Target] = err
		}
	}
	return ruleError(bad)
}

// SetLocalSources changes nothing: nothing is dropped here.
func (n *none) SetLocalSources([]netip.Prefix) {}

func (n *none) Check(context.Context) (int, error) { return 0, nil }

// Compare finds nothing: this mode installs nothing, and what others have left
// cannot be read without their privileges.
func (n *none) Compare(context.Context) ([]Comparison, error) { return nil, nil }

func (n *none) Remove(context.Context) error { return nil }
