package handover

import (
	"errors"
	"iter"
	"os"
)

// ErrLocked is what Acquire's error wraps when another process has the lock.
var ErrLocked = errors.New("another usher process manages the portals of this network namespace")

// Socket is a socket that a holder passes to its successor, or a file with data about some sockets: see Memory.
type Socket struct {
	Name string // identifies it; without line feeds
	File *os.File
}

// None yields no sockets.
func None(func(Socket) bool) {}

// SocketsAtOnce is how many copies of sockets a holder has open at a time. It is at most SCM_MAX_FD, 253 (unix(7)).
const SocketsAtOnce = 128

// Holder is the process that has the lock.
type Holder interface {
	// HandOver is called when a successor has asked. The holder then changes nothing that the two share until the
	// caller calls either resume or release, as it must. The caller iterates over sockets once before that, and closes
	// each file. Each is a copy made only when it is yielded, since there may be as many sockets as half the open files
	// limit allows. The same holds for more: the sockets that came after sockets, for a successor that asks.
	HandOver() (sockets, more iter.Seq[Socket], resume, release func(), err error)
}
