// Package portal has the words for what brings what clients send to a VIP of a
// Service to a local listener of usher's.
//
// There are several ways to do that, the modes, each in a folder of its own. Each makes
// a [Portal]:
//
//	iptables   rules that change the destination          needs iptables, CAP_NET_ADMIN
//	nftables   the same, by netlink alone                 needs nf_tables, CAP_NET_ADMIN
//	address    VIPs become local addresses of the node    needs CAP_NET_ADMIN, no netfilter
//	none       nothing; listeners are on loopback         needs nothing
//
// The owner of a Portal asks it with Listen where the listeners for a service
// port have to be, opens them, and then hands over rules with Apply. A Portal
// remembers the rules that it was given, changes only what differs, and Check
// compares them with what the kernel really holds and repairs it. What a process
// leaves when it ends, or is killed, its successor finds: Listen proposes the
// same ports again, the first Apply replaces in place.
//
// Which modes there are, and in which order they are tried, is for package modes to
// say, which makes portals by name, and lists and takes out what any mode has left. A
// [Mode] says what has to be known of it by its [Traits], so that nobody need ask for its
// name: a new mode is a folder and a line in package modes.
//
//	portal      the words: Portal, Target, Rule, Bind, Mode; what all modes keep books of
//	kernel      what several modes ask the kernel: routes, conntrack, events, ports
//	redirect    one machine for the modes whose rules the kernel redirects by
//	iptables    how those rules are written to iptables, and read
//	nftables    how they are written to nf_tables, and read
//	address, none
//	            the modes that do not redirect
//	modes       all of them, in order
//
// Beside the modes, package netns manages a portal in a network namespace for one
// command, and package handover decides who manages the portals of a node.
//
// In reading order: portal.go, target.go, mode.go; then family.go, sources.go,
// interfaces.go and ports.go.
//
// A portal never opens a listener, never reads a packet and knows nothing of
// Services: what a rule is for is a comment to it.
package portal
