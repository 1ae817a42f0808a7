package portal

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/sirupsen/logrus"
)

// Mode is one way to make portals. Its functions act on the network namespace of the
// calling thread, and are given Options without gaps.
type Mode struct {
	// Name is what the mode is chosen by.
	Name   string
	Traits Traits

	// Open makes a portal, after trying for real whether that works here, by doing and
	// undoing a small change. It leaves nothing behind; see New.
	Open func(context.Context, Options) (Portal, error)

	// List returns the rules that portals of this mode, of this or another process, have
	// put into the kernel. It changes nothing. What cannot be looked at for want of a
	// tool or of kernel support is passed over. Nil: there is never anything.
	List func(context.Context, Options) ([]Rule, error)

	// Remove takes out what portals of this mode, of this or another process, have put
	// into the kernel, but for what connections in flight may go on with, and says
	// what that was, a line for each kind. What cannot be looked at is passed over. With
	// all set nothing stays, and what cannot be looked at is an error, unless the kernel
	// has nothing of the kind. Nil: there is never anything.
	Remove func(_ context.Context, _ Options, all bool) (removed []string, err error)
}

// Traits are what those have to know of a mode who use a portal of it.
type Traits struct {
	// Installs says that something is put into the kernel: so there may be only one such
	// portal in a network namespace at a time, and what it leaves has to be taken out.
	Installs bool
	// Redirects says that the kernel leads what is sent to a VIP to a listener elsewhere,
	// and keeps away the clients that a rule drops, rejects or has not among its
	// sources. Otherwise all of that is up to the listener.
	Redirects bool
	// Local says that VIPs become addresses of this node, at which the listeners are: no
	// route need lead to them.
	Local bool
	// Apart says that the VIPs of a portal are addresses of a network namespace of its own
	// instead, to which the node's own lead nowhere: see Bind.Namespace.
	Apart bool
	// KubeProxy is the mode of kube-proxy's that does it in the same way, by the name that
	// its configuration and its metrics have for it; empty if there is none.
	KubeProxy string
	// About tells people how what is sent to a VIP reaches usher: a sentence in two lines.
	About string
}

// Leads reports whether what is sent to a VIP reaches a listener. Otherwise clients must
// be told where the listeners are.
func (t Traits) Leads() bool { return t.Redirects || t.Local }

// New makes a portal. Nothing stays changed before its first Apply.
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

// NeedsLinux is Mode.Open on other systems.
func NeedsLinux(context.Context, Options) (Portal, error) {
	return nil, errors.New("requires Linux; other systems support only --portal=none")
}

// Options are what all modes are made with. The zero value will do.
type Options struct {
	// Log is told what is probed, chosen and repaired. Nil is silence.
	Log logrus.FieldLogger
	// Others are the other modes that there are: what portals of theirs have left is
	// taken out by the first Apply, and Compare tells of it. None: nothing else has
	// ever installed anything in this network namespace.
	Others []Mode
	// ProxyPorts is where listeners behind a redirect, or on loopback, have
	// their ports. Zero: any free port, and for mode none the Service's own.
	ProxyPorts PortRange
	// NodePortAddresses are the networks within which this node's addresses
	// take connections to node ports, as kube-proxy's --nodeport-addresses
	// says; but a family without a network in it has no node ports then. None:
	// all addresses of the node, loopback included. Mode none does not ask.
	NodePortAddresses []netip.Prefix
	// PodInterfaces are those behind which this node's Pods are, besides those of
	// Portal.SetLocalSources; see Drop. They need not exist yet.
	PodInterfaces Interfaces
	// Mark is the mark (SO_MARK, socket(7)) of the packets that are left alone: those
	// that have all of its bits. Who listens for a portal puts it on what it sends to
	// endpoints, which so never comes back. Zero: all packets are alike. See
	// Portal.Mark.
	Mark uint32
	// NodeAddress makes Portal.Origin always be the node.
	NodeAddress bool
	// Aliases are a network of each family that is nobody's, or only of those that this
	// node never talks to: see package redirect. None, or one that is smaller than a bridge's,
	// and neighbours on a bridge see the node.
	Aliases []netip.Prefix
	// LockWait is how long to wait for another program that changes iptables
	// rules. Zero: 5 seconds. Whole seconds count.
	LockWait time.Duration
	// IPTablesVariant is "nft" or "legacy" for iptables-nft or
	// iptables-legacy. Empty: the one that this node already uses.
	IPTablesVariant string
	// IPTablesTarget is one of IPTablesTargets. Empty: the first.
	IPTablesTarget string
	// AddressNamespace is one of AddressNamespaces. Empty: "never".
	AddressNamespace string
	// OtherProxies says that another proxy of this node serves the Services that usher does not.
	OtherProxies bool
}

