// Package affinity records the endpoint of each client, for Services with sessionAffinity ClientIP.
//
// There is one [Table] for each service port. An entry is valid until the table's timeout has passed since the client
// last opened a connection. Neither data on an open connection nor the connection's end prolongs it. (The Kubernetes
// API does not say which event restarts the time; kube-proxy's iptables mode has the same rule.) An entry also ends
// when the caller forgets it, for example because the endpoint has failed or was removed. A new entry whose table is
// full, or that finds all tables together full, replaces an entry of its table: that of the client that has gone
// longest without a new connection. If it finds all tables together full and its table empty, it is not recorded. The
// last eighth of [Limits].Total is reserved for tables with fewer than [Limits].PerTable/16 entries, so that large
// tables cannot shut out others.
//
// The package knows endpoints only by their addresses, and knows nothing about Services. It selects no endpoint and
// starts no goroutine: an expired entry stays until a call removes it or a newer entry replaces it.
package affinity
