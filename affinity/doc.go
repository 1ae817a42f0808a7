// Package affinity records the endpoint of each client, for Services with sessionAffinity ClientIP.
//
// There is one [Table] for each service port. An entry is valid until the table's timeout has passed since the client
// last opened a connection. Neither data on an open connection nor the connection's end prolongs it. (The Kubernetes
// API leaves this open: "the seconds of ClientIP type session sticky time"; kube-proxy's iptables mode has the same
// rule.) An entry also ends when the caller forgets it, for example because the endpoint has failed or was removed. If
// a new entry exceeds the limit of its table, or that of all tables together, it replaces an entry of its table: that
// of the client that has gone longest without a new connection. If the limit of all tables is reached and the table is
// empty, the new entry is not recorded. Only tables with few entries may use the last eighth of that limit.
//
// The package knows endpoints only by their addresses, and knows nothing about Services. It selects no endpoint and
// starts no goroutine: an expired entry stays until a call removes it or a newer entry replaces it.
package affinity
