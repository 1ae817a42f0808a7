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

// aliasOf returns the alias of an address: the prefix of room and the rest of the address.
func aliasOf(addr netip.Addr, room netip.Prefix) netip.Addr {
	return begun(room, addr.AsSlice())
}

// begun returns the address with the prefix of p and the remaining bits of rest.
func begun(p netip.Prefix, rest []byte) netip.Addr {
	addr, mask := p.Addr().AsSlice(), net.CIDRMask(p.Bits(), p.Addr().BitLen())
	for i := range addr {
		addr[i] = addr[i]&mask[i] | rest[i]&^mask[i]
	}
	a, _ := netip.AddrFromSlice(addr)
	return a
}

// LastOf returns the last address in p.
func LastOf(p netip.Prefix) netip.Addr {
	return begun(p, bytes.Repeat([]byte{0xff}, p.Addr().BitLen()/8))
}

// aliases returns the aliases in room of those networks that get some. If two networks would get the same aliases, only
// one does: the one that overlaps pods, else the one in before, else the smaller one. Open connections keep theirs.
func aliases(networks, pods []netip.Prefix, room netip.Prefix, before []Alias) (all []Alias) {
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
		if !room.IsValid() || n.Bits() < room.Bits() {
			continue
		}
		as := netip.PrefixFrom(aliasOf(n.Addr(), room), n.Bits())
		if !slices.ContainsFunc(all, func(a Alias) bool { return a.As.Overlaps(as) }) {
			all = append(all, Alias{Of: n, As: as})
		}
	}
	slices.SortFunc(all, func(a, b Alias) int { return a.Of.Compare(b.Of) })
	return all
}
