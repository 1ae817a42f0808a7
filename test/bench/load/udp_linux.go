package load

import (
	"encoding/binary"
	"time"

	"golang.org/x/sys/unix"
)

// udp is a client that keeps a window of datagrams in flight: it sends one for each that comes back.
type udp struct{}

// overdue is the time that a client waits for a datagram before it counts all datagrams in flight as lost and fills its
// window again.
const overdue = 250 * time.Millisecond

func (u udp) start(l *loop, i int) {
	fd, errno := open(unix.SOCK_DGRAM)
	if errno != 0 {
		l.stop("socket", errno)
		return
	}
	l.clients[i].fd = fd
	if errno := connect(fd, l.to); errno != 0 {
		l.stop("connect", errno)
		return
	}
	if errno := watch(l.epoll, unix.EPOLL_CTL_ADD, fd, unix.EPOLLIN, i); errno != 0 {
		l.stop("epoll_ctl", errno)
		return
	}
	u.fill(l, i)
}

// fill sends until the window is full.
func (u udp) fill(l *loop, i int) {
	c := &l.clients[i]
	c.since = time.Now()
	binary.NativeEndian.PutUint64(l.buffer, uint64(c.since.Sub(l.begin)))
	for c.missing < l.spec.Window {
		if _, errno := send(c.fd, l.buffer[:l.spec.Size]); errno != 0 {
			l.failed(errno)
			return
		}
		c.missing++
	}
}

func (u udp) ready(l *loop, i int, _ uint32) {
	c := &l.clients[i]
	now := time.Now()
	for range l.spec.Window {
		n, errno := receive(c.fd, l.buffer[:l.spec.Size])
		if errno == unix.EAGAIN {
			break
		}
		if errno != 0 { // reported by ICMP
			l.failed(errno)
			break
		}
		if n != l.spec.Size {
			l.stop("receive", unix.EBADMSG)
			return
		}
		// A datagram counted as lost may still arrive.
		c.missing = max(c.missing-1, 0)
		if l.counts(now) {
			l.done++
			l.latencies.add(now.Sub(l.begin) - time.Duration(binary.NativeEndian.Uint64(l.buffer)))
		}
	}
	u.fill(l, i)
}

func (u udp) tick(l *loop) {
	now := time.Now()
	for i := range l.clients {
		c := &l.clients[i]
		if now.Sub(c.since) < overdue {
			continue
		}
		if l.counts(now) {
			l.lost += int64(c.missing)
		}
		c.missing = 0
		u.fill(l, i)
	}
}
