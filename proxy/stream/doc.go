// Package stream serves connections: TCP, and SCTP with its associations.
//
// A [Server] opens listeners for front ends. An accepted connection is admitted (conn.go), gets an endpoint, and is
// passed to package forward together with the connection to the endpoint, as a pair. conn.go also records the end. One
// of two kinds of runner accepts the client and connects to endpoints:
//
//	tcp_linux.go   loops, one per CPU (at most 64), accept and connect without blocking
//	goroutine.go   one goroutine per connection. portable.go uses it for TCP on other systems, for endpoints that
//	               Options.Dial connects to, and for clients passed to Serve; sctp_linux.go for associations
//
// A connection gets everything else that it needs from its front end: the view, affinity, the trace. A register counts
// all open connections. When usher stops, Drain waits until the register is empty.
package stream
