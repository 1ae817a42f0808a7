package redirect

import (
	"slices"

	"github.com/usherproxy/usher/portal"
)

// compare returns the state of each rule that a portal of a mode wants, and of all other installed ones. It ignores
// comments: not every kernel keeps them whole. The result is in the order of Target.Compare.
func compare(mode portal.Mode, wanted map[portal.Target]portal.Rule, installed []portal.Comparison) (all []portal.Comparison) {
	found := map[portal.Target]portal.Comparison{}
	for _, i := range installed {
		want, is := wanted[i.Rule.Target]
		if i.Mode != mode.Name || !is {
			all = append(all, i)
			continue
		}
		c := portal.Comparison{Mode: mode.Name, Traits: mode.Traits, Rule: want, State: portal.StateOK}
		if !sameEffect(want, i.Rule) {
			c.State, c.Installed = portal.StateDiffers, i.Rule
		}
		// Both variants of iptables may have a rule for the target: the worse state counts.
		if found[want.Target].State != portal.StateDiffers {
			found[want.Target] = c
		}
	}
	for t, want := range wanted {
		c, is := found[t]
		if !is {
			c = portal.Comparison{Mode: mode.Name, Traits: mode.Traits, Rule: want, State: portal.StateMissing}
		}
		all = append(all, c)
	}
	slices.SortFunc(all, portal.Comparison.Compare)
	return all
}

// sameEffect reports whether two rules for one target have the same effect.
func sameEffect(a, b portal.Rule) bool {
	a.Comment, b.Comment = "", ""
	a.Sole, b.Sole = false, false
	if a.Action == portal.Reject && b.Action == portal.Reject {
		a.LocalPort, b.LocalPort = 0, 0
	}
	return a == b
}
