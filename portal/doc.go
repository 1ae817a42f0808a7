// Package portal arranges that what clients send to a VIP of a Service reaches
// a local listener of usher's.
//
// There are several ways to do that, the modes. Each is a [Portal]:
//
//	iptables   rules that change the destination          needs iptables, CAP_NET_ADMIN
//	nftables   the same, by netlink alone                 needs nf_tables, CAP_NET_ADMIN
//	address    VIPs become local addresses of the node    needs CAP_NET_ADMIN, no netfilter
//	none       nothing; listeners are on loopback         needs nothing
//
// [New] makes one by its name, or with "auto" the first that works here.
//
// The owner of a Portal asks it with Listen where the listeners for a service
// port have to be, opens them, and then hands over rules with Apply. A Portal
// remembers the rules that it was given, changes only what differs, and Check
// compares them with what the kernel really holds and repairs it. What a process
// leaves when it ends, or is killed, its successor finds: Listen proposes the
// same ports again, the first Apply replaces in place. Whatever is left, of any
// mode, [Cleanup] takes out.
//
// Deciding what has to be in the kernel is pure and in files of its own; reading
// and writing the kernel is kept thin. For iptables, in reading order:
//
//	redirect_linux.go    the portal, for nftables as well
//	machine_linux.go     from what is wanted to what the kernel takes, for nftables as well
//	refused.go           which rules does the kernel refuse?
//	freeports_linux.go   on which ports its listeners may be
//	setting.go           what rules depend on, for nftables as well
//	layout.go            which chains hold which rules, and why so
//	dispatch.go          how a packet gets past ten thousand rules in few steps
//	sources.go           networks of clients
//	spec.go, save.go     a rule as a value; reading what iptables-save prints
//	diff.go              from what is installed to what is wanted
//	variant.go           iptables-nft or iptables-legacy?
//	routes_linux.go      routes that make addresses local, as mode address needs too
//	ipbackend_linux.go   one family's rules: probe, read, put in
//	iptables_linux.go    what is said above, put together; what is left, listed and taken out
//
// For nftables:
//
//	nftlayout.go         which chains and maps there are, and why so
//	nftdiff.go           from what is installed to what is wanted
//	nftkernel_linux.go   one transaction for what differs
//	nftread_linux.go     what the kernel holds
//	nftencode_linux.go   keys, elements and rules as the kernel has them
//	nftbackend_linux.go  one family's rules: probe, read, put in
//	nftables_linux.go    what is said above, put together
//
// For all: watch_linux.go, by what the kernel tells of changes by others;
// mode.go and modes.go, what modes there are and what has to be known of them.
//
// The package never opens a listener, never reads a packet and knows nothing
// of Services: what a rule is for is a comment to it.
package portal
