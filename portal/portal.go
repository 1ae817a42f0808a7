package portal

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
)

// Portal is one way to bring what is sent to a VIP to a local listener. Its
// methods may be called from any goroutine; one call waits for another.
type Portal interface {
	// Mode returns the name under which the portal is chosen: "iptables",
	// "nftables", "address" or "none".
	Mode() string

	// Traits returns what has to be known of the mode.
	Traits() Traits

	// Mark returns the mark of the packets that the portal leaves alone, wherever
	// they go, if they are sent on this node (SO_MARK): Options.Mark, or 0 where it
	// looks at none.
	Mark() uint32

	// Origin says from where to connect to an endpoint for a client, so that the
	// endpoint sees the client's own address where that can be. Of endpoints
	// whose whereabouts are not known the portal knows this node's Pods, from
	// SetLocalSources and Options.PodInterfaces. What is bound to the Origin must have the Mark. For
	// the zero client it says whom all clients' endpoints of that family see; zero: it
	// depends on the client. It is asked for each connection, from many goroutines, and waits for no other method.
	Origin(client, endpoint netip.Addr, where Whereabouts) Origin

	// Listen says where the listeners have to be for the targets of one
	// service port. service is the Service's name, "namespace/name". Each target is in exactly one of the Binds, except for node
	// ports in mode address: those of SCTP, and with Options.NodePortAddresses
	// all, have a Bind for each address. It changes nothing, except that mode address makes
	// VIPs local where no socket can be bound to them otherwise.
	Listen(service string, targets []Target) []Bind

	// Apply puts in or replaces the rules in set, and takes out those for the
	// targets in gone, in one transaction where the kernel has them. The first
	// call also takes out what an earlier process left and set does not hold,
	// without a moment in which a rule that stays is missing.
	//
	// Whatever the Result says, the rules are still wanted: Check tries again.
	Apply(ctx context.Context, set []Rule, gone []Target) Result

	// SetLocalSources says which networks this node's Pods are in, none at
	// first; see Drop. It takes effect with the next Apply, which may be one
	// without rules, or Check.
	SetLocalSources(pods []netip.Prefix)

	// SetNodePortAddresses replaces Options.NodePortAddresses. It takes effect as
	// SetLocalSources does; listeners have to be where Listen says afterwards.
	SetNodePortAddresses(within []netip.Prefix)

	// Check compares what the kernel holds, unless that is known, with what is wanted, and repairs
	// it. Its Result covers all rules that are wanted.
	Check(ctx context.Context) Result

	// Compare compares what is wanted with what portals of any mode, of this or
	// another process, have installed, and changes nothing. What is changed
	// while it looks may count as missing or extra. The comments of wanted rules
	// are as they were given to Apply, but for what no kernel takes.
	Compare(ctx context.Context) ([]Comparison, error)

	// Remove takes out everything that this mode ever puts in, whichever
	// process did, and nothing that others put in. Connections that came
	// through the portal may end with it.
	Remove(ctx context.Context) error
}

// Watcher is a Portal to which the kernel tells when somebody changes what it
// has installed.
type Watcher interface {
	// Watch returns a channel on which it tells, within half a second, that
	// others have changed something, so that Check is due. Several changes may
	// be one. The channel is closed soon after ctx ends, when all that
	// belongs to it has been released. Changes of which the kernel
	// tells nothing, as with the legacy variant of iptables, are left to Checks
	// from time to time.
	Watch(ctx context.Context) (<-chan struct{}, error)
}

// PartsComparer is a Portal that has more in the kernel than rules for targets.
type PartsComparer interface {
	// CompareParts is as Compare, for what there is for all targets together.
	CompareParts(ctx context.Context) ([]Part, error)
}

// Withdrawer is a Portal whose rules can go while connections that came by them go on.
type Withdrawer interface {
	// Withdraw takes out all rules that were applied, and leaves what connections that are
	// open need. Nothing may be applied afterwards; Remove takes out the rest.
	Withdraw(ctx context.Context) error
}

// ServiceCIDRRejecter is a Portal that rejects new connections to addresses and ports of the
// cluster's service CIDRs that no rule redirects.
type ServiceCIDRRejecter interface {
	// SetServiceCIDRs replaces the service CIDRs; there are none at first. It takes effect as
	// SetNodePortAddresses does.
	SetServiceCIDRs(cidrs []netip.Prefix)
}

// HealthCheckAccepter is a Portal whose rules may let in TCP connections to health check node ports,
// whatever a host firewall drops.
type HealthCheckAccepter interface {
	// SetHealthChecks replaces the ports, which are sorted; there are none at first. It takes effect as
	// SetNodePortAddresses does.
	SetHealthChecks(ports []uint16)
}

// Protocol is a transport protocol, by its IP protocol number.
type Protocol uint8

// The protocols that a portal can carry.
const (
	TCP  Protocol = 6
	UDP  Protocol = 17
	SCTP Protocol = 132
)

