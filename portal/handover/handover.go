package handover

import (
	"errors"
	"os"
)

// ErrLocked is what Acquire's error wraps when another process has the lock.
var ErrLocked = errors.New("another usher manages the portals of this network namespace")

// Socket is a socket that goes from one process to the next.
type Socket struct {
	Name string // says what it is; without line feeds
	File *os.File
}

// Holder is who has the lock.
type Holder interface {
	// HandOver is called when a successor has asked. The holder changes nothing
	// any more in what the two of them share, until either resume or release is
	// called; one of them is. The files of the sockets are copies, which the
	// caller closes.
	HandOver() (sockets []Socket, resume, release func(), err error)
}
