package handover

import (
	"errors"
	"iter"
	"os"
)

// ErrLocked is what Acquire's error wraps when another process has the lock.
var ErrLocked = errors.New("another usher process manages the portals of this network namespace")

// Socket is a socket that goes from one process to the next, or a file with what is to be
// known of some: see Memory.
type Socket struct {
	Name string // says what it is; without line feeds
	File *os.File
}

// None is no socket.
func None(func(Socket) bool) {}

// SocketsAtOnce is how many copies of sockets a holder has open at a time. It is at
// most SCM_MAX_FD, 253 (unix(7)).
const SocketsAtOnce = 128

// Holder is who has the lock.
type Holder interface {
	// HandOver is called when a successor has asked. The holder changes nothing
	// any more in what the two of them share, until either resume or release is
	// called; one of them is. Each file of sockets is a copy that is made when it
	// is its turn, since there may be as many sockets as half the open files limit
	// allows; the caller, who goes through them once and before that, closes it. So it
	// is with more, which is what has come since sockets, for a successor that asks.
	HandOver() (sockets, more iter.Seq[Socket], resume, release func(), err error)
}
