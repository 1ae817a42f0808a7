package portal

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/sirupsen/logrus"
)

// Mode is one way to make portals. Its functions act on the network namespace of the calling thread, and expect
// complete Options.
type Mode struct {
	// Name selects the mode.
	Name   string
	Traits Traits

	// Open makes a portal. It first tests that the mode works here by making and undoing a small change. It leaves
	// nothing behind; see New.
	Open func(context.Context, Options) (Portal, error)

	// List returns the rules that portals of this mode have installed, in this or another process. It changes nothing.
	// It skips rules that it cannot read because a tool or kernel feature is missing. Nil: the mode never installs
	// anything.
	List func(context.Context, Options) ([]Rule, error)

	// Remove removes the rules that portals of this mode have installed, in this or another process. It keeps routes to
	// redirect addresses, which open connections may need. It returns the removed kinds of objects, a line each, and
	// skips rules that it cannot read. If the parameter all is true, it keeps nothing, and a failed read is an error,
	// unless the kernel supports no such rules. Nil: the mode never installs anything.
	Remove func(_ context.Context, _ Options, all bool) (removed []string, err error)
}

// Traits describe a mode to the users of its portals.
type Traits struct {
	// Installs says that the portal installs something in the kernel. So a network namespace can have only one such
	// portal at a time, and leftovers have to be removed.
	Installs bool
	// Redirects says that the kernel redirects packets for a VIP to a listener at another address or port. It also
	// rejects or drops clients as the rule's action and sources say. Otherwise the listener has to do all of that.
	Redirects bool
	// Local says that VIPs become addresses of this node, and listeners bind to them. VIPs then need no other route.
	Local bool
	// KubeProxy is the mode of kube-proxy that works in the same way, as named in kube-proxy's configuration and
	// metrics; empty if there is none.
	KubeProxy string
	// About describes how packets for a VIP reach usher: a sentence in two lines.
	About string
}

// CarriesVIPs reports whether packets for a VIP reach a listener. Otherwise clients need the listeners' addresses.
func (t Traits) CarriesVIPs() bool { return t.Redirects || t.Local }

// New makes a portal. When it returns, nothing in the kernel has changed.
func (m Mode) New(ctx context.Context, opts Options) (Portal, error) {
	opts, err := opts.Complete()
	if err != nil {
		return nil, err
	}
	p, err := m.Open(ctx, opts)
	if err != nil {
		return nil, fmt.Errorf("portal %s does not work here: %w", m.Name, err)
	}
	return p, nil
}

// NeedsLinux returns an error. It is the Mode.Open of modes that need Linux, on all other systems.
func NeedsLinux(context.Context, Options) (Portal, error) {
	return nil, errors.New("requires Linux; other systems support only --portal=none")
}

// Options are common to all modes. The zero value is valid.
type Options struct {
	// Log receives messages about repairs, and about the choice of a mode and the tests for it. Nil disables logging.
	Log logrus.FieldLogger
	// Others are the other modes: Apply and Check remove leftovers of their portals, and Compare reports them. Empty:
	// no other mode has ever installed anything in this network namespace.
	Others []Mode
	// ProxyPorts is the port range for listeners behind a redirect or on loopback. Zero: any free port or, in mode
	// none, the Service's own port if possible.
	ProxyPorts PortRange
	// NodePortAddresses are networks: this node's addresses in them accept connections to node ports, as for
	// kube-proxy's --nodeport-addresses. But here a family without a network in the list has no node ports. Empty: all
	// addresses of the node, loopback included. Mode none ignores this field.
	NodePortAddresses []netip.Prefix
	// PodInterfaces are the interfaces of this node's Pods, in addition to the networks of Settings.LocalSources; see
	// Drop. They need not exist yet.
	PodInterfaces Interfaces
	// Mark is the mark (SO_MARK, socket(7)) of packets that the portal ignores: those whose mark has all of these bits.
	// The process that listens for a portal sets it on packets to endpoints, so the portal never redirects these back.
	// Zero: it ignores none. See Portal.Mark.
	Mark uint32
	// NodeAddress makes Portal.Origin always return the node.
	NodeAddress bool
	// Aliases are networks with which this node never communicates, at most one of each family. If client and endpoint
	// are behind the same bridge, usher connects from an address in such a network, and rules translate it to the
	// client's address. If a family has none, or one smaller than the bridge's network, the endpoint sees the node.
	Aliases []netip.Prefix
	// LockWait is how long to wait for another program that changes iptables rules, in whole seconds. Zero: 5 seconds.
	LockWait time.Duration
	// IPTablesVariant is "nft" or "legacy" for iptables-nft or iptables-legacy. Empty: the variant that this node
	// already uses.
	IPTablesVariant string
	// IPTablesTarget is one of IPTablesTargets. Empty: the first.
	IPTablesTarget string
	// OtherProxies says that another proxy of this node serves the Services that usher does not.
	OtherProxies bool
}

// IPTablesTargets are the iptables targets that can redirect packets to a listener. DNAT redirects to a dedicated
// address of usher's. REDIRECT redirects to an address of the incoming interface, which must have one.
var IPTablesTargets = []string{"dnat", "redirect"}

