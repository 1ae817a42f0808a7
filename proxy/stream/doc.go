// Package stream serves what has connections: TCP, and SCTP with its associations.
//
// A [Server] opens listeners for front ends. Each connection is accepted, admitted, has
// an endpoint found for it, and is handed over to package forward as a pair; it reads in
// that order in conn.go. What differs is how it waits for what the search for an endpoint asks for:
//
//	tcp_linux.go   loops, one for each processor, accept and connect: nothing waits
//	goroutine.go   a goroutine for each connection. For TCP, portable.go has it on other
//	               systems, for endpoints that something else than the kernel connects to,
//	               and for clients that no loop has accepted; for associations, sctp.go
//
// What a connection needs it is given by its front end: the view, affinity, the trace.
// All that are open are in a register, which is asked when usher ends.
package stream
