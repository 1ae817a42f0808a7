package portal

import (
	"context"
	"os/exec"
	"strings"
)

// variants finds the variants of iptables that are installed, the one to use
// first.
func variants(ctx context.Context, opts Options) []found {
	var all []found
	plainNFT, plain := isNFT(ctx, "iptables")
	for _, v := range []variant{{"nft", true}, {"legacy", false}} {
		if _, here := isNFT(ctx, v.command(false, "")); here {
			all = append(all, found{variant: v, plain: plain && v.nft == plainNFT})
		}
	}
	covered := false
	for _, f := range all {
		covered = covered || f.plain
	}
	if plain && !covered {
		all = append(all, found{variant: variant{"", plainNFT}, plain: true})
	}
	var wanted []found
	for _, f := range all {
		if opts.IPTablesVariant != "" && f.nft != (opts.IPTablesVariant == "nft") {
			continue
		}
		for _, ip6 := range []bool{false, true} {
			text, err := run(ctx, "", f.command(ip6, "-save"))
			f.works = f.works || err == nil
			f.saved += text
		}
		wanted = append(wanted, f)
	}
	return byUse(wanted)
}

// isNFT tells whether an iptables command is there and whether it puts rules
// into nf_tables, as it says itself: "iptables v1.8.9 (nf_tables)".
func isNFT(ctx context.Context, command string) (nft, here bool) {
	if _, err := exec.LookPath(command); err != nil {
		return false, false
	}
	text, err := run(ctx, "", command, "--version")
	return strings.Contains(text, "nf_tables"), err == nil
}
