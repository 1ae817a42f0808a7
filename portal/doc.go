// Package portal defines portals. A portal brings packets for a Service's VIP to a local listener of usher, in one of
// several modes. Each mode has a folder, and makes a [Portal]:
//
//	iptables   rules that change the destination          needs iptables, CAP_NET_ADMIN
//	nftables   the same, by netlink alone                 needs nf_tables, CAP_NET_ADMIN
//	address    VIPs become local addresses of the node    needs CAP_NET_ADMIN, no netfilter
//	none       nothing; listeners are on loopback         needs nothing
//
// The caller of a Portal calls Listen to get the addresses for the listeners of a service port, listens there, and then
// passes rules to Apply. A Portal remembers these rules and changes only differences. Check compares them with the
// rules in the kernel and repairs the latter. When a process ends or is killed, its rules stay unless it removed them.
// Its successor reuses them: Listen proposes the same ports again, and the first Apply replaces rules in place.
//
// Package modes lists the modes in the order in which they are tried. It makes portals by name, and lists and removes
// the rules that any mode has left. A [Mode] describes itself by its [Traits], so callers need not check its name: a
// new mode is a folder and a line in package modes.
//
//	portal      the types Portal, Target, Rule, Bind and Mode; state that is common to all modes
//	kernel      kernel queries and changes that several modes share: routes, conntrack, events, ports
//	redirect    the common part of the modes whose rules redirect packets
//	iptables    writes those rules to iptables, and reads them
//	nftables    writes them to nf_tables, and reads them
//	address, none
//	            the modes that do not redirect
//	modes       all of them, in order
//
// In addition, package netns has a portal in a network namespace in which one command runs. Package handover decides
// which process manages the portals of a node. Package fdpass passes descriptors between processes, and package fdstore
// stores them with the service manager.
//
// In reading order: portal.go, target.go, mode.go, origin.go; then family.go, sources.go, interfaces.go and ports.go.
//
// A portal never opens a listener, never reads a packet and knows nothing of Services except their names.
package portal