// AddressNamespaces say whether VIPs in mode address are in a network namespace of the
// portal's own: where that works here, in any case, or not.
var AddressNamespaces = []string{"auto", "always", "never"}

// IPTablesTargets are the targets by which rules of iptables may lead to a listener: DNAT to
// an address of usher's own, or REDIRECT to one of the interface that a packet comes in
// by, which must have one then.
var IPTablesTargets = []string{"dnat", "redirect"}

// Complete fills in what is zero. It is an error if something cannot be meant.
func (o Options) Complete() (Options, error) {
	if r := o.ProxyPorts; !r.IsZero() && (r.First == 0 || r.First > r.Last) {
		return o, fmt.Errorf("portal: the port range %d-%d is empty or begins at 0", r.First, r.Last)
	}
	o.IPTablesTarget = cmp.Or(o.IPTablesTarget, IPTablesTargets[0])
	if !slices.Contains(IPTablesTargets, o.IPTablesTarget) {
		return o, fmt.Errorf("portal: invalid iptables target %q: must be one of %s", o.IPTablesTarget, strings.Join(IPTablesTargets, ", "))
	}
	if o.Log == nil {
		silent := logrus.New()
		silent.SetOutput(io.Discard)
		o.Log = silent
	}
	if o.LockWait <= 0 {
		o.LockWait = 5 * time.Second
	}
	o.NodePortAddresses, o.Aliases = PlainPrefixes(o.NodePortAddresses), PlainPrefixes(o.Aliases)
	o.LockWait = max(o.LockWait.Truncate(time.Second), time.Second)
	return o, nil
}

// Installed is something that a portal, of this or another process, has put into
// the kernel.
type Installed struct {
	Mode   string // the portal's
	Traits Traits // the mode's
	// Rule is what it was put in for. Its comment is missing where the kernel
	// keeps none. For mode address it is the address of the Target alone: which
	// ports are served there is up to the listeners.
	Rule Rule
}

// ListAll returns what portals of these modes have put into the kernel, mode by mode,
// each in the order of Target.Compare.
func ListAll(ctx context.Context, modes []Mode, opts Options) (all []Installed, err error) {
	var errs []error
	for _, m := range modes {
		if m.List == nil {
			continue
		}
		rules, err := m.List(ctx, opts)
		errs = append(errs, err)
		slices.SortStableFunc(rules, func(a, b Rule) int { return a.Target.Compare(b.Target) })
		for _, r := range rules {
			all = append(all, Installed{Mode: m.Name, Traits: m.Traits, Rule: r})
		}
	}
	return all, errors.Join(append(errs, ctx.Err())...)
}

// RemoveAll takes out what portals of these modes have put into the kernel, mode by mode.
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

// RemoveOthers takes out what portals of the other modes have left, as who is applied for
// the first time has to: it would lead to ports on which nobody listens. It tells the log.
func (o Options) RemoveOthers(ctx context.Context) (removed []string) {
	removed, err := RemoveAll(ctx, o.Others, o, false)
	if err != nil {
		o.Log.WithError(err).Debug("Failed to look for rules left by another portal mode")
	} else if len(removed) > 0 {
		o.Log.WithField("what", Some(removed)).Info("Removed rules left by another portal mode")
	}
	return removed
}

// Some shortens a list for the log.
func Some(list []string) string {
	const most = 8
	if len(list) <= most {
		return strings.Join(list, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(list[:most], ", "), len(list)-most)
}

// State says how what is wanted and what is installed agree.
type State string

// The states.
const (
	StateOK      State = "ok"      // installed as it is wanted
	StateMissing State = "missing" // wanted, and not installed
	StateDiffers State = "differs" // installed in another way than it is wanted
	StateExtra   State = "extra"   // installed, and not wanted
)

// StateOf returns the state of what is wanted, if it is there, and as it should be.
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
	// Mode is that of the portal that wants the rule or, if it is extra, of the
	// one that has left it.
	Mode   string
	Traits Traits // the mode's
	// Rule is the wanted one; if that is extra, the installed one.
	Rule  Rule
	State State
	// Installed is the rule in the kernel if it differs from Rule.
	Installed Rule
}

// Part is something that a portal has in the kernel for all targets together, beside their
// rules. It is wanted, installed, or both.
type Part struct {
	Family Family
	Name   string // such as "routing rule 116"
	State  State
	Text   string // what it is, as the tools have it that show it
}

// Extra is the Comparison of what nobody wants.
func (i Installed) Extra() Comparison {
	return Comparison{Mode: i.Mode, Traits: i.Traits, Rule: i.Rule, State: StateExtra}
}

// Compare orders comparisons by their targets.
func (c Comparison) Compare(other Comparison) int {
	return cmp.Or(c.Rule.Target.Compare(other.Rule.Target), cmp.Compare(c.Mode, other.Mode), cmp.Compare(c.State, other.State))
}
