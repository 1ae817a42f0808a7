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
	SeenClient:     {"client", "the answer comes back through this node"},
	SeenConfigured: {"node-configured", "--client-address or the Service's annotation usher.io/client-address says node"},
	SeenOwnProcess: {"node-itself", "the client is a process of this node"},
	SeenItself:     {"node-hairpin", "the client is the endpoint itself, whose kernel drops what comes from its own address"},
	SeenElsewhere:  {"node-elsewhere", "neither client nor endpoint is known to be on this node, so the answer need not come back through it"},
	SeenNeighbours: {"node-same-bridge", "client and endpoint are behind the same interface, and answer each other without netfilter seeing it (for a bridge see net.bridge.bridge-nf-call-iptables and -ip6tables)"},
	SeenNoAlias:    {"node-no-alias", "client and endpoint are on one bridge, for whose network the kernel has no translation of prefixes, or --client-aliases no room"},
	SeenPortal:     {"node-portal", "only the portals iptables and nftables can lead the answers back"},
	SeenKernel:     {"node-kernel", "the kernel or iptables lacks what leads the answers back, or --mark is 0; the log says what"},
	SeenUnready:    {"node-not-ready", "the portal has installed nothing yet, or does not know the interface yet"},
	SeenFamily:     {"node-family", "the client's address is of another IP family than the endpoint's, or one that no packet can be from beyond one network"},
	SeenHeader:     {"node-header", "the client is known by a load balancer's header only, and --load-balancer-cidr does not name that load balancer"},
	SeenTunnel:     {"node-tunnel", "the endpoint is reached through the API server"},
	SeenSCTP:       {"node-sctp", "the kernel's SCTP takes no address that the node does not have"},
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
