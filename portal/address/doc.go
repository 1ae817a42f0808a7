// Package address is the portal mode in which VIPs become local addresses, so that the kernel itself delivers packets
// for them to listeners at VIP:port. It needs no netfilter.
//
// Processes of the node that listen on all addresses also receive packets for VIPs. Where local routes have no effect,
// as in gVisor, VIPs are addresses of an interface: kernel.VIPLink.
//
//	address_linux.go the portal: the wanted and the existing routes
//	cidrs_linux.go   rejects packets to unused addresses of the service CIDRs
package address
