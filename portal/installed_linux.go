package portal

import (
	"context"
	"errors"

	"github.com/sirupsen/logrus"
)

// List returns what portals of any mode, of this or another process, have put
// into the kernel, mode by mode. It changes nothing. What cannot be looked at for
// want of a tool or of kernel support is passed over.
//
// On Linux it looks into the network namespace of the calling thread.
func List(ctx context.Context, log logrus.FieldLogger) ([]Installed, error) {
	if !hasNetAdmin() {
		return nil, errNoNetAdmin
	}
	opts := Options{Log: log}.withDefaults()
	var all []Installed
	for _, v := range variants(ctx, opts) {
		for _, family := range Families {
			text, err := run(ctx, "", v.command(family.Is6(), "-save"))
			if err != nil {
				opts.Log.WithError(err).Debug("nothing to list here: the rules cannot be read")
				continue
			}
			all = append(all, sortedInstalled(ModeIPTables, rulesInTables(parseSave(text), family))...)
		}
	}
	for _, family := range Families {
		c, err := readNFT(family)
		if err != nil {
			opts.Log.WithError(err).Debug("nothing to list here: nf_tables cannot be read")
			continue
		}
		all = append(all, sortedInstalled(ModeNFTables, rulesInMaps(c))...)
	}
	routes, err := openRoutes()
	if err != nil {
		return all, err
	}
	defer routes.close()
	addrs, err := routes.list()
	vips := map[Target]Rule{}
	for _, addr := range addrs {
		if t := (Target{Addr: addr}); vipRoutes(addr) {
			vips[t] = Rule{Target: t}
		}
	}
	return append(all, sortedInstalled(ModeAddress, vips)...), errors.Join(err, ctx.Err())
}
