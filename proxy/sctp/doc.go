// Package sctp provides SCTP sockets that Go's runtime polls: listening, dialing, and associations that carry messages.
//
// The constants, structures and most system calls come from github.com/ishidawataru/sctp. Its own connections block a
// thread while a call waits. So this package creates the descriptors itself, sets them non-blocking, and waits for them
// as package net does. A thousand associations then need no more threads than one.
//
// An association here has one address on this side, whatever addresses the machine has. It uses one of the peer's, the
// one that it began with. Other addresses that the peer announces are neither probed nor used by choice. The reason is
// that there may be a portal between client and listener, which rewrites the packets of one pair of addresses only.
// Packets of any other pair reach a host that does not know the association and answers with an abort.
//
// The package is empty on systems other than Linux, and on linux/386.
package sctp
