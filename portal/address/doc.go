// Package address is the portal mode in which VIPs become local addresses, so that the kernel itself delivers packets
// for them to listeners at VIP:port. It needs no netfilter.
//
// Where that works, VIPs are addresses of a dedicated network namespace. Otherwise they are addresses of the node, and
// its processes that listen on all addresses also receive packets for them. Where local routes have no effect, as in
// gVisor, they are addresses of an interface: kernel.VIPLink.
//
//	address_linux.go  the portal: the wanted and the existing routes
//	location_linux.go whether a VIP is on the node or in the namespace, and the routes to it
//	selftest_linux.go tests whether a namespace works here
//	cidrs_linux.go    rejects packets to unused addresses of the service CIDRs
//	space_linux.go    the namespace
//	link_linux.go     the pair of interfaces that connects it
//	exempt_linux.go   keeps clients' addresses on a node that translates addresses
package address
