package portal

import "net/netip"

// Origin is the address from which usher connects to an endpoint for a client, and so the address that the endpoint
// sees.
type Origin struct {
	// Bind is the address to which usher binds a transparent socket (IP_TRANSPARENT, ip(7)). It need not be an address
	// of the node: it is the client's own, or an alias that the portal translates to the client's on the way. If Bind
	// is not valid, the kernel picks an address of the node.
	//
	// The portal chooses Bind's port outside the range from which hosts choose ports for their own connections, or 0
	// for any port. If it is taken, usher uses any other.
	Bind          netip.AddrPort
	SourceAddress SourceAddress
	// Here says that the endpoint is known to be on this node.
	Here bool
}

// EndpointLocality says on which node an endpoint is.
type EndpointLocality uint8

const (
	Unknown EndpointLocality = iota
	Here
	Elsewhere
)

// SourceAddress says which source address an endpoint sees for a connection or datagram: the client's own or the
// node's. If it is the node's, it also says why.
type SourceAddress uint8

// The addresses that an endpoint sees. Zero is undecided: usher has not connected to the endpoint yet, or the client is
// not known.
const (
	SourceClient SourceAddress = iota + 1
	// With all others, the endpoint sees the node's address.
	SourceConfigured
	SourceOwnProcess
	SourceItself
	SourceElsewhere
	SourceSameBridge
	SourceNoAlias
	SourcePortal
	SourceKernel
	SourceNotReady
	SourceFamily
	SourceHeader
	SourceTunnel
	SourceSCTP
)

var sourceAddresses = [...]struct{ name, why string }{
	{},
	SourceClient:     {"client", "replies return through this node"},
	SourceConfigured: {"node-configured", "--client-address or the annotation usher.io/client-address is set to node"},
	SourceOwnProcess: {"node-itself", "the client is a process of this node"},
	SourceItself:     {"node-hairpin", "the client is the endpoint itself, and its kernel drops packets from its own address"},
	SourceElsewhere:  {"node-elsewhere", "neither client nor endpoint is known to be on this node, so replies may take another path"},
	SourceSameBridge: {"node-same-bridge", "client and endpoint are behind the same interface, so replies bypass netfilter (for a bridge, see net.bridge.bridge-nf-call-iptables and -ip6tables)"},
	SourceNoAlias:    {"node-no-alias", "client and endpoint are on one bridge, and usher has no alias of the client's address: the kernel cannot translate network prefixes, or --client-aliases has no free range"},
	SourcePortal:     {"node-portal", "only the iptables and nftables portals can route replies back"},
	SourceKernel:     {"node-kernel", "the kernel or iptables lacks a feature needed to route replies back, or --mark is 0; see the log"},
	SourceNotReady:   {"node-not-ready", "the portal has not installed its rules yet, or does not know the interface yet"},
	SourceFamily:     {"node-family", "the client's address has another IP family than the endpoint's, or is valid only within one network"},
	SourceHeader:     {"node-header", "only a load balancer's header names the client, and --load-balancer-cidr does not include that load balancer"},
	SourceTunnel:     {"node-tunnel", "the endpoint is reached through the API server"},
	SourceSCTP:       {"node-sctp", "the kernel's SCTP cannot use an address that the node does not have"},
}

// SourceAddressCount is the number of SourceAddress values, zero included.
const SourceAddressCount = len(sourceAddresses)

// IsClient reports whether it is the client's own address.
func (s SourceAddress) IsClient() bool { return s == SourceClient }

// String returns the name in metrics and the API: "client", or "node-" and a reason; empty if undecided.
func (s SourceAddress) String() string { return sourceAddresses[s].name }

// Why returns the reason, as a clause that can follow "because".
func (s SourceAddress) Why() string { return sourceAddresses[s].why }

// Text returns the address and the reason, in words that can follow "the endpoint sees"; empty if undecided.
func (s SourceAddress) Text() string {
	switch {
	case s == 0:
		return ""
	case s.IsClient():
		return "its client's own address, because " + s.Why()
	}
	return "this node's address, because " + s.Why()
}
