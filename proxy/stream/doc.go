// Package stream serves connections: TCP, and SCTP with its associations.
//
// A [Server] opens listeners for front ends. conn.go admits an accepted connection, and records its end. In between,
// the connection gets an endpoint, and is passed to package forward as a pair. During the search for an endpoint, it
// waits in one of two kinds of runner:
//
//	tcp_linux.go   loops, one per CPU (at most 64), accept and connect without blocking
//	goroutine.go   one goroutine per connection. portable.go uses it for TCP on other systems, for endpoints that
//	               Options.Dial connects to, and for clients passed to Serve; sctp_linux.go for associations
//
// The front end provides everything that a connection needs: the view, affinity, the trace. A register counts all open
// connections; Drain waits until it is empty when usher stops.
package stream
