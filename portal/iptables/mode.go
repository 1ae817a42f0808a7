package iptables

import "github.com/usherproxy/usher/portal"

// Mode is the mode that uses iptables rules. It requires Linux.
var Mode = portal.Mode{
	Name: "iptables",
	Traits: portal.Traits{
		Installs: true, Redirects: true, KubeProxy: "iptables",
		About: "rules in the nat table redirect packets for a\ncluster IP to usher's port.",
	},
	Open: portal.NeedsLinux,
}
