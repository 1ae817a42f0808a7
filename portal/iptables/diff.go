package iptables

import (
	"cmp"
	"maps"
	"slices"
	"strings"
)

// change is the input for one run of iptables-restore --noflush, and its description.
type change struct {
	script string
	// repairs names the chains and jumps that differ from the wanted ones.
	repairs []string
}

// diff computes the change from the installed to the wanted state. It skips chains that are as wanted, and rewrites
// differing ones as a whole, which iptables-restore does in one step per table. It puts a missing jump first in its
// chain, or last if jumpRule.last says so. With toFront it moves a jump that other rules precede back to the front,
// unless jumpRule.anywhere allows its position.
//
// keep are chains without rules, by table: diff creates missing ones, and keeps the others.
func diff(installed map[string]*contents, wanted map[string]*contents, keep map[string][]string, toFront bool) change {
	var all strings.Builder
	var repairs []string
	for _, name := range tableNames {
		have, want := installed[name], wanted[name]
		if have == nil {
			have = &contents{}
		}
		if want == nil {
			want = &contents{}
		}
		script, changed := diffTable(have, want, keep[name], toFront)
		if len(changed) > 0 {
			all.WriteString("*" + name + "\n" + script + "COMMIT\n")
			for _, c := range changed {
				repairs = append(repairs, name+" "+c)
			}
		}
	}
	return change{script: all.String(), repairs: repairs}
}

func diffTable(have, want *contents, keep []string, toFront bool) (script string, changed []string) {
	var declare, rules, jumps, remove strings.Builder
	for _, chain := range keep {
		if _, there := have.chains[chain]; !there {
			declare.WriteString(":" + chain + " - [0:0]\n")
			changed = append(changed, chain)
		}
	}
	for _, chain := range slices.Sorted(maps.Keys(want.chains)) {
		old, there := have.chains[chain]
		if there && slices.Equal(old, want.chains[chain]) {
			continue
		}
		// For iptables-restore --noflush, declaring a chain empties it.
		declare.WriteString(":" + chain + " - [0:0]\n")
		for _, s := range want.chains[chain] {
			rules.WriteString("-A " + chain + " " + s.String() + "\n")
		}
		changed = append(changed, chain)
	}
	for _, chain := range slices.Sorted(maps.Keys(have.chains)) {
		if _, wanted := want.chains[chain]; !wanted && !slices.Contains(keep, chain) {
			declare.WriteString(":" + chain + " - [0:0]\n")
			remove.WriteString("-X " + chain + "\n")
			changed = append(changed, chain)
		}
	}
	changed = append(changed, diffJumps(&jumps, have.jumps, want.jumps, toFront)...)
	// Chains must be declared before rules can jump to them, and can only be deleted when no rule jumps to them.
	return declare.String() + rules.String() + jumps.String() + remove.String(), changed
}

// diffJumps keeps each wanted jump once and removes all others.
func diffJumps(b *strings.Builder, have, want []jumpRule, toFront bool) (changed []string) {
	count := map[jumpRule]int{}
	for _, h := range have {
		count[h.plain()]++
	}
	stays := map[jumpRule]bool{}
	for _, h := range have {
		key := h.plain()
		// -D removes the first rule that matches, so one of several duplicates cannot be kept: all are removed, and one
		// is added.
		if slices.Contains(want, key) && count[key] == 1 && (h.position <= 1 || !toFront || key.anywhere()) {
			stays[key] = true
			continue
		}
		b.WriteString("-D " + h.chain + " " + cmp.Or(h.raw, h.spec.String()) + "\n")
		changed = append(changed, h.chain)
	}
	for _, w := range want {
		if !stays[w] {
			where := "-I " + w.chain + " 1 "
			if w.last() {
				where = "-A " + w.chain + " "
			}
			b.WriteString(where + w.spec.String() + "\n")
			changed = append(changed, w.chain)
		}
	}
	slices.Sort(changed)
	return slices.Compact(changed)
}

// movedDown reports whether a jump that has to be first in its chain is installed, but no longer first.
func movedDown(installed map[string]*contents, wanted map[string]*contents) bool {
	for name, want := range wanted {
		have := installed[name]
		if have == nil {
			continue
		}
		for _, w := range want.jumps {
			if w.anywhere() {
				continue
			}
			first := slices.IndexFunc(have.jumps, func(h jumpRule) bool { return h.plain() == w })
			if first >= 0 && have.jumps[first].position > 1 {
				return true
			}
		}
	}
	return false
}

// asInstalled returns the tables' contents after wanted has been installed.
func asInstalled(wanted map[string]*contents, keep map[string][]string) map[string]*contents {
	installed := map[string]*contents{}
	for name, want := range wanted {
		installed[name] = &contents{chains: maps.Clone(want.chains), jumps: slices.Clone(want.jumps)}
	}
	for name, chains := range keep {
		if installed[name] == nil {
			installed[name] = &contents{chains: map[string][]spec{}}
		}
		for _, chain := range chains {
			installed[name].chains[chain] = nil
		}
	}
	return installed
}
