// Package socks is a proxy for SOCKS5 (RFC 1928) and HTTP (RFC 9110) at one address. Through it, programs reach
// Services by name even where the system, or the user, has no access to cluster IPs. The first byte from a client
// determines its protocol.
//
// A client requests a name and a port, by CONNECT of one of the two protocols, or by plain HTTP requests (GET
// http://web.default/). Each plain request makes its own connection. A Service's name, in any form that a Pod may use,
// or one of its VIPs connects to the Service's front end in package proxy. So such a connection is like any other: with
// attempts, affinity and a trace. The proxy connects to everything else directly, so that a program can have it as its
// only proxy. BIND and UDP ASSOCIATE are refused.
//
// The protocols are implemented by github.com/things-go/go-socks5 and net/http (http.go); names.go resolves the names.
package socks
