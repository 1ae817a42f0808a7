package iptables

import (
	"cmp"
	"slices"
	"strings"
)

// variant is one of the iptables that a node may have side by side: they keep
// their rules in different places in the kernel, and rules in both places
// are all obeyed, so it is best to use the one that others here use.
type variant struct {
	// suffix makes command names: iptables-nft, iptables-nft-save. Empty is
	// the plain iptables, whichever variant that is.
	suffix string
	// nft says that rules go to nf_tables, in tables that come and go.
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

// found is a variant with what iptables-save says of it, both families.
type found struct {
	variant
	plain bool // the one that "iptables" without suffix is
	works bool // iptables-save ran
	saved string
}

// byUse orders variants: first the one that holds rules of ours, then the one
// that kubelet uses (KEP-3178: it leaves these chains as a hint), then the one
// with more rules, then the one that the distribution made the default. It is
// how kubernetes-sigs/iptables-wrappers decides, but for the first.
func byUse(variants []found) []found {
	score := func(f found) (ours, kubelet, rules, plain int) {
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
		if f.plain {
			plain = 1
		}
		return
	}
	out := slices.Clone(variants)
	slices.SortStableFunc(out, func(a, b found) int {
		aOurs, aKubelet, aRules, aPlain := score(a)
		bOurs, bKubelet, bRules, bPlain := score(b)
		return cmp.Or(
			cmp.Compare(truth(b.works), truth(a.works)),
			cmp.Compare(bOurs, aOurs),
			cmp.Compare(bKubelet, aKubelet),
			cmp.Compare(bRules, aRules),
			cmp.Compare(bPlain, aPlain),
		)
	})
	return out
}

func truth(b bool) int {
	if b {
		return 1
	}
	return 0
}
