package kube

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// mark implements net.Dialer.Control. A process without CAP_NET_ADMIN, which has no portal that redirects, sets no
// mark.
func (c Connection) mark(_, _ string, socket syscall.RawConn) error {
	return socket.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, int(c.Mark))
	})
}
