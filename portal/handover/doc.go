// Package handover makes sure that one usher at a time manages the portals of a
// network namespace, and hands the office from one to the next without a gap.
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
// is, however that ended. The successor speaks over it. Packets (unix(7),
// SOCK_SEQPACKET) in the order of events:
//
//	successor           holder
//	hand over        →
//	                 ←  names of sockets, one a line, with the sockets (SCM_RIGHTS); repeated
//	                 ←  (nothing)
//	taken            →
//	                 ←  released
package handover
