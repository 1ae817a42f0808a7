// Package socks is a proxy, SOCKS5 (RFC 1928) and HTTP (RFC 9110) at one address, through
// which programs reach Services by name, on systems and for users that cannot have cluster
// IPs. The first byte of a client tells which of the two it speaks.
//
// A client asks for a name and a port, by CONNECT of either, or by a plain request of HTTP
// (GET http://web.default/), of which each makes a connection of its own. A Service's name, in any of the
// forms that a Pod may use, and a cluster IP lead to the Service's front end in
// package proxy, so that such a connection is like any other: with attempts,
// affinity and a trace. Everything else is connected to directly, so that a
// program can have it as its only proxy. BIND and UDP ASSOCIATE are refused.
//
// The protocols are those of github.com/things-go/go-socks5 and of net/http (http.go); where
// a name leads is in names.go.
package socks
