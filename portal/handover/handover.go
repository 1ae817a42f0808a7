package handover

import (
	"errors"
	"iter"
	"os"
)

// ErrLocked is wrapped by Acquire's error when another process has the lock.
var ErrLocked = errors.New("another usher process manages the portals of this network namespace")

// Socket is a socket that a holder passes to its successor, or a file with data about some sockets: see Memory.
type Socket struct {
	Name string // identifies the socket; contains no line feed
	File *os.File
}

// None yields no sockets.
func None(func(Socket) bool) {}

// SocketsAtOnce limits the sockets in one packet and the copies that a holder has open; SCM_MAX_FD is 253 (unix(7)).
const SocketsAtOnce = 128

// Holder is the process that has the lock.
type Holder interface {
	// HandOver is called when a successor asks. If it returns no error, the holder changes nothing that both processes
	// share until the caller calls resume or release, one of which it must call. Before that, the caller iterates once
	// over sockets and, if the successor asks for the sockets added since, over more. The caller closes each file: it
	// is a copy, made when it is yielded, because copies of all sockets could exceed the limit of open files.
	HandOver() (sockets, more iter.Seq[Socket], resume, release func(), err error)
}
