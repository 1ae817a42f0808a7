package portal

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
)

// Portal is one way to bring packets for a VIP to a local listener. Its methods are safe for concurrent use. Apply,
// Check and similar methods wait for each other; Origin does not wait.
type Portal interface {
	// Mode returns the name that selects the portal: "iptables", "nftables", "address" or "none".
	Mode() string

	// Traits returns the traits of the mode.
	Traits() Traits

	// Mark returns the mark of packets sent on this node (SO_MARK) that the portal leaves alone, wherever they go:
	// Options.Mark, or 0 if the portal ignores marks.
	Mark() uint32

	// Origin returns the address from which to connect to an endpoint for a client, so that the endpoint sees the
	// client's own address where possible. The parameter where says on which node the endpoint is; if it is Unknown,
	// the portal recognizes this node's Pods by Settings.LocalSources and Options.PodInterfaces. A socket bound to the
	// Origin must have the Mark.
	//
	// If client is the zero Addr, the result is for all clients. SourceAddress then applies to every endpoint of the IP
	// family, or is 0 if it depends on the client. With 0, Here is set unless the endpoint is known to be elsewhere.
	// Many goroutines call Origin at the same time; it waits for no other method.
	Origin(client, endpoint netip.Addr, where EndpointLocality) Origin

	// Listen returns where the listeners for the targets of one service port have to be. service is the Service's name,
	// "namespace/name". Each target is in exactly one Bind. In mode address, there are three exceptions: node ports of
	// SCTP, or with the port of a VIP, and, if NodePortAddresses is not empty, all node ports. These have a Bind for
	// each address of the node that serves node ports. Listen changes nothing, except that mode address makes VIPs local
	// where no socket can be bound to them otherwise.
	Listen(service string, targets []Target) []Bind

	// Apply installs or replaces the rules in set and removes those for the targets in gone, in one transaction if the
	// kernel supports that. The first call also removes rules of an earlier process that are not in set. Rules that
	// stay are never missing in between.
	//
	// Whatever the Result, valid rules remain wanted: Check tries again.
	Apply(ctx context.Context, set []Rule, gone []Target) Result

	// Set changes the Settings: it calls the function change with them. New Settings take effect with the next call of
	// Check or Apply, even one without rules.
	Set(change func(*Settings))

	// Check reads the kernel's state, unless it is known, compares it with the wanted rules, and repairs it. Its Result
	// covers all wanted rules.
	Check(ctx context.Context) Result

	// Compare compares the wanted rules with those that portals of any mode, of this or another process, have
	// installed. It changes nothing. Rules that change meanwhile may count as missing or extra. Comments of wanted
	// rules are as passed to Apply, except for characters that no kernel accepts.
	Compare(ctx context.Context) ([]Comparison, error)

	// Remove removes everything that this mode ever installs, whichever process installed it, and nothing else.
	// Connections through the portal may end.
	Remove(ctx context.Context) error
}

// Watcher is a Portal that the kernel notifies when another program changes the installed rules.
type Watcher interface {
	// Watch returns a channel that receives a value within about 0.6 s after another program has changed something:
	// Check is then due. One value may stand for several changes. The channel is closed soon after ctx ends, when all
	// its resources have been released. Changes without a kernel notification, as with the legacy variant of iptables,
	// are left to periodic Checks.
	Watch(ctx context.Context) (<-chan struct{}, error)
}

// PartsComparer is a Portal that has more in the kernel than rules for targets.
type PartsComparer interface {
	// CompareParts is like Compare, for the parts that serve all targets together.
	CompareParts(ctx context.Context) ([]Part, error)
}

// Withdrawer is a Portal that can remove its rules while connections made through them continue.
type Withdrawer interface {
	// Withdraw removes all applied rules, except the parts that open connections need. Nothing may be applied
	// afterwards; Remove removes the rest.
	Withdraw(ctx context.Context) error
}

// Resumer is a Portal that looks for leftovers of other modes until a search has succeeded; see Others.
type Resumer interface {
	// Resume makes the next Check look for leftovers again. It is called when this process continues after a failed
	// handover: the successor may have had another mode, and left rules.
	Resume()
}

// Settings are inputs that change while a Portal exists. A portal without rules in the kernel ignores most of them.
type Settings struct {
	// LocalSources are networks that contain this node's Pods, initially none; see Drop. They may include Pods of other
	// nodes.
	LocalSources []netip.Prefix
	// NodePortAddresses are initially those of Options. After a change, listeners have to be where Listen says.
	NodePortAddresses []netip.Prefix
	// ServiceCIDRs are the cluster's service CIDRs, initially none. A new connection to an address in them is rejected
	// if there is no rule for its address and port.
	ServiceCIDRs []netip.Prefix
	// HealthChecks are the sorted health check node ports, initially none: rules of mode iptables accept TCP
	// connections to them, even if later rules drop these.
	HealthChecks []uint16
}

