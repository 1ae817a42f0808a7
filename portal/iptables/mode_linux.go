package iptables

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"slices"
	"strings"

	"github.com/sirupsen/logrus"

	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/portal/kernel"
	"github.com/usherproxy/usher/portal/redirect"
)

func init() { Mode.Open, Mode.List, Mode.Remove = open, list, remove }

// open selects the variant that the node already uses, or else another one that works. If another program holds the
// xtables lock, it waits: another variant or mode would end open connections.
func open(ctx context.Context, opts portal.Options) (portal.Portal, error) {
	if err := kernel.NeedNetAdmin(); err != nil {
		return nil, err
	}
	opts.Log = opts.Log.WithField("portal", Mode.Name)
	opts = kernel.WithMark(opts)
	for {
		p, err := openAny(ctx, opts)
		if !isLocked(err) || ctx.Err() != nil {
			return p, err
		}
		opts.Log.WithError(err).Warn("Waiting for the xtables lock, which another program holds")
	}
}

func openAny(ctx context.Context, opts portal.Options) (portal.Portal, error) {
	var errs error
	for _, v := range variants(ctx, opts) {
		p, err := openVariant(ctx, v.variant, opts)
		switch {
		case err == nil, isLocked(err):
			return p, err
		case errs == nil:
			errs = err
		default:
			errs = fmt.Errorf("%w; %w", errs, err)
		}
	}
	if errs == nil {
		// Without nf_tables in the kernel, iptables-nft does not even print its version.
		err := exec.ErrNotFound
		if _, failed := run(ctx, "", "iptables", "--version"); failed != nil {
			err = failed
		}
		return nil, hint(fmt.Errorf("looking up iptables: %w", err), false)
	}
	return nil, errs
}

// openVariant makes a portal that uses v; see layout.go for its rules. The portal removes leftovers in the other
// variant as if that were another mode.
func openVariant(ctx context.Context, v variant, opts portal.Options) (portal.Portal, error) {
	other := portal.Mode{Remove: func(ctx context.Context, opts portal.Options, all bool) ([]string, error) {
		return removeVariants(ctx, opts, all, func(o variant) bool { return o.nft != v.nft })
	}}
	opts.Others = slices.Concat([]portal.Mode{other}, opts.Others)
	var events []func() (kernel.Subscription, error)
	if v.nft {
		events = append(events, func() (kernel.Subscription, error) {
			return kernel.NFTEvents(func(table, chain string) bool {
				// In other chains, other programs often add and remove rules.
				if table == tableFilter {
					return chain == "INPUT" || strings.HasPrefix(chain, chainPrefix) && !isScratch(chain)
				}
				return (table == tableNAT || table == tableMangle) &&
					(chain == "PREROUTING" || chain == "OUTPUT" || chain == "INPUT" && table == tableMangle || chain == "POSTROUTING" && opts.Mark != 0 && !opts.NodeAddress || strings.HasPrefix(chain, chainPrefix) && !isScratch(chain))
			})
		})
	}
	opts.Log.WithFields(logrus.Fields{"command": v.command(false, ""), "nft": v.nft}).Debug("Trying iptables")
	return redirect.Open(Mode, opts, func(family portal.Family) (redirect.Backend, error) { return openBackend(ctx, v, family, opts) }, events...)
}

// list returns the rules in all variants that opts.IPTablesVariant allows. It skips rules that it cannot read.
func list(ctx context.Context, opts portal.Options) (all []portal.Rule, err error) {
	for _, v := range variants(ctx, opts) {
		for _, family := range portal.Families {
			text, err := run(ctx, "", v.command(family.Is6(), "-save"))
			if err != nil {
				opts.Log.WithError(err).Debug("Not listing rules that cannot be read")
				continue
			}
			all = slices.AppendSeq(all, maps.Values(rulesInTables(parseSave(text), family)))
		}
	}
	return all, nil
}

// remove removes usher's chains and the jumps to them from all tables of all variants. With all set, rules that it
// cannot read are an error.
func remove(ctx context.Context, opts portal.Options, all bool) (removed []string, err error) {
	removed, err = removeVariants(ctx, opts, all, func(variant) bool { return true })
	if all {
		err = errors.Join(err, overlooked(ctx, opts))
	}
	return removed, err
}

