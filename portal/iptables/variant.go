package iptables

import (
	"slices"
	"strings"
)

// variant is one of the iptables variants that a node may have in parallel. Each stores its rules in a different place
// in the kernel, and all rules apply. So usher prefers the variant that other programs on the node use.
type variant struct {
	// suffix is part of command names: iptables-nft, iptables-nft-save. Empty is the plain iptables, of either variant.
	suffix string
	// nft says that rules are in nf_tables, whose tables can be created and removed.
	nft bool
}

// command returns a command's name; tool is "" or "-save" or "-restore".
func (v variant) command(ip6 bool, tool string) string {
	name := "iptables"
	if ip6 {
		name = "ip6tables"
	}
	if v.suffix != "" {
		name += "-" + v.suffix
	}
	return name + tool
}

// found is a variant with the output of iptables-save of both families.
type found struct {
	variant
	plain bool // "iptables" without suffix is this variant
	works bool // iptables-save or ip6tables-save succeeded
	saved string
}

// byUse sorts variants by five criteria, in this order: the variant works; it holds usher's rules; kubelet uses it; it
// has more rules; it is the distribution's default. Except for the first two, this is how
// kubernetes-sigs/iptables-wrappers decides. kubelet leaves its chains as a hint (KEP-3178).
func byUse(variants []found) []found {
	score := func(f found) []int {
		var ours, kubelet, rules int
		for line := range strings.Lines(f.saved) {
			switch {
			case strings.HasPrefix(line, ":"+chainPrefix):
				ours = 1
			case strings.HasPrefix(line, ":KUBE-IPTABLES-HINT"), strings.HasPrefix(line, ":KUBE-KUBELET-CANARY"):
				kubelet = 1
			case strings.HasPrefix(line, "-A "):
				rules++
			}
		}
		return []int{boolToInt(f.works), ours, kubelet, rules, boolToInt(f.plain)}
	}
	out := slices.Clone(variants)
	slices.SortStableFunc(out, func(a, b found) int { return slices.Compare(score(b), score(a)) })
	return out
}

func boolToInt(b bool) int {
	if b {
		return 1
	}
	return 0
}
