// Package kernel asks the Linux kernel what more than one mode of portal, or who listens
// for a portal, wants to know, and tells it what more than one mode needs. It knows no mode.
//
//	origdst_linux.go    where a connection that was redirected wanted to go
//	flows_linux.go      the same for datagrams, by conntrack
//	conntrack_linux.go  forgetting UDP flows that rules lead elsewhere now
//	landing.go          the addresses to which packets are led
//	routes_linux.go     routes that make addresses local: landings, and VIPs in mode address
//	viplink_linux.go    the interface that has VIPs as addresses where such routes have no effect
//	inuse_linux.go      which addresses connections have, from what /proc tells (procnet.go)
//	listeners_linux.go  who listens on this node, by the names of processes
//	answers_linux.go    what leads answers to clients' own addresses here
//	paths_linux.go      by which interface an address is reached, and whether directly
//	freeports_linux.go  ports that listeners may have, and that clients have not (ports.go)
//	watch_linux.go      changes by others, as the kernel tells of them
//	nftables_linux.go   speaking to nf_tables, and what it tells of changes by others
//	behind_linux.go     whether an address is behind an interface
//	rights_linux.go     what this process may do
//
// All of it is about the network namespace of the calling thread. On other systems there
// is next to nothing (other.go).
package kernel
