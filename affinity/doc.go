// Package affinity records the endpoint of each client, for Services with sessionAffinity ClientIP.
//
// There is one [Table] for each service port. An entry is valid for a set time after the client's last new connection.
// Neither data on an open connection nor its end prolongs it. (The Kubernetes API leaves this open: "the seconds of
// ClientIP type session sticky time"; this is what kube-proxy's iptables mode does.) An entry also ends when its
// endpoint fails or is removed, and when the table is full and its client is the least recently used.
//
// The package knows no Services, and only the addresses of endpoints. It selects no endpoint and starts no goroutine:
// an expired entry is removed when it is looked up, or displaced by newer ones.
package affinity
