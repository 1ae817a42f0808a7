package load

import (
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// rr is a client with one connection, on which it makes one exchange after the other.
type rr struct{}

func (r rr) start(l *loop, i int) {
	if l.dial(i, unix.EPOLLIN) {
		l.again(r, i, time.Now())
	}
}

// dial connects client i, waits for the result, and watches for events. A persistent connection must succeed: otherwise
// the loop gives up.
func (l *loop) dial(i int, events uint32) bool {
	fd, errno := open(unix.SOCK_STREAM)
	if errno != 0 {
		l.stop("socket", errno)
		return false
	}
	l.clients[i].fd = fd
	if errno := connect(fd, l.to); errno != 0 {
		l.stop("connect", errno)
		return false
	}
	wait := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
	if n, err := unix.Poll(wait, 5000); err != nil || n == 0 {
		l.stop("connect", unix.ETIMEDOUT)
		return false
	}
	if code, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR); err != nil || code != 0 {
		l.stop("connect", syscall.Errno(code))
		return false
	}
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
	if errno := watch(l.epoll, unix.EPOLL_CTL_ADD, fd, events, i); errno != 0 {
		l.stop("epoll_ctl", errno)
		return false
	}
	return true
}

func (rr) begin(l *loop, i int, due time.Time) {
	c := &l.clients[i]
	c.missing, c.since = l.spec.Size, due
	if _, errno := send(c.fd, l.buffer[:l.spec.Size]); errno != 0 {
		l.stop("send", errno)
	}
}

func (r rr) ready(l *loop, i int, _ uint32) {
	c := &l.clients[i]
	n, errno := receive(c.fd, l.buffer[:l.spec.Size])
	switch {
	case errno == unix.EAGAIN:
		return
	case errno != 0:
		l.stop("receive", errno)
		return
	case n == 0:
		l.stop("receive", unix.EPIPE) // closed too early
		return
	}
	if c.missing -= n; c.missing <= 0 {
		l.again(r, i, l.exchanged(i))
	}
}

func (rr) tick(*loop) {}
