// Package forward moves bytes between two connections until both sides are done.
//
// The caller passes a pair of connections, client and endpoint. The package owns the pair from then on. It closes both
// connections, and reports the pair's outcome and the bytes of each direction to the Owner. It passes the actions of
// one side on to the other: a FIN as a FIN, and a reset as a reset. A FIN leaves the opposite direction open. If one
// side does not read, the package stops reading from the other. For each direction, it holds at most the bytes of one
// read, one message or one full pipe.
//
// There are two implementations, which pass the same tests:
//
//   - On Linux, a [Loop] forwards any number of TCP pairs in one goroutine. The kernel reports the readable and
//     writable sockets (poll_linux.go). The Loop connects to endpoints (dial_linux.go). It moves small transfers
//     through one buffer (pair_linux.go), and streams through pipes (splice_linux.go). An idle pair costs its two
//     descriptors and a few hundred bytes.
//   - On other systems, and for connections that no Loop forwards, [Copy] uses two goroutines per pair. [CopyMessages]
//     does the same for messages (SCTP).
//
// For UDP sessions on Linux, the package has the [Poller] and a [Batch], which receives and sends many datagrams with
// one system call.
//
// The package knows nothing of Services, balancing or portals.
package forward
