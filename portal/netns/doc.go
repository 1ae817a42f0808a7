// Package netns makes a network namespace in which one command runs and VIPs are
// local addresses, without root: it is made together with a user namespace,
// inside which its maker may do what only root may outside.
//
// The namespace is held by a helper, which is this program once more. The helper
// sets it up, manages its portal, which is that of mode address, makes sockets
// that it hands out, and starts the command. Who made the namespace stays
// outside: it listens and accepts on the sockets as on any others, and connects
// to endpoints from the network that it is in itself.
//
//	outside                                helper, inside
//	Start          → clone, exec         → Inside
//	               → resolv.conf         → loopback, routes, mounts
//	Socket         ← descriptor          ← socket(2)
//	Tun            ← descriptor          ← what the namespace sends elsewhere
//	Portal         ↔ calls               ↔ portal.Portal
//	Run            → arguments           → the command
//	               ← how it ended        ← wait4(2)
//	Close          → end of file         → kills what is left, and ends
//
// Nothing stays when one of them ends, however that comes about: the helper sees
// the end of file when the maker is gone, kills every process that descends from
// the command, and with the last process the kernel takes out the namespaces
// and all that is in them: routes, addresses, mounts, sockets. There is no file,
// and nothing in the network of the machine itself.
//
// In reading order:
//
//	start_linux.go    making the namespaces; why it may be forbidden
//	inside_linux.go   the helper, from its start to its end
//	network_linux.go  loopback, addresses, routes
//	names_linux.go    the mounts that make names resolve
//	sockets_linux.go  sockets that are handed out
//	portal_linux.go   the portal, as it is called from outside
//	command_linux.go  the command: start, signals, end
package netns
