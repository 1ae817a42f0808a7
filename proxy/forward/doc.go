// Package forward moves bytes between two connections until both sides are
// done.
//
// Its owner hands over a pair, client and endpoint; from then on the pair belongs
// to the package, which closes both and says how it ended, and how many bytes went
// each way. What one side does is carried across to the other: a FIN becomes a FIN
// and leaves the opposite direction open, a reset becomes a reset, and a side that
// does not read stops the reading from the other. Nothing is buffered beyond one
// read or one message.
//
// There are two versions, which pass the same tests:
//
//   - On Linux, a [Loop] forwards as many TCP pairs as there are, in one goroutine.
//     It is told by the kernel what can be read and written (poll_linux.go), makes
//     the connections to endpoints (dial_linux.go), moves what is small through one
//     buffer (pair_linux.go) and streams through pipes (splice_linux.go). A pair that
//     is idle costs its two descriptors and a few hundred bytes.
//   - Elsewhere, [Copy] takes two goroutines for each pair. [CopyMessages] does so on
//     all systems for messages, as SCTP has them.
//
// For UDP, on Linux, the package has what sessions are made of: the [Poller] and a
// [Batch], which receives and sends many datagrams with one system call.
//
// The package knows nothing of Services, balancing or portals.
package forward
