package portal

import (
	"errors"
	"fmt"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// lockName is an abstract Unix socket (unix(7)): it belongs to the network
// namespace, as the rules and routes do, needs no file, and is gone when the
// process is, however that ended.
const lockName = "@usher-portal"

// ErrLocked is what Lock's error wraps when another process has the lock.
var ErrLocked = errors.New("another usher manages the portals of this network namespace")

// Lock makes sure that one process at a time manages the portals of this
// network namespace: two would undo each other's rules. It returns a function
// that gives the lock back.
func Lock() (unlock func(), err error) {
	l, err := net.Listen("unix", lockName)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("%w%s", ErrLocked, lockHolder())
	case err != nil:
		return nil, fmt.Errorf("locking the portals: %w", err)
	}
	return func() { l.Close() }, nil
}

// lockHolder says who has the lock, if that can be found out.
func lockHolder() string {
	conn, err := net.Dial("unix", lockName)
	if err != nil {
		return ""
	}
	defer conn.Close()
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return ""
	}
	var peer *unix.Ucred
	if err := raw.Control(func(fd uintptr) {
		peer, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil || peer == nil {
		return ""
	}
	return fmt.Sprintf(" (process %d of user %d)", peer.Pid, peer.Uid)
}
