// Package balance selects the endpoint that a connection tries next.
//
// A [Pool] keeps the state of every endpoint of one service port across changes: its quarantine and its number of
// connections. A [Set] is the part of the pool that a group of clients may use; traffic policies make different groups.
// A Set is replaced as a whole when endpoints change. Its method Pick selects an endpoint.
//
// For each Set, a scheduler makes an order: an object that proposes the endpoints one by one, until one is usable. All
// schedulers are listed in the map named schedulers (scheduler.go); similar ones share a file. A scheduler prepares its
// data when the Set is made: shares by weight (shares.go). A table (maglev.go) is made at the first choice that needs
// it. Most schedulers stop at the first usable endpoint. Only those that compare loads look at more: p2c.go at 2,
// least.go at up to 1,024.
//
// All schedulers skip an endpoint in quarantine as long as there is another one. A quarantine after failed attempts
// ends when the endpoint answers a probe, or accepts a client. If the caller sends no probes, one connection tests the
// endpoint after some time, while others still skip it. Checks are probes of all endpoints, whether they failed or not;
// a quarantine after failed checks ends when checks pass, or are no longer requested (health.go). Every choice comes
// with its reason.
//
// If the service port asks for it, choices also skip full endpoints: those that have reached their limit of
// connections, and so have no free slot. With slow start, choices also skip new endpoints in some of their turns
// (slowstart.go). If all endpoints outside quarantine are full, clients wait in a queue (queue.go).
//
// The package dials nothing and has no goroutine and no clock: the caller passes the time, and reports the
// result of each attempt and probe with Endpoint.Report.
package balance
