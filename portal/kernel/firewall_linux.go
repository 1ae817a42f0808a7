package kernel

import (
	"bytes"
	"fmt"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"

	"github.com/usherproxy/usher/portal"
)

// InputDrops returns the chains of other programs in nf_tables, iptables-nft's among them, that by default drop or
// reject what arrives at this node, and have no rule that names a landing. No other table can overrule them;
// iptables says that rules of usher's in the table filter of iptables come first there.
func InputDrops(iptables bool) (drop []string, err error) {
	c, err := nftables.New()
	if err != nil {
		return nil, err
	}
	chains, err := c.ListChains()
	if err != nil {
		return nil, err
	}
	for _, chain := range chains {
		family, inet := "inet", chain.Table.Family == nftables.TableFamilyINet
		for _, f := range portal.Families {
			if chain.Table.Family == NFTFamily(f) {
				family, inet = map[bool]string{false: "ip", true: "ip6"}[f.Is6()], true
			}
		}
		if chain.Hooknum == nil || *chain.Hooknum != *nftables.ChainHookInput || !inet || chain.Type != nftables.ChainTypeFilter ||
			iptables && chain.Name == "INPUT" && chain.Table.Name == "filter" {
			continue
		}
		rules, err := c.GetRules(chain.Table, chain)
		if err != nil {
			return drop, err
		}
		byPolicy := chain.Policy != nil && *chain.Policy == nftables.ChainPolicyDrop
		if (byPolicy || len(rules) > 0 && dropsAll(rules[len(rules)-1])) && !namesLanding(rules) {
			drop = append(drop, fmt.Sprintf("chain %s of table %s %s", chain.Name, family, chain.Table.Name))
		}
	}
	return drop, nil
}

// dropsAll reports whether a rule drops or rejects whatever comes to it.
func dropsAll(rule *nftables.Rule) (drops bool) {
	for _, e := range rule.Exprs {
		switch e := e.(type) {
		case *expr.Counter, *expr.Log:
		case *expr.Reject:
			drops = true
		case *expr.Verdict:
			drops = e.Kind == expr.VerdictDrop
		default:
			return false
		}
	}
	return drops
}

// namesLanding reports whether a rule compares with a landing, as one does that accepts it.
func namesLanding(rules []*nftables.Rule) bool {
	for _, rule := range rules {
		for _, e := range rule.Exprs {
			for _, family := range portal.Families {
				if cmp, is := e.(*expr.Cmp); is && bytes.Equal(cmp.Data, LandingOf(family).AsSlice()) {
					return true
				}
			}
		}
	}
	return false
}
