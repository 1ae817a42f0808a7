package redirect

import (
	"bytes"
	"cmp"
	"net"
	"net/netip"
	"slices"
)

// Alias is a network of clients, and the network of the same size that has their aliases.
type Alias struct{ Of, As netip.Prefix }

// aliasOf returns the address in network that has the host bits of addr.
func aliasOf(addr netip.Addr, network netip.Prefix) netip.Addr {
	return withPrefix(network, addr.AsSlice())
}

// withPrefix returns the address with the prefix of p and the remaining bits of rest.
func withPrefix(p netip.Prefix, rest []byte) netip.Addr {
	addr, mask := p.Addr().AsSlice(), net.CIDRMask(p.Bits(), p.Addr().BitLen())
	for i := range addr {
		addr[i] = addr[i]&mask[i] | rest[i]&^mask[i]
	}
	a, _ := netip.AddrFromSlice(addr)
	return a
}

// LastOf returns the last address in p.
func LastOf(p netip.Prefix) netip.Addr {
	return withPrefix(p, bytes.Repeat([]byte{0xff}, p.Addr().BitLen()/8))
}

// aliases assigns each network its aliases: the network's addresses, with the prefix of aliasRange in place of their
// first bits. Of networks whose aliases would overlap, only one gets them: preferably one that overlaps pods, then one
// in before, then the smaller one. Open connections keep their alias, since conntrack translates them.
func aliases(networks, pods []netip.Prefix, aliasRange netip.Prefix, before []Alias) (all []Alias) {
	first := func(is bool) int {
		if is {
			return 0
		}
		return 1
	}
	had := func(n netip.Prefix) int {
		return first(slices.ContainsFunc(before, func(a Alias) bool { return a.Of == n }))
	}
	isPods := func(n netip.Prefix) int { return first(slices.ContainsFunc(pods, n.Overlaps)) }
	networks = slices.SortedFunc(slices.Values(networks), func(a, b netip.Prefix) int {
		return cmp.Or(cmp.Compare(isPods(a), isPods(b)), cmp.Compare(had(a), had(b)), cmp.Compare(b.Bits(), a.Bits()), a.Addr().Compare(b.Addr()))
	})
	for _, n := range networks {
		if !aliasRange.IsValid() || n.Bits() < aliasRange.Bits() {
			continue
		}
		as := netip.PrefixFrom(aliasOf(n.Addr(), aliasRange), n.Bits())
		if !slices.ContainsFunc(all, func(a Alias) bool { return a.As.Overlaps(as) }) {
			all = append(all, Alias{Of: n, As: as})
		}
	}
	slices.SortFunc(all, func(a, b Alias) int { return a.Of.Compare(b.Of) })
	return all
}
