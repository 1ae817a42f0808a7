// Package handover ensures that a single usher process manages the portals of a network namespace. It transfers that
// role and the listening sockets to a successor without dropping connections.
//
// The process that manages the portals, the holder, has the [Lock]. A successor calls [Ask]. From then on the holder
// changes nothing in the kernel. It sends its listening sockets, and both processes accept from them. The successor
// installs its rules and calls Take. The holder then closes its copies of the sockets, releases the lock, and lets its
// remaining connections end. If the successor disconnects before that, the holder continues unchanged.
//
// Both processes use the same sockets. So no rule has to change, and no connection in a listen backlog is lost.
//
// The lock is an abstract Unix socket (unix(7)). It needs no file and, like rules and routes, belongs to the network
// namespace. The kernel removes it when no process has it open. That is when the holder ends, unless its keeper (a
// supervisor process) has a copy.
//
// Any process in the network namespace can open such a socket, and can connect to it. So the socket's name has a prefix
// and a random part, and a process that wants the lock queries all of its user's sockets that have the prefix. The
// kernel lists sockets with their users (sock_diag(7)), so it need not connect to those of other users. Holder and
// successor prove to each other that they may change this network namespace: each signs the other's challenge, which
// needs CAP_NET_ADMIN in the user namespace that owns the network namespace. A holder rejects processes of other users
// at once (SO_PEERCRED), and receives nothing from them.
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
// A holder that is killed hands nothing over. Its keeper, if there is one, has copies of its sockets (package fdstore)
// and of the lock's listener. Processes that connect before usher is restarted wait in that listener's backlog.
package handover
