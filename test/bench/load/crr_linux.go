package load

import (
	"time"

	"golang.org/x/sys/unix"
)

// crr is a client that makes a new connection for each exchange. The client closes first.
type crr struct{}

func (c crr) start(l *loop, i int) { l.again(c, i, time.Now()) }

func (c crr) begin(l *loop, i int, due time.Time) {
	for l.err == nil && !c.connect(l, i, due) {
	}
}

// connect begins an exchange. It returns false if that failed immediately.
func (c crr) connect(l *loop, i int, due time.Time) bool {
	fd, errno := open(unix.SOCK_STREAM)
	if errno != 0 {
		l.stop("socket", errno)
		return false
	}
	l.clients[i] = client{fd: fd, missing: l.spec.Size, since: due}
	if errno := connect(fd, l.to); errno != 0 {
		shut(fd)
		l.failed(errno)
		return false
	}
	// On loopback a connection is usually established when connect returns.
	wait := uint32(unix.EPOLLIN)
	if _, errno := send(fd, l.buffer[:l.spec.Size]); errno == unix.EAGAIN {
		wait = unix.EPOLLOUT
	} else if errno != 0 {
		shut(fd)
		l.failed(errno)
		return false
	}
	if errno := watch(l.epoll, unix.EPOLL_CTL_ADD, fd, wait, i); errno != 0 {
		l.stop("epoll_ctl", errno)
	}
	return true
}

func (c crr) ready(l *loop, i int, events uint32) {
	fd := l.clients[i].fd
	if events&unix.EPOLLOUT != 0 && events&(unix.EPOLLERR|unix.EPOLLHUP) == 0 {
		if _, errno := send(fd, l.buffer[:l.spec.Size]); errno != 0 {
			l.failed(errno)
			shut(fd)
			c.start(l, i)
			return
		}
		if errno := watch(l.epoll, unix.EPOLL_CTL_MOD, fd, unix.EPOLLIN, i); errno != 0 {
			l.stop("epoll_ctl", errno)
		}
		return
	}
	n, errno := receive(fd, l.buffer[:l.spec.Size])
	switch {
	case errno == unix.EAGAIN:
		return
	case errno != 0 || n == 0:
		if errno == 0 {
			errno = unix.EPIPE // closed too early
		}
		l.failed(errno)
	default:
		if l.clients[i].missing -= n; l.clients[i].missing > 0 {
			return
		}
		l.exchanged(i)
	}
	shut(fd)
	c.start(l, i)
}

func (crr) tick(*loop) {}
