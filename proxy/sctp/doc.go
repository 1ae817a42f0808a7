// Package sctp has SCTP sockets that Go's runtime polls: listening, dialing,
// and associations that carry messages.
//
// The constants, structures and most system calls come from
// github.com/ishidawataru/sctp. Its own connections hold a thread for as long as
// a call waits, so this package makes the descriptors itself, sets them
// non-blocking and waits for them as package net does: a thousand associations
// need no more threads than one.
//
// An association here has one address on this side, whatever addresses the
// machine has, and uses one of the peer's, the one that it began with. Others
// that the peer names are neither probed nor used by choice: between client and
// listener there may be a portal, which rewrites the packets of one pair of
// addresses and lets those of any other pass, to where nobody knows the
// association and the answer is an abort.
//
// On systems without SCTP every call fails with [ErrUnsupported].
package sctp
