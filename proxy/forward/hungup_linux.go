package forward

import (
	"io"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// socketHungUp is hungUp for a socket.
func socketHungUp(raw syscall.RawConn) (ended bool, err error) {
	_ = raw.Control(func(fd uintptr) { // fails only if raw is closed, after the end of the connection
		look := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
		if n, _ := unix.Poll(look, 0); n <= 0 { // no event; -1: a signal arrived
			return
		}
		ended = true
		if look[0].Revents&unix.POLLERR != 0 {
			err = Socket(fd).pending()
		}
	})
	switch err {
	case unix.EPIPE, unix.ESHUTDOWN:
		err = nil // the end came first: see pair.writeFailed and MessageConn.Send
	}
	return ended, err
}

// socketGone is gone for a socket.
func socketGone(raw syscall.RawConn) (gone bool) {
	_ = raw.Control(func(fd uintptr) { gone = Socket(fd).gone() }) // as above
	return gone
}

// socketInline makes urgent bytes part of the stream: otherwise reading skips them.
func socketInline(raw syscall.RawConn) {
	_ = raw.Control(func(fd uintptr) { _ = setOptions(int(fd), inline) }) // fails for non-TCP sockets, which have no urgent bytes
}

// readerOf returns a reader for c. It does not use net.TCPConn.Read, which may wait although bytes have arrived. At an
// urgent byte, the kernel also returns EAGAIN if a signal is pending, such as one of the Go runtime.
func readerOf(c Conn) reader {
	if tcp, is := c.(*net.TCPConn); is {
		if raw := rawOf(tcp); raw != nil {
			r := &socketReader{raw: raw}
			r.ready = r.read
			return r
		}
	}
	return &plainReader{from: c}
}

// socketReader reads from a TCP socket. It has no buffer while it waits.
type socketReader struct {
	raw    syscall.RawConn
	ready  func(fd uintptr) (done bool) // the method read
	buffer *[copySize]byte              // nil until bytes arrive
	n      int
	err    error
}

// next implements reader. Its errors come from the kernel, apart from io.EOF and those for a closed socket.
func (r *socketReader) next() ([]byte, error) {
	r.n, r.err = 0, nil
	if err := r.raw.Read(r.ready); err != nil {
		return nil, err
	}
	if r.n == 0 && r.err == nil {
		return nil, io.EOF
	}
	return r.buffer[:r.n], r.err
}

// read reads the bytes that have arrived. done is false if there are none, and no end or error either.
func (r *socketReader) read(fd uintptr) (done bool) {
	r.buffer = copyBuffers.Get().(*[copySize]byte)
	for {
		r.n, r.err = Socket(fd).read(r.buffer[:], 0)
		switch {
		case r.err != unix.EAGAIN:
			return true
		case Socket(fd).unread() == 0:
			r.release()
			return false
		}
	}
}

func (r *socketReader) release() {
	if r.buffer != nil {
		copyBuffers.Put(r.buffer)
		r.buffer = nil
	}
}

// socketUnsent returns the number of written bytes that the peer has not acknowledged.
func socketUnsent(raw syscall.RawConn) (n int) {
	_ = raw.Control(func(fd uintptr) { n = Socket(fd).unsent() }) // as above
	return n
}

// socketUnread returns the number of bytes that have arrived and are unread.
func socketUnread(raw syscall.RawConn) (n int) {
	_ = raw.Control(func(fd uintptr) { n = Socket(fd).unread() }) // as above
	return n
}

// Left reports whether the peer has reset the connection or ended its side. Unread bytes hide the end of its side.
func (s Socket) Left() bool {
	if s.gone() {
		return true
	}
	var one [1]byte
	n, _, err := unix.Recvfrom(int(s), one[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
	return n == 0 && err == nil || err != nil && err != unix.EAGAIN && err != unix.EINTR
}

// gone reports whether the connection has failed or both sides have ended it.
func (s Socket) gone() bool {
	look := []unix.PollFd{{Fd: int32(s)}} // the kernel always reports a reset and the end of both sides
	n, _ := unix.Poll(look, 0)
	return n > 0
}

// WaitLeft waits until the peer of raw has left, or until raw's read deadline has passed, and reports whether it has
// left. The peer has left if the connection was reset or both sides have ended. If sent is false, no bytes from the peer
// were read, and the peer has also left if it has ended its side.
func WaitLeft(raw syscall.RawConn, sent bool) (left bool) {
	_ = raw.Read(func(fd uintptr) bool {
		left = Socket(fd).gone() || !sent && Socket(fd).Left()
		return left
	})
	return left
}

// WaitReset is WaitLeft for resets only.
func WaitReset(raw syscall.RawConn) (reset bool) {
	_ = raw.Read(func(fd uintptr) bool {
		look := []unix.PollFd{{Fd: int32(fd)}} // the kernel always reports errors
		_, _ = unix.Poll(look, 0)
		reset = look[0].Revents&unix.POLLERR != 0
		return reset
	})
	return reset
}
