package portal

import "slices"

// compare finds out for each rule that a portal of a mode wants, and for all
// else that is installed, whether it is as it should be. Comments do not count:
// not every kernel keeps them whole. The result is in the order of
// Target.Compare.
func compare(mode Mode, wanted map[Target]Rule, installed []Installed) (all []Comparison) {
	found := map[Target]Comparison{}
	for _, i := range installed {
		want, is := wanted[i.Rule.Target]
		if i.Mode != mode.Name || !is {
			all = append(all, i.extra())
			continue
		}
		c := Comparison{Mode: mode.Name, Traits: mode.Traits, Rule: want, State: StateOK}
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
			c = Comparison{Mode: mode.Name, Traits: mode.Traits, Rule: want, State: StateMissing}
		}
		all = append(all, c)
	}
	slices.SortFunc(all, Comparison.Compare)
	return all
}

// sameEffect reports whether two rules for one target do the same.
func sameEffect(a, b Rule) bool {
	a.Comment, b.Comment = "", ""
	if a.Action == Reject && b.Action == Reject {
		a.LocalPort, b.LocalPort = 0, 0
	}
	return a == b
}
