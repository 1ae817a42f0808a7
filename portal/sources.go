package portal

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
)

// Sources are networks of clients: prefixes in order, with spaces between. The zero value is all clients.
type Sources string

// SourcesOf returns the Sources for these networks, or all clients if there are none. The order and host bits of the
// prefixes do not matter.
func SourcesOf(networks []netip.Prefix) Sources {
	var words []string
	for _, n := range PlainPrefixes(networks) {
		words = append(words, n.String())
	}
	return Sources(strings.Join(words, " "))
}

// String returns the networks, or "all".
func (s Sources) String() string {
	return cmp.Or(string(s), "all")
}

// In returns the networks of one family, and whether they cover the whole family.
func (s Sources) In(family Family) (networks []netip.Prefix, all bool) {
	for word := range strings.FieldsSeq(string(s)) {
		if n, err := netip.ParsePrefix(word); err == nil && FamilyOf(n.Addr()) == family {
			networks = append(networks, n)
			all = all || n.Bits() == 0
		}
	}
	return networks, all || s == ""
}

// PlainPrefixes returns prefixes sorted, without duplicates and host bits. IPv4-mapped IPv6 prefixes become IPv4
// prefixes. An invalid prefix stays: no address is in it.
func PlainPrefixes(prefixes []netip.Prefix) []netip.Prefix {
	var plain []netip.Prefix
	for _, p := range prefixes {
		if p.Addr().Is4In6() && p.Bits() >= 96 {
			p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
		}
		plain = append(plain, p.Masked())
	}
	slices.SortFunc(plain, netip.Prefix.Compare)
	return slices.Compact(plain)
}
