package portal

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"time"

	"github.com/sirupsen/logrus"
)

// The modes' names.
const (
	ModeAuto     = "auto"
	ModeIPTables = "iptables"
	ModeNFTables = "nftables"
	ModeAddress  = "address"
	ModeNone     = "none"
)

// Options are what all modes are made with. The zero value will do.
type Options struct {
	// Log is told what is probed, chosen and repaired. Nil is silence.
	Log logrus.FieldLogger
	// NoIPv4 and NoIPv6 leave a family alone: its rules are refused.
	NoIPv4, NoIPv6 bool
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
	// Alone says that nothing else has ever installed anything in this network
	// namespace: what others have left is not looked for. Mode address only.
	Alone bool
	// LockWait is how long to wait for another program that changes iptables
	// rules. Zero: 5 seconds. Whole seconds count.
	LockWait time.Duration
	// IPTablesVariant is "nft" or "legacy" for iptables-nft or
	// iptables-legacy. Empty: the one that this node already uses.
	IPTablesVariant string
}

// without reports whether a family is left alone.
func (o Options) without(family Family) bool {
	return family == IPv4 && o.NoIPv4 || family == IPv6 && o.NoIPv6
}

// withDefaults fills in what is zero.
func (o Options) withDefaults() Options {
	if o.Log == nil {
		silent := logrus.New()
		silent.SetOutput(io.Discard)
		o.Log = silent
	}
	if o.LockWait <= 0 {
		o.LockWait = 5 * time.Second
	}
	o.NodePortAddresses = plainPrefixes(o.NodePortAddresses)
	o.LockWait = max(o.LockWait.Truncate(time.Second), time.Second)
	return o
}

// mode is one way to make a portal. open proves that the way works here, by
// doing and undoing a small change, and leaves nothing behind.
type mode struct {
	name string
	open func(context.Context, Options) (Portal, error)
}

// Modes returns the names that New takes.
func Modes() []string {
	names := []string{ModeAuto}
	for _, m := range modes {
		names = append(names, m.name)
	}
	return names
}

// New makes the portal called mode, after trying for real whether it works
// here. [ModeAuto] takes the first mode that does, in the order of [Modes],
// and logs why it passed over the others. Nothing stays changed before the
// first Apply.
//
// On Linux the portal acts on the network namespace of the calling thread.
func New(ctx context.Context, mode string, opts Options) (Portal, error) {
	opts = opts.withDefaults()
	if r := opts.ProxyPorts; !r.isZero() && (r.First == 0 || r.First > r.Last) {
		return nil, fmt.Errorf("portal: the port range %d-%d is empty or begins at 0", r.First, r.Last)
	}
	for _, m := range modes {
		if m.name == mode {
			p, err := m.open(ctx, opts)
			if err != nil {
				return nil, fmt.Errorf("portal %s does not work here: %w", mode, err)
			}
			return p, nil
		}
	}
	if mode != ModeAuto {
		return nil, fmt.Errorf("there is no portal called %q; there are %s", mode, strings.Join(Modes(), ", "))
	}
	return first(ctx, modes, opts)
}

// first returns the first of the modes that opens.
func first(ctx context.Context, modes []mode, opts Options) (Portal, error) {
	var passedOver []error
	for _, m := range modes {
		p, err := m.open(ctx, opts)
		if err == nil {
			opts.Log.WithField("portal", m.name).Info("portal chosen")
			return p, nil
		}
		if ctx.Err() != nil {
			return nil, fmt.Errorf("choosing a portal: %w", ctx.Err())
		}
		opts.Log.WithField("portal", m.name).WithError(err).Info("portal passed over")
		passedOver = append(passedOver, fmt.Errorf("%s: %w", m.name, err))
	}
	return nil, fmt.Errorf("no portal works here: %w", errors.Join(passedOver...))
}
