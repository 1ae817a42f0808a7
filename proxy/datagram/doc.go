// Package datagram serves UDP. Its equivalent of a connection is a session: all datagrams that one listener exchanges
// with one client (address and port) at one local IP address.
//
//	server_linux.go    the loops, about one per CPU
//	listener_linux.go  a listener
//	socket_linux.go    a listener's socket, and the sessions of its clients
//	session_linux.go   a session, from its first datagram to its end
//	replies_linux.go   the replies of a busy session, forwarded by another loop
//	handover_linux.go  the handover of listeners and sessions to the process that replaces this one
//	kept_linux.go      the datagrams that are sent again to the next endpoint
//
// A listener has one socket, so a session belongs to one loop for all its life, and datagrams from clients need no
// lock.
package datagram
