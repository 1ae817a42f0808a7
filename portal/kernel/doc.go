// Package kernel has the kernel queries and changes that more than one mode of portal, or the process that listens for
// a portal, needs. It depends on no mode.
//
//	origdst_linux.go    the original destination of a redirected connection
//	flows_linux.go      the same for datagrams, by conntrack
//	conntrack_linux.go  deletes UDP flows that rules now redirect elsewhere; translated sources
//	addresses.go        the addresses to which packets are redirected, and sources of flows
//	routes_linux.go     routes that make addresses local: redirect addresses, and VIPs in mode address
//	viplink_linux.go    the interface that has VIPs as addresses where such routes have no effect
//	inuse_linux.go      the local addresses of connections, from /proc (procnet.go)
//	listeners_linux.go  the listeners on this node, by the names of processes
//	answers_linux.go    policy routing for answers to clients' own addresses
//	paths_linux.go      by which interface an address is reached, and whether directly
//	ports.go            ports for listeners that clients do not use
//	watch_linux.go      change events from the kernel
//	nftables_linux.go   the connection to nf_tables, and its change events
//	rights_linux.go     the capabilities of this process
//
// All of it acts on the network namespace of the calling thread. Other systems have stubs (other.go).
package kernel
