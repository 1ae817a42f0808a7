// Package handover ensures that a single usher process manages the portals of a network namespace. It transfers that
// role and the listening sockets to a successor without dropping connections.
//
// The process that manages the portals, the holder, has the [Lock]. A successor calls [Ask]. From then on the holder
// changes nothing in the kernel. It sends its listening sockets, and both processes accept from them. The successor
// installs its rules and calls Take. The holder then closes its copies of the sockets, releases the lock, and lets its
// remaining connections end. If the successor disconnects before that, the holder continues unchanged.
//
// Since both use the same sockets, no rule has to change, and no connection that waits to be accepted is lost.
//
// The lock is an abstract Unix socket (unix(7)). Like rules and routes, it belongs to the network namespace. It needs
// no file. The kernel removes it when no process has it open: when the holder ends for any reason, unless its keeper (a
// supervisor process) has a copy. Any process in the network namespace can make such a socket and connect to one. So
// its name contains a random part, and a process that wants the lock queries all sockets of its user whose names have a
// holder's prefix. The kernel lists them with their users (sock_diag(7)), so other users' sockets cost no time. Holders
// and successors must prove their capability to change this network namespace: CAP_NET_ADMIN in the user namespace that
// owns it. Each proves it by signing the other's challenge. A process of another user that connects is rejected at once
// (SO_PEERCRED), and nothing is received from it.
//
// Packets (unix(7), SOCK_SEQPACKET) in the order of events:
//
//	successor           holder
//	hand over        →                     with a challenge for the holder to sign
//	                 ←  held               with a challenge for the successor to sign
//	signed           →
//	                 ←  names of sockets, one per line, with the sockets (SCM_RIGHTS); repeated
//	                 ←  a single line feed: the end
//	more             →                     optional
//	                 ←  names and sockets added since, and a line feed; only after "more"
//	taken            →
//	                 ←  released
//
// A process that only checks for a holder sends "who is it", and disconnects after the answer.
//
// A holder that is killed hands nothing over. Its keeper, if it has one, has copies of its sockets (package fdstore)
// and of the lock's listener. Processes that connect meanwhile wait in that listener's backlog.
package handover
