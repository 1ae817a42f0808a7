// Package proxy is the data plane. Each service port has a front end that accepts clients, finds an endpoint
// that answers, and forwards the bytes.
//
// The package itself reconciles: a source of package config passes changes to [Proxy.Apply], which compares
// them with the running state. Read a change in this order: proxy.go (determines the differences),
// reconcile.go (the loop that adapts listeners and portal rules, and retries) and frontend.go (one service
// port: its view, VIPs, listeners and rules). The data path is in these folders:
//
//	frontend   a service port as clients see it: admission, counters
//	stream     TCP and SCTP: connections, from accept to close
//	datagram   UDP: sessions
//	search     finds an endpoint that answers, for both
//	balance    selects endpoints and quarantines failed ones
//	health     probes endpoints
//	forward    forwards the bytes
//	outcome    the codes for how a connection ends
//	budget     allocates file descriptors
//	trace      records connections and changes
//
// Package portal decides how a VIP reaches a listener.
//
// Locks: a change of the configuration, or of a front end's listeners and rules, holds Proxy.changes and then
// Proxy.mu. It holds Proxy.changes alone while the kernel is at work. Readers hold mu. A connection holds
// neither, except that [Proxy.Serve] takes mu before its connection begins. A connection or UDP session reads
// its front end's view, an immutable value behind an atomic pointer.
package proxy
