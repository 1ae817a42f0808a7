// Package dns answers for the names of Services, according to the Kubernetes DNS specification
// (github.com/kubernetes/dns, docs/specification.md, schema 1.1.0), and forwards queries for all other names to
// the system's resolver.
//
// Its inputs are Services with their config.Discovery, by [Server.Apply], and queries, by the sockets given
// to [Server.Serve]. A query goes through these files:
//
//	serve.go    sockets     → bytes, and back
//	query.go    bytes       → a question, or a refusal
//	answer.go   a question  → records of the cluster's zone
//	forward.go  a question  → the answer of the system's resolver
//	reply.go    records     → bytes, as many as the client accepts
//
// exchange.go combines these.
//
// zone.go holds the data of each name, records.go makes the records of one Service, and resolvconf.go reads
// the list of resolvers. A fixed number of goroutines reads UDP. Each TCP connection has its own goroutine, up
// to a limit. A query for an external name occupies a slot while it waits for a resolver. If no slot is free,
// the Server answers SERVFAIL at once: such queries do not queue.
//
// It caches nothing, signs nothing, and transfers no zones.
package dns
