// Package proxy is the data plane: for each service port a front end that
// accepts clients, finds an endpoint that answers, and moves the bytes.
//
// The package itself reconciles: changes come in through [Proxy.Apply], called by a
// source of package config, and are compared with what runs. The life of a change is in
// proxy.go (what differs), reconcile.go (the loop that brings listeners and portal rules to
// what is wanted, and tries again) and frontend.go (one service port: its view, VIPs,
// listeners and rules). The rest is in the folders:
//
//	frontend   a service port as clients see it, who may, what is counted
//	stream     TCP and SCTP: connections, from accept to close
//	datagram   UDP: sessions
//	search     how both find an endpoint that answers
//	balance    whose turn it is, and who is in quarantine
//	health     probes endpoints
//	forward    moves the bytes
//	outcome    the words for how a connection ends
//	budget     who may have descriptors
//	trace      what happened
//
// How a VIP reaches a listener is decided by package portal.
//
// Locks: Proxy.changes and then Proxy.mu are held by who changes the configuration or a
// front end's listeners and rules, and changes alone while the kernel is at work; who
// looks holds mu. A connection holds neither (but for those that come to
// [Proxy.Serve], before they begin). A connection or a UDP
// session reads its front end's view, an immutable value behind an atomic pointer.
package proxy
