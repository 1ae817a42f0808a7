// Package netns makes a network namespace in which one command runs and VIPs are local addresses. It does not need
// root: for other users it also makes a user namespace, in which the maker has root's capabilities.
//
// A helper, another process of this program, holds the namespace. It sets it up, manages its portal, which is that of
// mode address, makes sockets for the maker, and starts the command. The maker of the namespace stays outside: it
// listens and accepts on these sockets as on any others, and connects to endpoints from its own network.
//
//	outside                                helper, inside
//	Start          → clone, exec         → Inside
//	               → resolv.conf         → loopback, routes, mounts
//	Socket         ← descriptor          ← socket(2)
//	Tun            ← descriptor          ← packets of the namespace to other destinations
//	Portal         ↔ calls               ↔ portal.Portal
//	Run            → arguments           → the command
//	               ← exit status         ← wait4(2)
//	Close          → end of file         → kills all processes, and ends
//
// Nothing stays when the maker or the helper ends, for any reason. When the maker ends, the helper reads end of file
// and kills the command and its descendants. With the last process the kernel removes the namespaces and everything in
// them: routes, addresses, mounts, sockets. There is no file, and the machine's own network has no trace.
//
// In reading order:
//
//	start_linux.go    makes the namespaces, and explains why they may be forbidden
//	inside_linux.go   the helper, from its start to its end
//	network_linux.go  loopback, addresses, routes
//	names_linux.go    the mounts for name resolution
//	sockets_linux.go  passes sockets to the maker
//	portal_linux.go   the portal, as called from outside
//	command_linux.go  the command: start, signals, end
package netns
