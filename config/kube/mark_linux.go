package kube

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// mark implements net.Dialer.Control. Without CAP_NET_ADMIN it fails silently: such a process has no portal that
// redirects, and needs no mark.
func (c Connection) mark(_, _ string, socket syscall.RawConn) error {
	return socket.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, int(c.Mark))
	})
}
