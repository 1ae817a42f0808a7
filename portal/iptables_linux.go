package portal

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"

	"github.com/sirupsen/logrus"
)

// newIPTables takes the variant that the node already uses, or else another
// one that works.
func newIPTables(ctx context.Context, opts Options) (Portal, error) {
	if !hasNetAdmin() {
		return nil, errNoNetAdmin
	}
	opts = opts.withMark()
	var errs error
	for _, v := range variants(ctx, opts) {
		p, err := newIPTablesVariant(ctx, v.variant, opts)
		switch {
		case err == nil:
			return p, nil
		case errs == nil:
			errs = err
		default:
			errs = fmt.Errorf("%w; %w", errs, err)
		}
	}
	if errs == nil {
		// Without nf_tables in the kernel iptables-nft does not even say its version.
		err := exec.ErrNotFound
		if _, failed := run(ctx, "", "iptables", "--version"); failed != nil {
			err = failed
		}
		return nil, hint(fmt.Errorf("looking for iptables: %w", err), false)
	}
	return nil, errs
}

// newIPTablesVariant makes the portal whose rules are in the nat table, and in
// mangle where clients are dropped; see layout.go.
func newIPTablesVariant(ctx context.Context, v variant, opts Options) (Portal, error) {
	p := newRedirect(ModeIPTables, opts)
	opts.Log = p.log
	p.removeOthers = func(ctx context.Context) ([]string, error) {
		rules, err := removeIPTables(ctx, opts, &v, false)
		tables, err2 := removeNFTables()
		routes, err3 := removeRoutes(vipRoutes)
		return append(append(rules, tables...), routes...), errors.Join(err, err2, err3)
	}
	p.removeOwn = func(ctx context.Context) error {
		_, err := removeIPTables(ctx, opts, nil, false)
		return err
	}
	if v.nft {
		p.nftMatters = func(table, chain string) bool {
			// In other chains rules of others come and go all the time.
			return (table == tableNAT || table == tableMangle) &&
				(chain == "PREROUTING" || chain == "OUTPUT" || strings.HasPrefix(chain, chainPrefix) && !isScratch(chain))
		}
	}
	err := p.open(func(family Family) (backend, error) { return openFamily(ctx, v, family, opts) })
	if err != nil {
		return nil, err
	}
	p.log.WithFields(logrus.Fields{"command": v.command(false, ""), "nft": v.nft, "left": len(p.before)}).Debug("iptables works")
	return p, nil
}
