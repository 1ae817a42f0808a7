package translate

import (
	"net/netip"
	"slices"
)

// ServiceCIDRs returns the networks of the ServiceCIDRs whose spec.cidrs these are, in order, each once.
func ServiceCIDRs(all []string) (cidrs []netip.Prefix) {
	for _, text := range all {
		if p, err := netip.ParsePrefix(text); err == nil { // it was validated
			cidrs = append(cidrs, p.Masked())
		}
	}
	slices.SortFunc(cidrs, netip.Prefix.Compare)
	return slices.Compact(cidrs)
}
