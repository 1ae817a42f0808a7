// Package kernel has kernel queries and changes for more than one mode of portal, or for the process that listens for a
// portal. It depends on no mode.
//
//	origdst_linux.go    the original destination of a redirected connection
//	flows_linux.go      the same for datagrams, by conntrack
//	conntrack_linux.go  deletes flows that contradict the rules; translated sources
//	addresses.go        the addresses to which packets are redirected, and sources of flows
//	routes_linux.go     routes that make addresses local: redirect addresses, and VIPs in mode address
//	viplink_linux.go    the interface that has VIPs as addresses where such routes have no effect
//	inuse_linux.go      the local addresses of connections, from /proc (procnet.go)
//	listeners_linux.go  the listeners on this node, by the names of processes
//	answers_linux.go    policy routing for answers to clients' own addresses
//	lastroutes_linux.go routes to VIPs on a node without a default route
//	paths_linux.go      by which interface an address is reached, and whether directly
//	links_linux.go      the interfaces, by the kernel's events
//	ports.go            ports for listeners that clients do not use
//	watch_linux.go      change events from the kernel
//	nftables_linux.go   the connection to nf_tables, and its change events
//	firewall_linux.go   the chains of host firewalls that may drop redirected packets
//	tryinput_linux.go   test connections through such firewalls
//	rights_linux.go     the capabilities of this process
//
// All of it acts on the network namespace of the calling thread. Other systems have stubs (other.go).
package kernel
