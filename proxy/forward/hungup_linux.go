package forward

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// socketHungUp is hungUp for a socket.
func socketHungUp(raw syscall.RawConn) (ended bool, err error) {
	_ = raw.Control(func(fd uintptr) { // fails only if it is closed: whoever did that knows
		look := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
		if n, _ := unix.Poll(look, 0); n <= 0 { // -1: a signal came
			return
		}
		ended = true
		if look[0].Revents&unix.POLLERR != 0 {
			err = Socket(fd).pending()
		}
	})
	switch err {
	case unix.EPIPE, unix.ESHUTDOWN:
		err = nil // the end was there first: see writeFailed, and Send of SCTP
	}
	return ended, err
}

// socketUnsent returns how much was written that the peer has not taken yet.
func socketUnsent(raw syscall.RawConn) (n int) {
	_ = raw.Control(func(fd uintptr) { n = Socket(fd).unsent() }) // as above
	return n
}
