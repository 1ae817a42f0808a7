//go:build !386

package sctp

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"

	"github.com/ishidawataru/sctp"
	"golang.org/x/sys/unix"

	"github.com/usherproxy/usher/portal/kernel"

	"github.com/usherproxy/usher/proxy/forward"
)

// Dial opens an association with to, from the local address that the kernel would choose. Its packets get mark
// (SO_MARK) unless that is 0. The peer may grant fewer streams than requested. Dial gives up when ctx ends.
func Dial(ctx context.Context, mark uint32, to netip.AddrPort, streams Streams) (*Conn, error) {
	from, err := kernel.SourceTo(to)
	if err != nil {
		return nil, err
	}
	fd, err := forward.Sockets(nil).BindSCTP(netip.AddrPortFrom(from, 0))
	if errors.Is(err, unix.EADDRINUSE) {
		err = unix.EADDRNOTAVAIL // every port is in use: the error that connect returns for that
	}
	if err != nil {
		return nil, err
	}
	s, err := newSocket(fd)
	if err != nil {
		return nil, err
	}
	err = s.control(func(fd int) error {
		if err := sctp.NewSCTPConn(fd, nil).SetInitMsg(int(streams.Out), int(streams.In), 0, 0); err != nil {
			return os.NewSyscallError("setsockopt SCTP_INITMSG", err)
		}
		if mark != 0 {
			if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, int(mark)); err != nil {
				return os.NewSyscallError("setsockopt SO_MARK", err)
			}
		}
		return setOptions(fd)
	})
	if err == nil {
		err = s.connect(ctx, to)
	}
	if err != nil {
		_ = s.SetLinger(0) // Close then aborts the association
		s.Close()
		return nil, err
	}
	return newConn(s, to)
}

// connect connects as connect(2) describes for a non-blocking socket: it waits until the socket is writable, and then
// reads the result.
func (s *socket) connect(ctx context.Context, to netip.AddrPort) error {
	if deadline, ok := ctx.Deadline(); ok {
		if err := s.SetWriteDeadline(deadline); err != nil {
			return err
		}
	}
	stop := context.AfterFunc(ctx, func() { _ = s.SetWriteDeadline(time.Unix(1, 0)) })
	defer stop()
	begun := false
	var failed error
	err := s.raw.Write(func(fd uintptr) bool {
		if !begun {
			begun = true
			failed = unix.Connect(int(fd), forward.Sockaddr(to))
			return failed != unix.EINPROGRESS
		}
		var done bool
		done, failed = connected(int(fd))
		return done
	})
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		return err
	case failed != nil:
		return os.NewSyscallError("connect", failed)
	}
	if !stop() {
		return ctx.Err()
	}
	return s.SetWriteDeadline(time.Time{})
}

// stateEstablished is SCTP_ESTABLISHED of enum sctp_sstat_state in linux/sctp.h. The library has RFC 6458's list, whose
// numbers differ.
const stateEstablished = 4

// connected reports whether an attempt to connect has ended, and its error.
func connected(fd int) (done bool, err error) {
	errno, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
	if err != nil {
		return true, err
	}
	if errno != 0 {
		return true, unix.Errno(errno)
	}
	status, err := sctp.NewSCTPConn(fd, nil).GetStatus()
	if err != nil {
		return true, fmt.Errorf("getsockopt SCTP_STATUS: %w", err)
	}
	return status.State >= stateEstablished, nil
}
