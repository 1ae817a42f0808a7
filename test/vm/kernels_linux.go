package vm

import "slices"

// Kernel is a kernel in a certain state, and what is checked in it, in this
// order.
type Kernel struct {
	Name string
	// Modules are loaded before the checks.
	Modules []string
	// Bare kernels load no further modules by themselves.
	Bare   bool
	Checks []Check
}

// Check is one thing that is checked.
type Check struct {
	Name string
	Body func()
}

// network is what the lab needs.
var network = []string{"ipv6", "veth"}

// association is what SCTP needs: the kernel asks for the hash of its cookies
// when the first socket listens.
var association = []string{"sctp", "hmac", "md5", "sha1_generic"}

// netfilter is what the iptables portal needs.
var netfilter = []string{"iptable_nat", "xt_nat", "xt_comment", "xt_sctp"}

// Kernels are all kernels.
var Kernels = []Kernel{
	{Name: "a kernel with SCTP and netfilter", Modules: slices.Concat(network, association, netfilter), Checks: withNetfilter()},
	{Name: "a kernel that has not loaded its SCTP", Modules: slices.Concat(network, netfilter), Checks: notLoaded},
	{Name: "a kernel with SCTP and without netfilter", Modules: slices.Concat(network, association), Bare: true, Checks: withoutNetfilter()},
}