// Set changes s, and makes its networks plain; see PlainPrefixes.
func (s *Settings) Set(change func(*Settings)) {
	change(s)
	for _, networks := range []*[]netip.Prefix{&s.LocalSources, &s.NodePortAddresses, &s.ServiceCIDRs} {
		*networks = PlainPrefixes(*networks)
	}
}

// Plain has the methods of a Portal that needs no rules. Portals embed it, and override some.
type Plain struct{}

// Mark returns 0: packets, marked or not, go to the socket that listens at their destination.
func (Plain) Mark() uint32 { return 0 }

// Origin returns the node: without rules, answers to other addresses do not return to usher.
func (Plain) Origin(netip.Addr, netip.Addr, EndpointLocality) Origin {
	return Origin{SourceAddress: SourcePortal}
}

// Set does nothing.
func (Plain) Set(func(*Settings)) {}

// Check does nothing.
func (Plain) Check(context.Context) Result { return Result{} }

// Compare returns nothing: reading leftovers of other modes needs privileges that this portal may not have.
func (Plain) Compare(context.Context) ([]Comparison, error) { return nil, nil }

// Remove does nothing.
func (Plain) Remove(context.Context) error { return nil }

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

// Target is a destination of client packets. It identifies a rule: there is at most one for a Target.
type Target struct {
	Protocol Protocol
	// Addr is the VIP. The unspecified address of a family stands for every address of this node in that family (a node
	// port).
	Addr netip.Addr
	Port uint16
}

// String returns "address:port/protocol".
func (t Target) String() string {
	return fmt.Sprintf("%s/%s", netip.AddrPortFrom(t.Addr, t.Port), t.Protocol)
}

// Compare orders targets by address, protocol and port, so that the targets of one VIP, and of VIPs that share a
// prefix, are adjacent. Within an IP family, node ports come first.
func (t Target) Compare(other Target) int {
	return cmp.Or(
		t.Addr.Compare(other.Addr),
		cmp.Compare(t.Protocol, other.Protocol),
		cmp.Compare(t.Port, other.Port),
	)
}

// Rule describes the handling of packets for a Target.
type Rule struct {
	Target Target
	Action Action
	// LocalPort is the port of the listener, for Redirect. With Drop it may be the port to which clients on this node
	// are still redirected.
	LocalPort uint16
	// Sources are the clients that may connect; packets from all others, even from this node, are dropped. A portal
	// without netfilter leaves this to the listener, which should check in any case.
	Sources Sources
	// Sole says that the address belongs to one Service and nothing else, as a cluster IP does. For such an address,
	// some portals reject packets to ports that have no rule.
	Sole bool
	// Comment describes the rule's purpose for people, such as "default/web:http".
	Comment string
}

// Action is the effect of a Rule.
type Action uint8

const (
	// Redirect sends packets to the local listener.
	Redirect Action = iota
	// Reject answers as a host without a listener does: with a reset for TCP, an abort for SCTP, ICMP port unreachable
	// for UDP.
	Reject
	// Drop silently drops new connections, also from this node's own processes; open connections continue. If LocalPort
	// is set, clients on this node are redirected instead. These are its processes and its Pods: sources in the
	// networks of Settings.LocalSources, and packets from an interface of Options.PodInterfaces. A portal without
	// netfilter cannot drop: it rejects if there is no listener.
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

// Bind is a listener that a portal wants for some targets of a service port, which are all of one address family and
// protocol.
type Bind struct {
	// Addr is where to listen. Port 0 means any free port that the user allows. Addr need not be an address of this
	// node yet: the listener sets IP_FREEBIND.
	Addr netip.AddrPort
	// Preferred says that another port is acceptable if Addr's is unavailable.
	Preferred bool
	// Redirected says that connections arrive with a destination that is not their original one. The listener must look
	// that up (OriginalDst) and refuse connections that did not come through a portal. A UDP listener must answer from
	// the address at which a datagram arrived (IP_PKTINFO): otherwise, the kernel does not restore the VIP as the
	// answer's source.
	Redirected bool
	// Transparent says that the listener's socket has to be transparent (IP_TRANSPARENT, ip(7)): the portal's rules
	// drop packets redirected to any other socket.
	Transparent bool
	// Targets are the targets that this listener serves.
	Targets []Target
}

// Result is the outcome of Apply or Check. The zero Result: all is as wanted.
type Result struct {
	// Refused says why the kernel does not hold the rules for these targets. All others are installed, unless Err is
	// set.
	Refused map[Target]error
	// Moved are targets whose listeners have to move, since this node's addresses have changed: call Listen again for
	// all targets of their service ports.
	Moved []Target
	// Repaired names the rules, routes and chains that other programs had removed or changed.
	Repaired []string
	// Err, if not nil, is why the kernel's state is uncertain. Unaffected is true for each family whose state is
	// certain.
	Err        error
	Unaffected [len(Families)]bool
}

// ErrNotRedirected is the error of OriginalDst for a connection made directly to the listener.
var ErrNotRedirected = errors.New("the connection did not come through a portal")
