package redirect

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/sirupsen/logrus"

	"github.com/usherproxy/usher/portal"
)

// Setting holds the inputs of the kernel's rules in addition to portal.Rules. A backend determines what the kernel
// supports; its caller keeps the rest up to date.
type Setting struct {
	// Comment says that the match is available. In nftables it always is.
	Comment bool
	// RedirectAddr is the new destination of packets; if it is invalid, the kernel selects an address of their incoming
	// interface.
	RedirectAddr netip.Addr
	// If a flag disables the redirect address, NoRedirectAddr says why and what to set instead, and Instead is the flag
	// to set. Otherwise both are empty.
	NoRedirectAddr, Instead string
	// NoPort0 says that iptables rejects DNAT to port 0 (before 1.8.8). Rejected targets then use REDIRECT to
	// RejectPort.
	NoPort0 bool
	// NodePorts are the networks of the addresses that have node ports; none means all addresses.
	NodePorts []netip.Prefix
	// Pods are the networks of this node's Pods, and PodInterfaces are as in Options. Single Pod addresses would need a
	// rule each; an interface needs one for all Pods behind it, and exists before its first Pod sends a packet.
	Pods          []netip.Prefix
	PodInterfaces portal.Interfaces
	// Mark is Options.Mark, or 0 if the match is missing.
	Mark uint32
	// OwnOnly says that rules let only transparent sockets, which are usher's, receive TCP and UDP packets redirected
	// to the redirect address. A transparent socket requires CAP_NET_ADMIN or CAP_NET_RAW. So while no usher process
	// listens, no unprivileged process can answer in its place; clients wait.
	OwnOnly bool
	// HealthChecks are the health check node ports. Rules in INPUT accept packets to them and redirected packets.
	// NoAccept says that the kernel refuses these rules.
	HealthChecks []uint16
	NoAccept     bool
	// Answers says that rules can mark replies to clients' own addresses. NoAliases says that rules cannot translate
	// Aliases. See Portal.Origin.
	Answers, NoAliases bool
	Aliases            []Alias
	// ServiceCIDRs are the networks of cluster IPs. Filter rules, which follow the redirects of all proxies on the
	// node, reject new connections to them that were not redirected. NoReject says that rules cannot reject.
	ServiceCIDRs []netip.Prefix
	NoReject     bool
}

// RejectPort is the local port of rejected targets.
const RejectPort = 0

// Match matches packets by source and destination.
type Match struct {
	Src, Dst           netip.Prefix      // the zero prefix is every address
	In                 portal.Interfaces // the zero value is every interface
	SrcLocal, DstLocal bool              // an address of this node
}

// Insiders matches packets from this node and its Pods.
func (at Setting) Insiders(family portal.Family) (sources []Match) {
	sources = []Match{{SrcLocal: true}}
	if at.PodInterfaces != "" {
		sources = append(sources, Match{In: at.PodInterfaces})
	}
	return append(sources, FromEach(family.Of(at.Pods))...)
}

// NodeAddresses matches packets for the addresses that have node ports.
func (at Setting) NodeAddresses(family portal.Family) (these []Match) {
	within := family.Of(at.NodePorts)
	if len(at.NodePorts) == 0 {
		within = []netip.Prefix{netip.PrefixFrom(family.Any(), 0)}
	}
	for _, p := range within {
		these = append(these, Match{Dst: orEverywhere(p), DstLocal: true})
	}
	return these
}

// GiveUpReject records that rules cannot reject, and logs the reason.
func (at *Setting) GiveUpReject(log logrus.FieldLogger, err error) {
	at.NoReject = true
	log.WithError(err).Info("Packets to unused addresses of the service CIDRs are not rejected")
}

// FromEach matches packets from one of the networks.
func FromEach(networks []netip.Prefix) (sources []Match) {
	for _, n := range networks {
		sources = append(sources, Match{Src: orEverywhere(n)})
	}
	return sources
}

// orEverywhere returns p for use in a Match: the zero prefix if p contains every address.
func orEverywhere(p netip.Prefix) netip.Prefix {
	if p.Bits() == 0 {
		return netip.Prefix{}
	}
	return p
}

// Joined returns rules in one line.
func Joined[R fmt.Stringer](rules []R) string {
	var all []string
	for _, r := range rules {
		all = append(all, r.String())
	}
	return strings.Join(all, "; ")
}

// PrefixWord returns p as a part of a chain's name, in which nft allows no colon.
func PrefixWord(p netip.Prefix) string {
	return strings.NewReplacer(":", "_", "/", "-").Replace(p.String())
}

// PlainComment makes text safe in a quoted argument of iptables-restore and stable in the output of iptables-save. It
// replaces each character that iptables might escape with an underscore. It keeps at most 255 bytes, as the kernel does
// (XT_MAX_COMMENT_LEN is 256).
func PlainComment(text string) string {
	plain := func(r rune) rune {
		switch {
		case 'a' <= r && r <= 'z', 'A' <= r && r <= 'Z', '0' <= r && r <= '9',
			strings.ContainsRune(" -_./:,()[]", r):
			return r
		}
		return '_'
	}
	text = strings.TrimSpace(strings.Map(plain, text))
	if len(text) > 255 {
		text = strings.TrimSpace(text[:255])
	}
	return text
}
