package portal

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/sirupsen/logrus"
)

// Cleanup takes out everything that any mode of portal, of this or an earlier
// process, has put into the kernel, by whichever tools are here. It returns
// what it took out, one line for each kind. What the kernel does not support is passed
// over, since then nothing is in it either; what cannot be looked at for another reason
// is an error.
func Cleanup(ctx context.Context, log logrus.FieldLogger) (removed []string, err error) {
	if !hasNetAdmin() {
		return nil, errNoNetAdmin
	}
	opts := Options{Log: log}.withDefaults()
	installed, err := List(ctx, opts.Log)
	if err != nil {
		opts.Log.WithError(err).Debug("UDP clients may keep to a former listener")
	}
	rules, err1 := removeIPTables(ctx, opts, nil, true)
	tables, err2 := removeNFTables()
	routes, err3 := removeRoutes(allRoutes)
	forgetRedirected(func(yield func(Target) bool) {
		for _, i := range installed {
			if !yield(i.Rule.Target) {
				return
			}
		}
	}, opts.Log)
	removed = append(append(rules, tables...), routes...)
	for _, what := range removed {
		opts.Log.WithField("what", what).Info("portal removed")
	}
	return removed, errors.Join(err1, err2, err3, overlooked(ctx, opts))
}

// overlooked returns an error if the kernel holds rules of iptables that may be
// usher's, and no iptables is installed that could tell or remove them.
func overlooked(ctx context.Context, opts Options) error {
	var nft, legacy bool
	for _, v := range variants(ctx, opts) {
		nft, legacy = nft || v.nft, legacy || !v.nft
	}
	var errs []error
	for _, family := range Families {
		v, file := variant{suffix: "legacy"}, "ip_tables_names"
		if family.Is6() {
			file = "ip6_tables_names"
		}
		names, err := os.ReadFile("/proc/thread-self/net/" + file)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
		if !legacy && slices.Contains(strings.Fields(string(names)), tableNAT) {
			errs = append(errs, fmt.Errorf("the %s table %s of the legacy iptables is in use, and no %s is installed to look into it", family, tableNAT, v.command(family.Is6(), "")))
		}
		if chain := nftChainOfIPTables(family); !nft && chain != "" {
			errs = append(errs, fmt.Errorf("there is the %s chain %s, and no %s is installed to remove it", family, chain, variant{suffix: "nft"}.command(family.Is6(), "")))
		}
	}
	return errors.Join(errs...)
}

// removeIPTables takes our chains and the jumps to them out of all tables of
// all variants but one. If it must see all, rules that it cannot read are an error.
func removeIPTables(ctx context.Context, opts Options, but *variant, all bool) (removed []string, err error) {
	opts.IPTablesVariant = ""
	var errs []error
	for _, v := range variants(ctx, opts) {
		if but != nil && v.nft == but.nft {
			continue
		}
		for _, family := range Families {
			what, err := removeFamily(ctx, v.variant, family, opts, all)
			removed = append(removed, what...)
			if err != nil {
				errs = append(errs, err)
			}
		}
	}
	return removed, errors.Join(errs...)
}

// unsupported reports whether an iptables-save failed since the kernel has not what it
// would read.
func unsupported(err error) bool {
	text := err.Error()
	return slices.ContainsFunc([]string{"Protocol not supported", "Operation not supported", "not supported by protocol", "Table does not exist"},
		func(what string) bool { return strings.Contains(text, what) })
}

func removeFamily(ctx context.Context, v variant, family Family, opts Options, all bool) (removed []string, err error) {
	text, err := run(ctx, "", v.command(family.Is6(), "-save"))
	if err != nil && (!all || unsupported(err)) {
		opts.Log.WithError(err).Debug("nothing to remove here: the rules cannot be read")
		return nil, nil
	}
	if err != nil {
		return nil, hint(fmt.Errorf("reading the %s rules: %w", family, err), family.Is6())
	}
	var errs []error
	tables := parseSave(text)
	for _, name := range slices.Sorted(maps.Keys(tables)) {
		have := tables[name]
		script, changed := diffTable(have, &table{}, nil, false)
		if len(changed) == 0 {
			continue
		}
		script = "*" + name + "\n" + script + "COMMIT\n"
		restore := v.command(family.Is6(), "-restore")
		wait := fmt.Sprint(int(opts.LockWait.Seconds()))
		if _, err := run(ctx, script, restore, "--noflush", "--wait", wait); err != nil {
			errs = append(errs, hint(fmt.Errorf("removing the chains %s* from table %s: %w", chainPrefix, name, err), family.Is6()))
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