// Complete sets zero fields that have a default. It returns an error for an invalid port range or iptables target.
func (o Options) Complete() (Options, error) {
	if r := o.ProxyPorts; !r.IsZero() && (r.First == 0 || r.First > r.Last) {
		return o, fmt.Errorf("portal: the port range %d-%d is empty or begins at 0", r.First, r.Last)
	}
	o.IPTablesTarget = cmp.Or(o.IPTablesTarget, IPTablesTargets[0])
	if !slices.Contains(IPTablesTargets, o.IPTablesTarget) {
		return o, fmt.Errorf("portal: invalid iptables target %q: must be one of %s", o.IPTablesTarget, strings.Join(IPTablesTargets, ", "))
	}
	if o.Log == nil {
		o.Log = &logrus.Logger{} // discards all
	}
	if o.LockWait <= 0 {
		o.LockWait = 5 * time.Second
	}
	o.NodePortAddresses, o.Aliases = PlainPrefixes(o.NodePortAddresses), PlainPrefixes(o.Aliases)
	o.LockWait = max(o.LockWait.Truncate(time.Second), time.Second)
	return o, nil
}

// ListAll returns the rules that portals of these modes, of this or another process, have installed in the kernel, as
// extra ones. It lists mode by mode, each in the order of Target.Compare.
func ListAll(ctx context.Context, modes []Mode, opts Options) (all []Comparison, err error) {
	var errs []error
	for _, m := range modes {
		if m.List == nil {
			continue
		}
		rules, err := m.List(ctx, opts)
		errs = append(errs, err)
		slices.SortStableFunc(rules, func(a, b Rule) int { return a.Target.Compare(b.Target) })
		for _, r := range rules {
			all = append(all, Comparison{Mode: m.Name, Traits: m.Traits, Rule: r, State: StateExtra})
		}
	}
	return all, errors.Join(append(errs, ctx.Err())...)
}

// RemoveAll removes the rules of portals of these modes, mode by mode. all is as for Mode.Remove.
func RemoveAll(ctx context.Context, modes []Mode, opts Options, all bool) (removed []string, err error) {
	var errs []error
	for _, m := range modes {
		if m.Remove == nil {
			continue
		}
		what, err := m.Remove(ctx, opts, all)
		removed = append(removed, what...)
		errs = append(errs, err)
	}
	return removed, errors.Join(errs...)
}

// Others removes leftovers of the other modes' portals: these would redirect to ports without a listener. A portal
// calls Remove at its first Apply and with each later Check. The zero value is ready for use.
type Others struct{ attempts int }

// mostAttempts limits the attempts, since a tool may be missing or not work at all here.
const mostAttempts = 6

// Remove removes the leftovers, and logs this. It does nothing once a call has succeeded, or mostAttempts have failed.
// It returns the removed kinds of objects.
func (s *Others) Remove(ctx context.Context, o Options) (removed []string) {
	if s.attempts == mostAttempts {
		return nil
	}
	s.attempts++
	removed, err := RemoveAll(ctx, o.Others, o, false)
	if err != nil {
		o.Log.WithError(err).Debug("Failed to look for rules left by another portal mode")
		return removed
	}
	s.attempts = mostAttempts
	if len(removed) > 0 {
		o.Log.WithField("removed", Shorten(removed)).Info("Removed rules left by another portal mode")
	}
	return removed
}

// Shorten shortens a list for the log.
func Shorten(list []string) string {
	const most = 8
	if len(list) <= most {
		return strings.Join(list, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(list[:most], ", "), len(list)-most)
}

// State compares a wanted object with the installed one.
type State string

const (
	StateOK      State = "ok"      // installed as wanted
	StateMissing State = "missing" // wanted, and not installed
	StateDiffers State = "differs" // installed, but not as wanted
	StateExtra   State = "extra"   // installed, and not wanted
)

// StateOf returns the state of a wanted object, by whether it is installed and the same.
func StateOf(there, same bool) State {
	switch {
	case !there:
		return StateMissing
	case !same:
		return StateDiffers
	}
	return StateOK
}

// Comparison is a rule that is wanted, installed, or both.
type Comparison struct {
	// Mode is the mode of the portal that wants the rule or, if it is extra, of the portal that left it.
	Mode   string
	Traits Traits // the mode's
	// Rule is the wanted rule; if the rule is extra, the installed one. An installed rule has no comment where the
	// kernel keeps none. In mode address it has only the Target's address: the listeners determine which ports are
	// served there.
	Rule  Rule
	State State
	// Installed is the rule in the kernel if it differs from Rule.
	Installed Rule
}

// Part is something that a portal has in the kernel for all targets together, in addition to their rules. It is wanted,
// installed, or both.
type Part struct {
	Family Family
	Name   string // such as "routing rule 116"
	State  State
	Text   string // a description, in the notation of the tool that shows it
}

// Compare orders comparisons by their targets.
func (c Comparison) Compare(other Comparison) int {
	return cmp.Or(c.Rule.Target.Compare(other.Rule.Target), cmp.Compare(c.Mode, other.Mode), cmp.Compare(c.State, other.State))
}
