package proxy

import (
	"fmt"
	"net/netip"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/usherproxy/usher/portal/handover"
	"github.com/usherproxy/usher/proxy/forward"
	"github.com/usherproxy/usher/proxy/trace"
)

// A UDP listener is handed over with all its sockets: they are one group
// (SO_REUSEPORT) over which the kernel spreads the clients, and what waits in one
// that nobody reads would be lost. From then on both processes receive, and each
// datagram comes to one of them. Sessions stay: a client whose next datagram comes
// to the successor has a new one there, perhaps with another endpoint.
//
// Once the successor has taken over, this process receives nothing any more, and
// only lets the replies through that clients wait for: those go out by the same
// socket, and so come from where the client expects them.

// replyTime is how long endpoints may take for those replies.
const replyTime = 2 * time.Second

// udpSocketName is the name of a listener's socket in a handover.
func udpSocketName(addr netip.AddrPort, number int) string {
	return fmt.Sprintf("udp %s #%d", addr, number)
}

// handOver returns copies of the sockets. One that cannot be copied keeps the
// group from being handed over: the successor opens one of its own.
func (l *udpListener) handOver() (sockets []handover.Socket) {
	for i, s := range l.sockets {
		fd, err := unix.FcntlInt(uintptr(s.fd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			for _, copied := range sockets {
				copied.File.Close()
			}
			return nil
		}
		name := udpSocketName(l.at, i)
		sockets = append(sockets, handover.Socket{Name: name, File: os.NewFile(uintptr(fd), name)})
	}
	return sockets
}

// inheritUDP returns the sockets on addr that a predecessor has handed over: none
// if it has none.
func (p *Proxy) inheritUDP(addr netip.AddrPort) (fds []int) {
	for {
		name := udpSocketName(addr, len(fds))
		file := p.inherited[name]
		if file == nil {
			return fds
		}
		delete(p.inherited, name)
		fd, err := copyOf(file)
		file.Close()
		if err == nil {
			if at, err := forward.LocalAddr(fd); err == nil && at == addr {
				fds = append(fds, fd)
				continue
			}
			unix.Close(fd)
		}
		// The others of the group cannot be had without this one.
		for _, fd := range fds {
			unix.Close(fd)
		}
		return nil
	}
}

// copyOf returns a copy of f's descriptor, which stays as it is: f.Fd might make
// the socket, which others use too, block.
func copyOf(f *os.File) (fd int, err error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return -1, err
	}
	if e := raw.Control(func(d uintptr) { fd, err = unix.FcntlInt(d, unix.F_DUPFD_CLOEXEC, 0) }); e != nil {
		return -1, e
	}
	return fd, err
}

// retire leaves the listener to a successor. It does not wait: see
// udpEngine.retiring.
func (l *udpListener) retire() {
	e := &l.front.proxy.udp
	for _, s := range l.sockets {
		e.retiring.Add(1)
		if s.loop.poller.Do(func() { s.retire(e.retiring.Done) }) != nil {
			e.retiring.Done() // the loop has ended, and the socket with it
		}
	}
}

// retired waits until all sockets that were left to a successor are closed.
func (e *udpEngine) retired() { e.retiring.Wait() }

// retire stops receiving. When no client waits for a reply any more, or after
// replyTime, it closes the socket and calls done.
func (l *udpSocket) retire(done func()) {
	if l.closed {
		done()
		return
	}
	l.stopReceiving()
	for e := l.order.Front(); e != nil; e = e.Next() {
		if e.Value.(*udpSession).asked {
			l.awaited++
		}
	}
	l.retired = sync.OnceFunc(func() {
		l.close(trace.Drained)
		done()
	})
	if l.awaited == 0 {
		l.retired()
		return
	}
	time.AfterFunc(replyTime, func() { _ = l.loop.poller.Do(l.retired) })
}

// replied notes that a client waits for a reply no more.
func (l *udpSocket) replied() {
	if l.retired == nil {
		return
	}
	if l.awaited--; l.awaited == 0 {
		_ = l.loop.poller.Do(l.retired) // after this round, at whose end replies are sent
	}
}
