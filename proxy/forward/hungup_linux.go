package forward

import (
	"io"
	"net"
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

// socketGone is gone for a socket.
func socketGone(raw syscall.RawConn) (gone bool) {
	_ = raw.Control(func(fd uintptr) { gone = Socket(fd).gone() }) // as above
	return gone
}

// socketInline makes urgent bytes part of the stream: reading would skip them.
func socketInline(raw syscall.RawConn) {
	_ = raw.Control(func(fd uintptr) { _ = Socket(fd).inline() }) // fails for what is no TCP socket, which has none
}

// readerOf returns what reads from c. At an urgent byte the kernel also returns EAGAIN if a signal is
// pending, and the runtime sends itself signals. net.TCPConn.Read would then wait for bytes that
// have come already.
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
	ready  func(fd uintptr) (done bool) // read
	buffer *[copySize]byte              // nil while nothing has come
	n      int
	err    error
}

// next implements reader. Errors are the kernel's.
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

// read reads what has come, and reports whether that is something.
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

// socketUnsent returns how much was written that the peer has not taken yet.
func socketUnsent(raw syscall.RawConn) (n int) {
	_ = raw.Control(func(fd uintptr) { n = Socket(fd).unsent() }) // as above
	return n
}

// socketUnread returns how much has come that was not read.
func socketUnread(raw syscall.RawConn) (n int) {
	_ = raw.Control(func(fd uintptr) { n = Socket(fd).unread() }) // as above
	return n
}

// Left reports whether the peer has ended the connection, with a reset or without having
// sent anything that is not read. Of one who has sent something and ends his side it cannot be known.
func (s Socket) Left() bool {
	if s.gone() {
		return true
	}
	var one [1]byte
	n, _, err := unix.Recvfrom(int(s), one[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
	return n == 0 && err == nil || err != nil && err != unix.EAGAIN && err != unix.EINTR
}

// gone reports whether the peer has reset the connection.
func (s Socket) gone() bool {
	look := []unix.PollFd{{Fd: int32(s)}} // a reset and the end of both sides are told unasked
	n, _ := unix.Poll(look, 0)
	return n > 0
}

// WaitLeft returns true when the peer of a connection has left, and false when its read deadline
// is over. If it has sent something that was read, only a reset says so.
func WaitLeft(raw syscall.RawConn, sent bool) (left bool) {
	_ = raw.Read(func(fd uintptr) bool {
		left = Socket(fd).gone() || !sent && Socket(fd).Left()
		return left
	})
	return left
}

// WaitReset returns true when the peer of a connection has reset it, and false when its read deadline
// is over.
func WaitReset(raw syscall.RawConn) (reset bool) {
	_ = raw.Read(func(fd uintptr) bool {
		look := []unix.PollFd{{Fd: int32(fd)}} // an error is reported unasked
		_, _ = unix.Poll(look, 0)
		reset = look[0].Revents&unix.POLLERR != 0
		return reset
	})
	return reset
}
