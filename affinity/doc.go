// Package affinity records the endpoint of each client, for Services with sessionAffinity ClientIP.
//
// There is one [Table] for each service port. An entry is valid for a set time after the client's last new connection.
// Neither data on an open connection nor its end prolongs it. (The Kubernetes API leaves this open: "the seconds of
// ClientIP type session sticky time"; this is what kube-proxy's iptables mode does.) An entry also ends when its
// endpoint fails or is removed, and when its table, or all tables together, have no room for another client and its
// client is the table's least recently used.
//
// The package knows endpoints only by their addresses, and knows nothing about Services. It selects no endpoint and
// starts no goroutine: an expired entry stays until Get removes it or a newer entry replaces it.
package affinity
