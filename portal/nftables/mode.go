package nftables

import (
	"github.com/usherproxy/usher/portal"
)

const name = "nftables"

var traits = portal.Traits{
	Installs: true, Redirects: true, KubeProxy: "nftables",
	About: "a table of nftables redirects what is sent to a\ncluster IP to usher's port.",
}
