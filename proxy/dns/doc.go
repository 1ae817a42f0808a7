// Package dns answers for the names of Services, as the Kubernetes DNS
// specification has it (github.com/kubernetes/dns, docs/specification.md, schema
// 1.1.0), and passes all other names on to the system's resolver.
//
// In go Services with their config.Discovery, by [Server.Apply], and queries, by
// the sockets given to [Server.Serve]. A query goes through these files:
//
//	serve.go    sockets     → bytes, and back; datagrams.go for UDP
//	query.go    bytes       → a question, or a refusal
//	answer.go   a question  → records of the cluster's zone
//	forward.go  a question  → what the system's resolver says
//	reply.go    records     → bytes that the client has room for
//
// exchange.go puts these together.
//
// zone.go keeps what there is at which name, records.go says what one Service adds
// to it, and resolvconf.go reads the list of resolvers. serve.go reads and writes: UDP with a fixed number of readers, TCP
// with a bounded number of connections; each of them answers for names of the
// cluster itself, and as many queries as there are slots wait for other resolvers.
// Beyond that a query is answered by SERVFAIL at once: nothing queues up.
//
// It caches nothing, signs nothing, and transfers no zones.
package dns
