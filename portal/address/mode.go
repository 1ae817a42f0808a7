package address

import "github.com/usherproxy/usher/portal"

// Mode is the mode that makes VIPs local addresses of the node. It requires Linux.
var Mode = portal.Mode{
	Name: "address",
	Traits: portal.Traits{
		Installs: true, Local: true,
		About: "a route makes each cluster IP an address of this node,\nand usher listens on it.",
	},
	Open: portal.NeedsLinux,
}
