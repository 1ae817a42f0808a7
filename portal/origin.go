package portal

import "net/netip"

// Origin says from where usher connects to an endpoint for a client, and so whom the
// endpoint sees.
type Origin struct {
	// Bind is the address that the socket is bound to as a transparent one
	// (IP_TRANSPARENT, ip(7)), which the node need not have: the client's own, or one
	// that the portal translates to that on the way. If it is not valid, the kernel
	// picks an address of the node.
	//
	// The port is one that the client's host does not choose for its own connections to
	// the endpoint; 0, and where it is taken, is any.
	Bind netip.AddrPort
	Seen Seen
	// Here says that the endpoint is known to be on this node.
	Here bool
}

// Whereabouts tell on which node an endpoint is.
type Whereabouts uint8

// The whereabouts.
const (
	Unknown Whereabouts = iota
	Here
	Elsewhere
)

// Seen is the address that an endpoint sees a connection or datagram come from: the
// client's own, or the node's, for a reason.
type Seen uint8

// Whom an endpoint sees. Zero is not decided: nobody has connected to it yet.
const (
	SeenClient Seen = iota + 1
	// All others are the node.
	SeenConfigured
	SeenOwnProcess
	SeenItself
	SeenElsewhere
	SeenNeighbours
	SeenNoAlias
	SeenPortal
	SeenKernel
	SeenUnready
	SeenFamily
	SeenHeader
	SeenTunnel
	SeenSCTP
)

var seen = [...]struct{ name, why string }{
	{},
	SeenClient:     {"client", "replies return through this node"},
	SeenConfigured: {"node-configured", "--client-address or the annotation usher.io/client-address is set to node"},
	SeenOwnProcess: {"node-itself", "the client is a process of this node"},
	SeenItself:     {"node-hairpin", "the client is the endpoint itself, and its kernel drops packets from its own address"},
	SeenElsewhere:  {"node-elsewhere", "neither client nor endpoint is known to be on this node, so replies may take another path"},
	SeenNeighbours: {"node-same-bridge", "client and endpoint are behind the same interface, so replies bypass netfilter (for a bridge, see net.bridge.bridge-nf-call-iptables and -ip6tables)"},
	SeenNoAlias:    {"node-no-alias", "client and endpoint are on one bridge, and the kernel cannot translate prefixes for its network, or --client-aliases has no free range"},
	SeenPortal:     {"node-portal", "only the iptables and nftables portals can route replies back"},
	SeenKernel:     {"node-kernel", "the kernel or iptables lacks a feature needed to route replies back, or --mark is 0; see the log"},
	SeenUnready:    {"node-not-ready", "the portal has not installed its rules yet, or does not know the interface yet"},
	SeenFamily:     {"node-family", "the client's address has another IP family than the endpoint's, or is valid only within one network"},
	SeenHeader:     {"node-header", "only a load balancer's header names the client, and --load-balancer-cidr does not include that load balancer"},
	SeenTunnel:     {"node-tunnel", "the endpoint is reached through the API server"},
	SeenSCTP:       {"node-sctp", "the kernel's SCTP cannot use an address that the node does not have"},
}

// Seens is how many Seen there are, zero among them.
const Seens = len(seen)

// Client reports whether it is the client's own address.
func (s Seen) Client() bool { return s == SeenClient }

// String returns the name that metrics and the API use: "client", or "node-" and a
// reason; empty if it is not decided.
func (s Seen) String() string { return seen[s].name }

// Why tells people why, as a clause that can follow "because".
func (s Seen) Why() string { return seen[s].why }

// Text tells people whom and why, in words that can follow "the endpoint sees"; empty if
// it is not decided.
func (s Seen) Text() string {
	switch {
	case s == 0:
		return ""
	case s.Client():
		return "its client's own address, because " + s.Why()
	}
	return "this node's address, because " + s.Why()
}
