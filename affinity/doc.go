// Package affinity remembers which endpoint a client had, for Services with
// sessionAffinity ClientIP.
//
// There is one [Table] for each service port. An entry holds for a set time
// after the client's last new connection: bytes on a connection that is open
// do not prolong it, and neither does the connection's end. (The Kubernetes
// API leaves this open: "the seconds of ClientIP type session sticky time";
// this is what kube-proxy's iptables mode does.) An entry also ends when its
// endpoint fails or leaves, and when the table is full and the client is the
// one that has been away longest.
//
// The package knows neither Services nor endpoints beyond an address, decides
// nothing, and starts no goroutine: an entry that has run out is found when it
// is looked up, or pushed out by newer ones.
package affinity
