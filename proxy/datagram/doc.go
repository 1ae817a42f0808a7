// Package datagram serves UDP. What it has for a connection is a session: all datagrams
// between one client address and port, and one address of this node.
//
//	server_linux.go    the loops, about one for each processor
//	listener_linux.go  a listener; handover_linux.go, how its socket is left to a successor
//	socket_linux.go    that socket, and the sessions of its clients
//	session_linux.go   a session, from its first datagram to its end
//	replies_linux.go   the replies of a busy session, by another loop
//	kept_linux.go      what is sent again to the next endpoint
//
// A listener has one socket, so a session belongs to one loop for all its life, and what its
// client sends needs no lock.
package datagram
