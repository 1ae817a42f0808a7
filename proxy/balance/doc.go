// Package balance picks the endpoint that a connection tries next.
//
// A [Pool] keeps the state of every endpoint of one service port across
// changes: who is in quarantine, how many connections each one has. A [Set] is
// the part of the pool that a group of clients may use (traffic policies make
// different groups); it is replaced as a whole when endpoints change, and asked
// with Pick.
//
// Whose turn it is a [Scheduler] says; the one that there is, is round robin. An endpoint
// that failed is in quarantine and is passed over as long as there is another one: until the caller has probed it and it answered, or,
// where nobody probes, for some time, after which one connection finds out while the
// others still pass it over. Every choice comes with its reason.
//
// The package dials nothing and has no goroutine and no clock: the caller
// passes the time in and reports how each attempt and each probe ended.
package balance
