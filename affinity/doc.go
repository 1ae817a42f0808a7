// Package affinity records the endpoint of each client, for Services with sessionAffinity ClientIP.
//
// There is one [Table] for each service port. An entry is valid for the table's timeout after the client's last new
// connection. Neither data on an open connection nor the connection's end prolongs it. (The Kubernetes API leaves this
// open: "the seconds of ClientIP type session sticky time"; kube-proxy's iptables mode has the same rule.) An entry also
// ends when the caller forgets it, for example because the endpoint has failed or was removed. If a new entry exceeds the
// limit of its table, or of all tables together, the least recently used entry of its table ends. If its table has no
// entry, the new entry is not recorded. The last eighth of the limit of all tables is reserved for tables with few entries.
//
// The package knows endpoints only by their addresses, and knows nothing about Services. It selects no endpoint and
// starts no goroutine: an expired entry stays until a call removes it or a newer entry replaces it.
package affinity
