// Package lab creates a small network for tests: namespaces that represent a
// node, its Pods, and a client outside, on one machine.
//
//	outside ───────── node ───────── pods
//	192.0.2.2         192.0.2.1      10.244.0.11, .12, …  (endpoints)
//	2001:db8::2       2001:db8::1    10.244.0.100         (a Pod that is a client)
//	                  10.244.0.1     fd00:244::11, …
//	                  fd00:244::1
//
// A namespace has no name and no file: it is removed when the test process exits.
// Servers and clients are ordinary Go sockets, created inside one.
package lab
