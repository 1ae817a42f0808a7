package nftables

import "github.com/usherproxy/usher/portal"

// Mode is the mode whose rules are in a table of nf_tables, which it accesses by netlink; see layout.go. It requires
// Linux.
var Mode = portal.Mode{
	Name: "nftables",
	Traits: portal.Traits{
		Installs: true, Redirects: true, KubeProxy: "nftables",
		About: "an nftables table redirects packets for a\ncluster IP to usher's port.",
	},
	Open: portal.NeedsLinux,
}
