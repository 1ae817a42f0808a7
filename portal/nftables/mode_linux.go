package nftables

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/portal/kernel"
	"github.com/usherproxy/usher/portal/redirect"
)

func init() { Mode.Open, Mode.List, Mode.Remove = open, list, remove }

func open(_ context.Context, opts portal.Options) (portal.Portal, error) {
	if err := kernel.NeedNetAdmin(); err != nil {
		return nil, err
	}
	opts.Log = opts.Log.WithField("portal", Mode.Name)
	opts = kernel.WithMark(opts)
	events := func() (kernel.Subscription, error) {
		return kernel.NFTEvents(func(table, _ string) bool { return table == nameTable })
	}
	return redirect.Open(Mode, opts, func(family portal.Family) (redirect.Backend, error) { return openBackend(family, opts) }, events)
}

// list returns the rules in the tables of both families. It skips a table that it cannot read.
func list(_ context.Context, opts portal.Options) (all []portal.Rule, err error) {
	for _, family := range portal.Families {
		c, err := readTable(family)
		if err != nil {
			opts.Log.WithError(err).Debug("Not listing nf_tables rules: they cannot be read")
			continue
		}
		all = slices.AppendSeq(all, maps.Values(rulesInMaps(c)))
	}
	return all, nil
}

// rulesInMaps reads rules from usher's nftables table.
func rulesInMaps(c *contents) map[portal.Target]portal.Rule {
	rules := map[portal.Target]portal.Rule{}
	for k, v := range c.elements {
		if k.isAddress() {
			continue
		}
		r, known := rules[k.target]
		r.Target, r.Comment = k.target, v.comment
		switch {
		case !k.guard:
			r.LocalPort = v.port
			if v.port == redirect.RejectPort && (!known || r.Action != portal.Drop) {
				r.Action = portal.Reject
			}
		case v.verdict == verdictDrop:
			r.Action = portal.Drop
		default:
			chain := c.chains[v.verdict.chain()]
			if v.verdict == jumpTo(nameOutside) || chain.outside {
				r.Action = portal.Drop
			}
			if v.verdict != jumpTo(nameOutside) {
				r.Sources = portal.SourcesOf(chain.from)
			}
		}
		rules[k.target] = r
	}
	return rules
}

// remove removes usher's tables.
func remove(context.Context, portal.Options, bool) (removed []string, err error) {
	var errs []error
	for _, family := range portal.Families {
		conn, err := kernel.OpenNFT()
		if err != nil {
			return removed, err
		}
		tables, err := conn.ListTablesOfFamily(kernel.NFTFamily(family))
		if errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOBUFS) {
			return removed, hint(fmt.Errorf("reading nftables tables: %w", err))
		}
		if err != nil {
			continue // no nf_tables, so no table
		}
		for _, t := range tables {
			if t.Name != nameTable {
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
			removed = append(removed, fmt.Sprintf("nftables: table %s %s", ip, nameTable))
		}
	}
	return removed, errors.Join(errs...)
}
