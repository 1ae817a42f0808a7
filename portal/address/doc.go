// Package address is the mode of portal in which VIPs become local addresses, so that the
// kernel itself brings what is sent to them to listeners at VIP:port. It needs no netfilter.
//
// They are addresses of a network namespace of usher's own, where that works, and otherwise of
// the node, whose processes that listen on all addresses are there too. Where local routes have
// no effect, as in gVisor, they are addresses of an interface: kernel.VIPLink.
//
//	address_linux.go  the portal: which routes there have to be, and are
//	places_linux.go   where a VIP is, on the node or in the namespace, and what leads there
//	trial_linux.go    finding out whether a namespace works here
//	cidrs_linux.go    rejecting what is sent to unused addresses of the service CIDRs
//	space_linux.go    the namespace
//	link_linux.go     the pair of interfaces that leads into it
//	exempt_linux.go   keeping the addresses of clients where the node translates some
package address
