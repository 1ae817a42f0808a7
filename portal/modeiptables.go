package portal

const iptablesName = "iptables"

var iptablesTraits = Traits{
	Installs: true, Redirects: true, KubeProxy: "iptables",
	About: "rules in the nat table redirect what is sent to a\ncluster IP to usher's port.",
}
