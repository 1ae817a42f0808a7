package portal

import (
	"cmp"
	"net/netip"
	"slices"
)

// State says how what is wanted and what is installed agree.
type State string

// The states.
const (
	StateOK      State = "ok"      // installed as it is wanted
	StateMissing State = "missing" // wanted, and not installed
	StateDiffers State = "differs" // installed in another way than it is wanted
	StateExtra   State = "extra"   // installed, and not wanted
)

// Comparison is a rule that is wanted, installed, or both.
type Comparison struct {
	// Mode is that of the portal that wants the rule or, if it is extra, of the
	// one that has left it.
	Mode string
	// Rule is the wanted one; if that is extra, the installed one.
	Rule  Rule
	State State
	// Installed is the rule in the kernel if it differs from Rule.
	Installed Rule
}

// compare finds out for each rule that a portal of that mode wants, and for all
// else that is installed, whether it is as it should be. Comments do not count:
// not every kernel keeps them whole. The result is in the order of
// Target.Compare.
func compare(mode string, wanted map[Target]Rule, installed []Installed) (all []Comparison) {
	found := map[Target]Comparison{}
	for _, i := range installed {
		want, is := wanted[i.Rule.Target]
		if i.Mode != mode || !is {
			all = append(all, Comparison{Mode: i.Mode, Rule: i.Rule, State: StateExtra})
			continue
		}
		c := Comparison{Mode: mode, Rule: want, State: StateOK}
		if !sameEffect(want, i.Rule) {
			c.State, c.Installed = StateDiffers, i.Rule
		}
		// Both variants of iptables may have a rule for it: the worse counts.
		if found[want.Target].State != StateDiffers {
			found[want.Target] = c
		}
	}
	for t, want := range wanted {
		c, is := found[t]
		if !is {
			c = Comparison{Mode: mode, Rule: want, State: StateMissing}
		}
		all = append(all, c)
	}
	slices.SortFunc(all, compareComparisons)
	return all
}

// compareLocal is compare for mode address, in which all rules of a VIP are in
// effect if that is an address of this node. Node ports need nothing of the
// kernel.
func compareLocal(wanted map[Target]Rule, isLocal func(netip.Addr) bool, installed []Installed) (all []Comparison) {
	vips := map[netip.Addr]bool{}
	for t, want := range wanted {
		local, known := vips[t.Addr]
		if !known {
			local = t.Addr.IsUnspecified() || isLocal(t.Addr)
			vips[t.Addr] = local
		}
		c := Comparison{Mode: ModeAddress, Rule: want, State: StateMissing}
		if local {
			c.State = StateOK
		}
		all = append(all, c)
	}
	for _, i := range installed {
		if _, is := vips[i.Rule.Target.Addr]; i.Mode != ModeAddress || !is {
			all = append(all, Comparison{Mode: i.Mode, Rule: i.Rule, State: StateExtra})
		}
	}
	slices.SortFunc(all, compareComparisons)
	return all
}

func compareComparisons(a, b Comparison) int {
	return cmp.Or(a.Rule.Target.Compare(b.Rule.Target), cmp.Compare(a.Mode, b.Mode), cmp.Compare(a.State, b.State))
}

// sameEffect reports whether two rules for one target do the same.
func sameEffect(a, b Rule) bool {
	a.Comment, b.Comment = "", ""
	if a.Action == Reject && b.Action == Reject {
		a.LocalPort, b.LocalPort = 0, 0
	}
	return a == b
}
