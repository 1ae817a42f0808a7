package portal

const nftablesName = "nftables"

var nftablesTraits = Traits{
	Installs: true, Redirects: true, KubeProxy: "nftables",
	About: "a table of nftables redirects what is sent to a\ncluster IP to usher's port.",
}
