// Package datagram serves UDP. What it has for a connection is a session: all datagrams
// between one client address and port, and one address of this node.
//
//	server_linux.go    the loops, about one for each processor
//	listener_linux.go  a listener, which has a socket on several loops; handover_linux.go,
//	                   how its sockets are left to a successor
//	socket_linux.go    one of these, and the sessions of the clients whose datagrams the
//	                   kernel brings there
//	session_linux.go   a session, from its first datagram to its end
//	kept_linux.go      what is sent again to the next endpoint
//
// The kernel brings all datagrams of one client to the same socket, so a session belongs
// to one loop for all its life, and nothing that a datagram touches needs a lock.
package datagram
