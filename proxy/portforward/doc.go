// Package portforward connects to endpoints through a Kubernetes API server's port-forward, as kubectl
// port-forward does. It is for users who can reach the API server but not the Pods.
//
//	usher ──── one connection for each Pod ────▶ API server ──▶ kubelet ──▶ Pod's localhost
//	           two streams for each client: data, errors
//
// [Dialer] holds the connections to Pods (connection.go, spdy.go), opens streams (dialer.go) and names missing
// permissions (rights.go). A [Conn] is a pair of streams. [Auto] tries a direct connection first.
//
// Three things are different from a connection that the kernel makes:
//
//   - It exists before the connection to the Pod's port. A refusal arrives later,
//     on the error stream; a success is never reported. [Conn.Confirm] waits
//     until a refusal has become unlikely.
//   - A FIN toward the Pod makes the node's container runtime end the forwarding:
//     containerd gives the answer one more second. A reset cannot be sent at all:
//     it becomes a FIN.
//   - There is no flow control for one stream: a client that does not read its
//     data blocks the others of that Pod.
//
// Port-forward carries TCP only, and also reaches processes that listen on a Pod's localhost only.
package portforward
