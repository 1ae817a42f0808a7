package translate

import (
	"net/netip"
	"slices"
)

// ServiceCIDRs parses the spec.cidrs of ServiceCIDRs, and returns them sorted, without duplicates.
func ServiceCIDRs(all []string) (cidrs []netip.Prefix) {
	for _, text := range all {
		if p, err := netip.ParsePrefix(text); err == nil { // the API validated it
			cidrs = append(cidrs, p.Masked())
		}
	}
	slices.SortFunc(cidrs, netip.Prefix.Compare)
	return slices.Compact(cidrs)
}
