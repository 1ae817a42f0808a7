package portal

import (
	"cmp"
	"net/netip"
	"slices"
)

// Installed is something that a portal, of this or another process, has put into
// the kernel.
type Installed struct {
	Mode string // the portal's
	// Rule is what it was put in for. Its comment is missing where the kernel
	// keeps none. For mode address it is the address of the Target alone: which
	// ports are served there is up to the listeners.
	Rule Rule
}

// compareInstalled orders what is installed as Target.Compare does.
func compareInstalled(a, b Installed) int {
	return cmp.Or(a.Rule.Target.Compare(b.Rule.Target), cmp.Compare(a.Mode, b.Mode))
}

// rulesInTables reads rules from what iptables-save printed.
func rulesInTables(tables map[string]*contents, family Family) map[Target]Rule {
	rules := map[Target]Rule{}
	if nat := tables[tableNAT]; nat != nil {
		for _, specs := range nat.chains {
			for _, s := range specs {
				if t, ok := s.target(family); ok && s.toPort >= 0 {
					r := Rule{Target: t, LocalPort: uint16(s.toPort), Comment: s.comment}
					if s.toPort == rejectPort {
						r.Action = Reject
					}
					rules[t] = r
				}
			}
		}
	}
	if mangle := tables[tableMangle]; mangle != nil {
		for _, specs := range mangle.chains {
			for _, s := range specs {
				t, ok := s.target(family)
				if !ok {
					continue
				}
				r := rules[t]
				r.Target, r.Comment = t, s.comment
				switch s.jump {
				case "DROP", chainOutside:
					r.Action = Drop
				default:
					r.Sources = sourcesLetIn(mangle.chains[s.jump])
				}
				rules[t] = r
			}
		}
	}
	return rules
}

// sourcesLetIn returns the networks that a chain does not drop.
func sourcesLetIn(chain []spec) Sources {
	var networks []netip.Prefix
	for _, s := range chain {
		if s.jump == "RETURN" && s.src.IsValid() {
			networks = append(networks, s.src)
		}
	}
	return SourcesOf(networks)
}

// rulesInMaps reads rules from usher's nftables table.
func rulesInMaps(c *nftContents) map[Target]Rule {
	rules := map[Target]Rule{}
	for k, v := range c.elements {
		r, known := rules[k.target]
		r.Target, r.Comment = k.target, v.comment
		switch {
		case !k.guard:
			r.LocalPort = v.port
			if v.port == rejectPort && (!known || r.Action != Drop) {
				r.Action = Reject
			}
		case v.verdict == nftDrop:
			r.Action = Drop
		default:
			chain := c.chains[v.verdict.chain()]
			if v.verdict == nftJump(nftOutside) || chain.outside {
				r.Action = Drop
			}
			if v.verdict != nftJump(nftOutside) {
				r.Sources = SourcesOf(chain.from)
			}
		}
		rules[k.target] = r
	}
	return rules
}

// sortedInstalled puts together what is installed.
func sortedInstalled(mode string, rules map[Target]Rule) (all []Installed) {
	for _, r := range rules {
		all = append(all, Installed{mode, r})
	}
	slices.SortFunc(all, compareInstalled)
	return all
}
