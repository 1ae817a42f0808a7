// Package address is the portal mode in which VIPs become local addresses, so that the kernel itself delivers packets
// for them to listeners at VIP:port. It needs no netfilter.
//
// They are addresses of a dedicated network namespace, where that works. Otherwise they are addresses of the node, and
// its processes that listen on all addresses also receive them. Where local routes have no effect, as in gVisor, they
// are addresses of an interface: kernel.VIPLink.
//
//	address_linux.go  the portal: which routes there have to be, and are
//	location_linux.go whether a VIP is on the node or in the namespace, and the routes to it
//	selftest_linux.go tests whether a namespace works here
//	cidrs_linux.go    rejects packets to unused addresses of the service CIDRs
//	space_linux.go    the namespace
//	link_linux.go     the pair of interfaces that connects it
//	exempt_linux.go   keeps the addresses of clients if the node translates addresses
package address
