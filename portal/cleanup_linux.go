package portal

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/sirupsen/logrus"
)

// Cleanup takes out everything that any mode of portal, of this or an earlier
// process, has put into the kernel, by whichever tools are here. It returns
// what it took out, one line for each kind. What cannot be looked at for want of a
// tool or of kernel support is passed over, since then nothing is in it either.
func Cleanup(ctx context.Context, log logrus.FieldLogger) (removed []string, err error) {
	opts := Options{Log: log}.withDefaults()
	installed, err := List(ctx, opts.Log)
	if err != nil {
		opts.Log.WithError(err).Debug("UDP clients may keep to a former listener")
	}
	rules, err1 := removeIPTables(ctx, opts, nil)
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
	return removed, errors.Join(err1, err2, err3)
}

// removeIPTables takes our chains and the jumps to them out of all tables of
// all variants but one.
func removeIPTables(ctx context.Context, opts Options, but *variant) (removed []string, err error) {
	opts.IPTablesVariant = ""
	var errs []error
	for _, v := range variants(ctx, opts) {
		if but != nil && v.nft == but.nft {
			continue
		}
		for _, any := range []netip.Addr{anyIPv4, anyIPv6} {
			what, err := removeFamily(ctx, v.variant, any, opts)
			removed = append(removed, what...)
			if err != nil {
				errs = append(errs, err)
			}
		}
	}
	return removed, errors.Join(errs...)
}

func removeFamily(ctx context.Context, v variant, any netip.Addr, opts Options) (removed []string, err error) {
	text, err := run(ctx, "", v.command(any.Is6(), "-save"))
	if err != nil {
		opts.Log.WithError(err).Debug("nothing to remove here: the rules cannot be read")
		return nil, nil
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
		restore := v.command(any.Is6(), "-restore")
		wait := fmt.Sprint(int(opts.LockWait.Seconds()))
		if _, err := run(ctx, script, restore, "--noflush", "--wait", wait); err != nil {
			errs = append(errs, hint(fmt.Errorf("removing the chains %s* from table %s: %w", chainPrefix, name, err), any.Is6()))
			continue
		}
		removed = append(removed, fmt.Sprintf("%s: table %s: %d chains %s*, %d jumps",
			v.command(any.Is6(), ""), name, len(have.chains), chainPrefix, len(have.jumps)))
		if v.nft {
			notes := slices.DeleteFunc(slices.Collect(maps.Keys(have.chains)), func(c string) bool { return !isNote(c) })
			if err := tidyNFT(any, name, notes); err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", strings.TrimSuffix(restore, "-restore"), err))
			}
		}
	}
	return removed, errors.Join(errs...)
}
