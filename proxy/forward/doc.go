// Package forward moves bytes between two connections until both sides are
// done.
//
// Its owner hands over a pair, client and endpoint, with
// [Forwarder.Forward]; from then on the pair belongs to the package, which
// closes both and says how it ended, and how many bytes went each way.
//
// What one side does is carried across to the other: a FIN becomes a FIN and
// leaves the opposite direction open, a reset becomes a reset, and a side that
// does not read stops the reading from the other. Nothing is buffered beyond
// one read or one message.
//
// Streams are moved by [Forwarder.Forward], messages, as SCTP has them, by
// [Forwarder.ForwardMessages].
//
// For UDP, on Linux, it has what sessions are made of: a [Poller] that waits for
// many sockets, and [Batch], which receives and sends many datagrams with one
// system call.
//
// The package knows nothing of Services, balancing or portals.
package forward
