package portal

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"golang.org/x/sys/unix"
)

// nftablesMode is the mode whose rules are in a table of nf_tables, which it
// speaks to itself; see nftlayout.go.
var nftablesMode = Mode{Name: nftablesName, Traits: nftablesTraits, Open: openNFTables, List: listNFTables, Remove: removeNFTables}

func openNFTables(_ context.Context, self Mode, opts Options) (Portal, error) {
	if err := needNetAdmin(); err != nil {
		return nil, err
	}
	opts.Log = opts.Log.WithField("portal", self.Name)
	opts = withMark(opts)
	events := func() (subscription, error) {
		return nftEvents(func(table, _ string) bool { return table == nftTable })
	}
	p, err := openRedirect(self, opts, events, func(family Family) (backend, error) { return openNFTRules(family, opts) })
	if err != nil {
		return nil, err
	}
	return p, nil
}

// listNFTables returns the rules in the tables of both families.
func listNFTables(_ context.Context, opts Options) (all []Rule, err error) {
	for _, family := range Families {
		c, err := readNFT(family)
		if err != nil {
			opts.Log.WithError(err).Debug("nothing to list here: nf_tables cannot be read")
			continue
		}
		all = slices.AppendSeq(all, maps.Values(rulesInMaps(c)))
	}
	return all, nil
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

// removeNFTables takes usher's tables out.
func removeNFTables(context.Context, Options, bool) (removed []string, err error) {
	var errs []error
	for _, family := range Families {
		conn, err := openNFT()
		if err != nil {
			return removed, err
		}
		tables, err := conn.ListTablesOfFamily(nftFamily(family))
		if errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOBUFS) {
			return removed, hintNFT(fmt.Errorf("reading the nftables tables: %w", err))
		}
		if err != nil {
			continue // no nf_tables, so nothing is in it
		}
		for _, t := range tables {
			if t.Name != nftTable {
				continue
			}
			conn.DelTable(t)
			if err := commit(conn); err != nil {
				errs = append(errs, err)
				continue
			}
			ip := "ip"
			if family.Is6() {
				ip = "ip6"
			}
			removed = append(removed, fmt.Sprintf("nftables: table %s %s", ip, nftTable))
		}
	}
	return removed, errors.Join(errs...)
}
