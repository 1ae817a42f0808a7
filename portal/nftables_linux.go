package portal

import (
	"context"
	"errors"
)

// newNFTables makes the portal whose rules are in a table of nf_tables, which it
// speaks to itself; see nftlayout.go.
func newNFTables(_ context.Context, opts Options) (Portal, error) {
	if !hasNetAdmin() {
		return nil, errNoNetAdmin
	}
	opts = opts.withMark()
	p := newRedirect(ModeNFTables, opts)
	opts.Log = p.log
	p.removeOthers = func(ctx context.Context) ([]string, error) {
		rules, err := removeIPTables(ctx, opts, nil, false)
		routes, err2 := removeRoutes(vipRoutes)
		return append(rules, routes...), errors.Join(err, err2)
	}
	p.removeOwn = func(context.Context) error {
		_, err := removeNFTables()
		return err
	}
	p.nftMatters = func(table, _ string) bool { return table == nftTable }
	if err := p.open(func(family Family) (backend, error) { return openNFTRules(family, opts) }); err != nil {
		return nil, err
	}
	p.log.WithField("left", len(p.before)).Debug("nftables works")
	return p, nil
}
