// Package forward moves bytes between two connections until both sides are done.
//
// The caller passes a pair, client and endpoint. From then on the pair belongs to the package, which closes both and
// reports to the Owner how the pair ended, and how many bytes went each way. The actions of one side are carried over
// to the other. A FIN becomes a FIN and leaves the opposite direction open. A reset becomes a reset. If one side does
// not read, the package stops reading from the other: it buffers at most one read or one message.
//
// There are two versions, which pass the same tests:
//
//   - On Linux, a [Loop] forwards any number of TCP pairs in one goroutine. The kernel reports the readable and writable
//     sockets (poll_linux.go). The Loop connects to endpoints (dial_linux.go), and moves small transfers through one buffer
//     (pair_linux.go) and streams through pipes (splice_linux.go). An idle pair costs its two descriptors and a few hundred
//     bytes.
//   - Elsewhere, [Copy] uses two goroutines per pair. [CopyMessages] does so on all systems for messages, as in SCTP.
//
// For UDP sessions on Linux, the package has the [Poller] and a [Batch], which receives and sends many datagrams with
// one system call.
//
// The package knows nothing of Services, balancing or portals.
package forward
