// Package affinity records the endpoint of each client, for Services with sessionAffinity ClientIP.
//
// There is one [Table] for each service port. An entry is valid until the table's timeout has passed since the client
// last opened a connection. Neither data on an open connection nor the connection's end prolongs it. (The Kubernetes
// API does not say which event restarts the time; kube-proxy's iptables mode has the same rule.) An entry also ends
// when the caller forgets it, for example because the endpoint has failed or was removed. If a table has
// [Limits].PerTable entries, or all tables together have [Limits].Total, a new entry replaces the least recently used
// entry of the same table; it is not recorded if that table is empty. The last eighth of [Limits].Total is reserved for
// small tables: those that are empty or have fewer than [Limits].PerTable/16 entries. So large tables cannot shut out
// others.
//
// The package knows endpoints only by their addresses, and knows nothing about Services. It selects no endpoint and
// starts no goroutine: an expired entry stays until a call removes it or a newer entry replaces it.
package affinity
