// Package stream serves connections: TCP, and SCTP with its associations.
//
// A [Server] opens listeners for front ends. Each connection is accepted and admitted, gets an endpoint, and is passed
// to package forward as a pair; conn.go has these steps in this order. While the search for an endpoint lasts, a
// connection waits in one of two ways:
//
//	tcp_linux.go   loops, one per CPU (at most 64), accept and connect without blocking
//	goroutine.go   one goroutine per connection. portable.go uses it for TCP on other systems, for endpoints that
//	               Options.Dial connects to, and for clients passed to Serve; sctp.go for associations
//
// The front end provides everything that a connection needs: the view, affinity, the trace. A register counts all open
// connections; Drain waits until it is empty when usher stops.
package stream
