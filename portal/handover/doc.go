// Package handover makes sure that one usher at a time manages the portals of a
// network namespace, and hands that from one to the next without a gap.
//
// Who manages the portals has the [Lock]. A successor calls [Ask]. The holder
// then changes nothing in the kernel any more, and gives it its listening
// sockets; both accept from them. The successor installs what it wants and calls
// Take: the holder closes its copies of the sockets, gives up the lock, and lets
// the connections that it has end. If the successor goes away before, the holder
// goes on as if nothing had been.
//
// Since the sockets are the same ones, no rule has to change, and no connection
// that waits to be accepted is lost.
//
// The lock is an abstract Unix socket (unix(7)): it belongs to the network
// namespace, as rules and routes do, needs no file, and is gone when the process
// is, however that ended. Anybody in the network namespace can make such a socket, and
// connect to one. So its name has a part that cannot be guessed, a process that wants
// the lock asks all whose names begin as a holder's do (/proc/net/unix lists
// them), and only who shows that it may change this network namespace counts, for a
// holder as for a successor: CAP_NET_ADMIN in the user namespace that owns it. Each
// proves it by signing a challenge that the other one made. Who runs as another user
// is a stranger at once (SO_PEERCRED), and nothing is received from it.
//
// Packets (unix(7), SOCK_SEQPACKET) in the order of events:
//
//	successor           holder
//	hand over        →                     with a challenge for the holder to sign
//	                 ←  held               with a challenge for the successor to sign
//	signed           →
//	                 ←  names of sockets, one a line, with the sockets (SCM_RIGHTS); repeated
//	                 ←  (nothing)
//	more             →                     or not
//	                 ←  names and sockets that are new, and (nothing)
//	taken            →
//	                 ←  released
//
// Who only wants to know whether somebody has the lock says "who is it", and leaves
// when it has been told.
//
// A holder that is killed hands nothing over. Its keeper, if it has one, has copies of its
// sockets (package fdstore), and of the lock's listener: whoever asks meanwhile waits there.
package handover
