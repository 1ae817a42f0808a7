package portal

import (
	"net/netip"
	"strings"
)

// setting is what rules depend on beside what is wanted. A backend finds out what the
// kernel has; the rest is kept up to date for it.
type setting struct {
	// comment and addrtype are matches that may be missing; in nftables the
	// latter is called fib, and comments are never missing.
	comment, addrtype bool
	// landing is where packets go; if it is invalid, the kernel decides: an address
	// of the interface that they come in by.
	landing netip.Addr
	// noPort0 says that rules take no port 0 with the landing.
	noPort0 bool
	// local are the node's own addresses, for where addrtype is missing.
	local []netip.Prefix
	// nodePorts are the networks of the addresses that have node ports; none
	// is all of them.
	nodePorts []netip.Prefix
	// pods are the networks of this node's Pods, and podInterfaces are as in
	// Options. Addresses of single Pods would be a rule for each; an interface is
	// one whatever is behind it, and there before its first Pod sends anything.
	pods          []netip.Prefix
	podInterfaces Interfaces
	// mark is Options.Mark, or 0 where the match is missing.
	mark uint32
}

// rejectPort is the local port of rejected targets.
const rejectPort = 0

// match tells packets by where they come from and go to.
type match struct {
	src, dst           netip.Prefix // the zero prefix is every address
	in                 Interfaces   // none is every interface
	srcLocal, dstLocal bool         // an address of this node
}

// insiders matches what comes from this node and its Pods.
func (at setting) insiders(family Family) (sources []match) {
	if at.addrtype {
		sources = append(sources, match{srcLocal: true})
	} else {
		sources = fromEach(at.local)
	}
	if at.podInterfaces != "" {
		sources = append(sources, match{in: at.podInterfaces})
	}
	return append(sources, fromEach(family.of(at.pods))...)
}

// nodeAddresses matches packets for the addresses that have node ports.
func (at setting) nodeAddresses(family Family) (these []match) {
	within := family.of(at.nodePorts)
	if len(at.nodePorts) == 0 {
		within = []netip.Prefix{netip.PrefixFrom(family.Any(), 0)}
	}
	if at.addrtype {
		for _, p := range within {
			these = append(these, match{dst: orEverywhere(p), dstLocal: true})
		}
		return these
	}
	for _, p := range intersections(at.local, within) {
		these = append(these, match{dst: p})
	}
	return these
}

// fromEach matches what comes from one of the networks.
func fromEach(networks []netip.Prefix) (sources []match) {
	for _, n := range networks {
		sources = append(sources, match{src: orEverywhere(n)})
	}
	return sources
}

// intersections returns the prefixes that are in one of a and in one of b.
func intersections(a, b []netip.Prefix) []netip.Prefix {
	var both []netip.Prefix
	for _, p := range a {
		for _, q := range b {
			switch {
			case !p.Overlaps(q):
			case p.Bits() > q.Bits():
				both = append(both, p)
			default:
				both = append(both, q)
			}
		}
	}
	return plainPrefixes(both)
}

// orEverywhere returns p as a match has it.
func orEverywhere(p netip.Prefix) netip.Prefix {
	if p.Bits() == 0 {
		return netip.Prefix{}
	}
	return p
}

// prefixWord returns p as a part of a chain's name: nft takes no colon there.
func prefixWord(p netip.Prefix) string {
	return strings.NewReplacer(":", "_", "/", "-").Replace(p.String())
}

// plainComment makes text safe inside a quoted argument of iptables-restore
// and stable when iptables-save prints it: what iptables would escape becomes
// an underscore. The kernel keeps 255 bytes (XT_MAX_COMMENT_LEN is 256).
func plainComment(text string) string {
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
