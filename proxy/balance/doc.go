// Package balance picks the endpoint that a connection tries next.
//
// A [Pool] keeps the state of every endpoint of one service port across
// changes: who is in quarantine, how many connections each one has. A [Set] is
// the part of the pool that a group of clients may use (traffic policies make
// different groups); it is replaced as a whole when endpoints change, and asked
// with Pick.
//
// Which one is next is up to a scheduler: a file, and a line in a list (scheduler.go). It is asked for
// endpoints one after the other until one can be used, and has prepared what it needs for
// that when the Set was made: a table (maglev.go) or the shares that weights make (shares.go). Only
// those that compare loads look at more than one endpoint while most can be used, and at
// 1,024 at most (least.go).
//
// An endpoint that failed is in quarantine and is passed over, by every scheduler, as long as there
// is another one: until the caller has probed it and it answered, or,
// where nobody probes, for some time, after which one connection finds out while the
// others still pass it over (health.go). Every choice comes with its reason.
//
// A [Filter] makes choices skip further endpoints; a Set has none unless its service port asks for it. There are two:
// slow start (slowstart.go), and the bound of an endpoint (filter.go): one that has as many connections as
// it may is skipped, and if none has free slots, clients wait in a queue (queue.go).
//
// The package dials nothing and has no goroutine and no clock: the caller
// passes the time in and reports how each attempt and each probe ended, by Endpoint.Report.
package balance
