package portal

import "net/netip"

// Family is an address family.
type Family uint8

const (
	IPv4 Family = iota
	IPv6
)

// Families are both families, in the order in which they are processed.
var Families = [...]Family{IPv4, IPv6}

// FamilyOf returns the family of addr: IPv4 only for an IPv4 address in its four-byte form.
func FamilyOf(addr netip.Addr) Family {
	if addr.Is4() {
		return IPv4
	}
	return IPv6
}

// Is6 reports whether f is IPv6.
func (f Family) Is6() bool { return f == IPv6 }

// Any returns the unspecified address, which in a [Target] stands for every address of this node.
func (f Family) Any() netip.Addr {
	if f.Is6() {
		return netip.IPv6Unspecified()
	}
	return netip.IPv4Unspecified()
}

// String returns "IPv4" or "IPv6".
func (f Family) String() string {
	if f.Is6() {
		return "IPv6"
	}
	return "IPv4"
}

// Of returns the prefixes that belong to f.
func (f Family) Of(prefixes []netip.Prefix) (these []netip.Prefix) {
	for _, p := range prefixes {
		if p.IsValid() && FamilyOf(p.Addr()) == f {
			these = append(these, p)
		}
	}
	return these
}