// String returns the name that /etc/protocols and iptables use.
func (p Protocol) String() string {
	switch p {
	case TCP:
		return "tcp"
	case UDP:
		return "udp"
	case SCTP:
		return "sctp"
	}
	return fmt.Sprintf("protocol %d", uint8(p))
}

// Target is a place that clients send to. It identifies a rule: there is at
// most one for a Target.
type Target struct {
	Protocol Protocol
	// Addr is the VIP. The unspecified address of a family stands for every
	// address of this node in that family (a node port).
	Addr netip.Addr
	Port uint16
}

// String returns "address:port/protocol".
func (t Target) String() string {
	return fmt.Sprintf("%s/%s", netip.AddrPortFrom(t.Addr, t.Port), t.Protocol)
}

// Compare orders targets by address, protocol and port, so that those of one
// VIP, and of VIPs that share a prefix, stand together; node ports come first.
func (t Target) Compare(other Target) int {
	return cmp.Or(
		t.Addr.Compare(other.Addr),
		cmp.Compare(t.Protocol, other.Protocol),
		cmp.Compare(t.Port, other.Port),
	)
}

// Rule says what happens to packets for a Target.
type Rule struct {
	Target Target
	Action Action
	// LocalPort is the port of the listener, for Redirect. With Drop it may be
	// the port to which clients of this node are redirected all the same.
	LocalPort uint16
	// Sources are the clients that may connect; what others send vanishes,
	// wherever they are. A portal without netfilter leaves that to the
	// listener, which does well to look in any case.
	Sources Sources
	// Sole says that the address is that of one Service and nothing else, as a cluster IP is: a portal
	// that can tell rejects what is sent to ports of it that have no rule.
	Sole bool
	// Comment tells people what the rule is for, such as "default/web:http".
	Comment string
}

// Action is what a Rule does.
type Action uint8

// The actions.
const (
	// Redirect brings packets to the local listener.
	Redirect Action = iota
	// Reject answers as a host does where nobody listens: with a reset to TCP,
	// an abort to SCTP, ICMP port unreachable to UDP.
	Reject
	// Drop lets new connections vanish, those of this node's own processes
	// too; connections in flight go on. If LocalPort is set, clients of this
	// node are redirected instead: its processes, and its Pods, which are those
	// in the networks given to SetLocalSources, and what comes in by one of
	// Options.PodInterfaces. A portal without netfilter cannot drop: where nobody listens, it rejects.
	Drop
)

// String returns "redirect", "reject" or "drop".
func (a Action) String() string {
	switch a {
	case Redirect:
		return "redirect"
	case Reject:
		return "reject"
	case Drop:
		return "drop"
	}
	return fmt.Sprintf("action %d", uint8(a))
}

// Bind is a listener that a portal wants for some targets of a service port,
// which are all of one address family and protocol.
type Bind struct {
	// Addr is where to listen. Port 0 means any free port. Addr need not be an
	// address of this node yet: the listener sets IP_FREEBIND.
	Addr netip.AddrPort
	// Preferred says that another port will do if Addr's cannot be had.
	Preferred bool
	// Redirected says that connections arrive with another destination than
	// their original one: the listener must look that up (OriginalDst) and
	// refuse who did not come through a portal. A UDP listener must answer
	// from the address that a datagram arrived at (IP_PKTINFO): an answer from
	// another address of this node is not led back to the client.
	Redirected bool
	// Transparent says that the listener's socket has to be transparent (IP_TRANSPARENT,
	// ip(7)): the portal's rules drop what is redirected to any other.
	Transparent bool
	// Namespace is where the listener's sockets have to be made; nil is the network
	// namespace that endpoints are reached from.
	Namespace Namespace
	// Targets are those that this listener serves.
	Targets []Target
}

// Namespace is a network namespace of a portal's own. Two are the same if they are equal.
type Namespace interface {
	// Socket makes a socket in it, as socket(2) does.
	Socket(domain, kind, protocol int) (fd int, err error)
}

// Settler is a Portal that may have such a namespace. It is gone with the last who has its
// descriptor or one of its sockets, so a successor is given it with the listeners.
type Settler interface {
	// Namespace returns a descriptor of the namespace, which the caller closes; nil if
	// there is none.
	Namespace() *os.File
	// Settle makes the portal use the namespace of a predecessor, whose descriptor it
	// closes. It is called before the first Listen.
	Settle(*os.File)
}

// Result is what Apply or Check has achieved. The zero Result: all is as wanted.
type Result struct {
	// Refused says why the kernel does not hold the rules for these targets. All others are in.
	Refused map[Target]error
	// Moved are targets whose listeners have to be elsewhere, since this node's addresses have
	// changed: call Listen again for all targets of their service ports.
	Moved []Target
	// Repaired names the rules, routes and chains that others had removed or changed.
	Repaired []string
	// Err, if not nil, is why it is not certain what the kernel holds; Unaffected are the
	// families that it does not concern.
	Err        error
	Unaffected [len(Families)]bool
}

// ErrNotRedirected is what OriginalDst returns for a connection that came
// straight to the listener.
var ErrNotRedirected = errors.New("the connection did not come through a portal")
