// Package socks is a SOCKS5 server (RFC 1928) through which programs reach Services
// by name, on systems and for users that cannot have cluster IPs.
//
// A client asks for a name and a port (CONNECT). A Service's name, in any of the
// forms that a Pod may use, and a cluster IP lead to the Service's front end in
// package proxy, so that such a connection is like any other: with attempts,
// affinity and a trace. Everything else is connected to directly, so that a
// program can have it as its only proxy. BIND and UDP ASSOCIATE are refused.
//
// The protocol is that of github.com/things-go/go-socks5; where a name leads is in
// names.go.
package socks
