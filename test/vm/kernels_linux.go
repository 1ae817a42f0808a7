package vm

import "slices"

// Kernel is a kernel in a certain state, and the checks to run in it, in this order.
type Kernel struct {
	Name string
	// On is the platform and source of the kernel.
	On *Platform
	// Modules are loaded before the checks.
	Modules []string
	// Bare kernels do not load further modules automatically.
	Bare   bool
	Checks []Check
}

// Check is one check.
type Check struct {
	Name string
	Body func()
}

// Kernels are the kernels to test.
var Kernels = []Kernel{
	{Name: "a kernel with SCTP and iptables", On: UML, Modules: []string{"sctp"}, Checks: append(redirectChecks("iptables", true),
		sctpCheck(ipv4, "iptables", "the listener uses another port of --proxy-port-range if the preferred one is taken", portRange),
		sctpCheck(ipv4, "iptables", "500 associations at once need fewer than 100 threads", manyAssociations))},
	{Name: "a kernel with SCTP and nftables", On: PC, Modules: []string{"sctp"}, Checks: append(redirectChecks("nftables", false), pathMTU("nftables"))},
	// The last check of notLoaded loads SCTP. The address portal has IPv6 here, and IPv4 in the next kernel.
	{Name: "a kernel that has not loaded its SCTP", On: UML, Checks: slices.Concat(notLoaded, sctpChecks(ipv6, "address", false), addressChecks)},
	// This one does not load veth automatically either.
	{Name: "a kernel with SCTP and without netfilter", On: UML, Modules: []string{"veth", "sctp"}, Bare: true, Checks: slices.Concat(withoutNetfilter, sctpChecks(ipv4, "address", false))},
	{Name: "a kernel for arm64", On: ARM, Checks: everydayChecks},
	{Name: "a kernel with bad networks", On: UML, Modules: []string{"sch_netem"}, Checks: badNetworks},
}
