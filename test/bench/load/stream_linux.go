package load

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// stream is a client that sends continuously.
type stream struct{}

func (stream) start(l *loop, i int) {
	if !l.dial(i, unix.EPOLLOUT) || l.spec.Rate == 0 {
		return
	}
	rate := uint64(l.spec.Rate / float64(l.spec.Clients))
	if err := unix.SetsockoptUint64(l.clients[i].fd, unix.SOL_SOCKET, unix.SO_MAX_PACING_RATE, rate); err != nil {
		l.err = fmt.Errorf("pacing a stream: %w", err)
	}
}

func (stream) ready(l *loop, i int, _ uint32) {
	n, errno := send(l.clients[i].fd, l.buffer[:l.spec.Size])
	if errno == unix.EAGAIN {
		return
	}
	if errno != 0 {
		l.stop("send", errno)
		return
	}
	if l.counts(time.Now()) {
		l.done += int64(n)
	}
}

func (stream) tick(*loop) {}
