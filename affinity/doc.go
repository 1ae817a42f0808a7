// Package affinity records the endpoint of each client, for Services with sessionAffinity ClientIP.
//
// There is one [Table] for each service port. An entry is valid until the table's timeout has passed since the client
// last opened a connection. Neither data on an open connection nor the connection's end prolongs it. (The Kubernetes
// API does not say which event restarts the time; kube-proxy's iptables mode has the same rule.) An entry also ends
// when the caller forgets it, for example because the endpoint has failed or was removed. If its table or all tables
// together are full, a new entry replaces one of the same table: the entry of the client that has gone longest without
// a new connection. If all tables together are full and this table is empty, the new entry is not recorded. The last
// eighth of the limit of all tables is for tables with fewer than PerTable/16 entries, so that large tables cannot shut
// out others.
//
// The package knows endpoints only by their addresses, and knows nothing about Services. It selects no endpoint and
// starts no goroutine: an expired entry stays until a call removes it or a newer entry replaces it.
package affinity
