// Package portforward connects to endpoints through a Kubernetes API server's
// port-forward, as kubectl port-forward does: for who can reach the API server
// and not the Pods.
//
//	usher ──── one connection for each Pod ────▶ API server ──▶ kubelet ──▶ Pod's localhost
//	           two streams for each client: data, errors
//
// [Dialer] has the connections to Pods (connection.go), opens streams (dialer.go)
// and says which rights are missing (rights.go). A [Conn] is a pair of streams.
// [Auto] asks the kernel first.
//
// Three things are different from a connection that the kernel makes:
//
//   - It is there before the Pod's port is: whether that refuses is said on the
//     error stream later, and that it does not is never said. [Conn.Confirm] waits
//     until it is known well enough.
//   - A FIN towards the Pod ends what the node's container runtime forwards:
//     containerd gives the answer one more second. A reset cannot be sent at all:
//     it becomes a FIN.
//   - There is no flow control for one stream: a client that does not read what
//     its endpoint sends holds up the others of that Pod.
//
// Port-forward carries TCP only, and reaches what listens on a Pod's localhost.
package portforward
