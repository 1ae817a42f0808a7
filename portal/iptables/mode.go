package iptables

import (
	"github.com/usherproxy/usher/portal"
)

const name = "iptables"

var traits = portal.Traits{
	Installs: true, Redirects: true, KubeProxy: "iptables",
	About: "rules in the nat table redirect what is sent to a\ncluster IP to usher's port.",
}
