// Package proxy is the data plane. Each service port has a front end that accepts clients, finds an endpoint
// that answers, and forwards the bytes.
//
// The package itself reconciles: a config.Source passes changes to [Proxy.Apply], which compares them with the running
// state. To follow a change, read proxy.go, which determines the differences. Then read reconcile.go, the loop that
// adapts listeners and portal rules, and retries. Then read frontend.go: the view, VIPs, listeners and rules of one
// service port. The main folders of the data path are:
//
//	frontend   the client side of a service port: admission, counters
//	stream     TCP and SCTP: connections, from accept to close
//	datagram   UDP: sessions
//	search     finds an endpoint that answers, for stream and datagram
//	balance    selects endpoints and quarantines failed ones
//	health     probes endpoints
//	forward    forwards the bytes
//	outcome    the codes for the ends of connections
//	budget     allocates file descriptors
//	trace      records connections and changes
//
// Package portal decides how a VIP reaches a listener.
//
// Locks: a change of the configuration, or of a front end's listeners and rules, takes Proxy.changes and then Proxy.mu.
// The change releases mu during slow kernel operations. Readers hold either lock. A connection holds neither, but
// [Proxy.Serve] takes mu to find the front end. A connection or UDP session reads its front end's view, an immutable
// value behind an atomic pointer.
package proxy