// overlooked returns an error if the kernel holds iptables rules that may be usher's, but no installed iptables can
// list or remove them.
func overlooked(ctx context.Context, opts portal.Options) error {
	var nft, legacy bool
	for _, v := range variants(ctx, opts) {
		nft, legacy = nft || v.nft, legacy || !v.nft
	}
	var errs []error
	for _, family := range portal.Families {
		if !legacy {
			inUse, err := kernel.LegacyNAT(family)
			errs = append(errs, err)
			if inUse {
				errs = append(errs, fmt.Errorf("the %s table %s of legacy iptables is in use, but %s is not installed to read it", family, tableNAT, variant{suffix: "legacy"}.command(family.Is6(), "")))
			}
		}
		if chain := nftChainOfIPTables(family, ""); !nft && chain != "" {
			errs = append(errs, fmt.Errorf("the %s chain %s exists, but %s is not installed to remove it", family, chain, variant{suffix: "nft"}.command(family.Is6(), "")))
		}
	}
	return errors.Join(errs...)
}

// removeVariants is remove for some of the variants.
func removeVariants(ctx context.Context, opts portal.Options, all bool, which func(variant) bool) (removed []string, err error) {
	opts.IPTablesVariant = ""
	var errs []error
	for _, v := range variants(ctx, opts) {
		for _, family := range portal.Families {
			if !which(v.variant) {
				continue
			}
			what, err := removeFamily(ctx, v.variant, family, opts, all)
			removed = append(removed, what...)
			errs = append(errs, err)
		}
	}
	return removed, errors.Join(errs...)
}

// unsupported reports whether an iptables-save failed because the kernel does not support its tables.
func unsupported(err error) bool {
	text := err.Error()
	return slices.ContainsFunc([]string{"Protocol not supported", "Operation not supported", "not supported by protocol", "Table does not exist"},
		func(what string) bool { return strings.Contains(text, what) })
}

// saveTables reads all tables that can have usher's rules. iptables-legacy reads the tables' names from a file that
// only the network namespace's root may read. After `unshare -rn` this user does not exist: saveTables then reads each
// table by its name.
func saveTables(ctx context.Context, v variant, family portal.Family) (string, error) {
	save := v.command(family.Is6(), "-save")
	text, err := run(ctx, "", save)
	if err == nil || !strings.Contains(err.Error(), "Failed to list table names") {
		return text, err
	}
	var tables strings.Builder
	for _, name := range tableNames {
		text, err := run(ctx, "", save, "-t", name)
		if err != nil {
			return "", err
		}
		tables.WriteString(text)
	}
	return tables.String(), nil
}

func removeFamily(ctx context.Context, v variant, family portal.Family, opts portal.Options, all bool) (removed []string, err error) {
	text, err := saveTables(ctx, v, family)
	if err != nil && (!all || unsupported(err)) {
		opts.Log.WithError(err).Debug("Not removing rules that cannot be read")
		return nil, nil
	}
	if err != nil {
		return nil, hint(fmt.Errorf("reading %s rules: %w", family, err), family.Is6())
	}
	var errs []error
	for _, name := range unreadable(text) {
		if all && nftChainOfIPTables(family, name) != "" {
			errs = append(errs, hint(fmt.Errorf("reading %s rules: table %s is incompatible", family, name), family.Is6()))
		}
	}
	tables := parseSave(text)
	for _, name := range slices.Sorted(maps.Keys(tables)) {
		have := tables[name]
		script, changed := diffTable(have, &contents{}, nil, false)
		if len(changed) == 0 {
			continue
		}
		script = "*" + name + "\n" + script + "COMMIT\n"
		restore := v.command(family.Is6(), "-restore")
		version, _ := run(ctx, "", restore, "--version") // if it fails, so does the next command
		if _, err := run(ctx, script, restore, append([]string{"--noflush"}, waitArgs(version, opts.LockWait)...)...); err != nil {
			errs = append(errs, hint(fmt.Errorf("removing chains %s* from table %s: %w", chainPrefix, name, err), family.Is6()))
			continue
		}
		removed = append(removed, fmt.Sprintf("%s: table %s: %d chains %s*, %d jumps",
			v.command(family.Is6(), ""), name, len(have.chains), chainPrefix, len(have.jumps)))
		if v.nft {
			notes := slices.DeleteFunc(slices.Collect(maps.Keys(have.chains)), func(c string) bool { return !isNote(c) })
			if err := tidyNFT(family, name, notes); err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", strings.TrimSuffix(restore, "-restore"), err))
			}
		}
	}
	return removed, errors.Join(errs...)
}
