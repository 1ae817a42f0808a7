package datagram

import (
	"fmt"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/portal/handover"
	"github.com/usherproxy/usher/proxy/frontend"
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

// socketName is the name of a listener's socket in a handover.
func socketName(addr netip.AddrPort, in portal.Namespace, number int) string {
	return frontend.SocketName("udp", addr, in, fmt.Sprintf(" #%d", number))
}

// HandOver implements frontend.Listener. A socket that cannot be copied keeps the
// group from being handed over: the successor opens one of its own.
func (l *listener) HandOver() (sockets []handover.Socket) {
	for i, sk := range l.sockets {
		s, ok := frontend.SocketFor(sk.fd, socketName(l.At, l.Namespace, i))
		if !ok {
			for _, copied := range sockets {
				copied.File.Close()
			}
			return nil
		}
		sockets = append(sockets, s)
	}
	return sockets
}

// inherit returns the sockets on addr that a predecessor has handed over: none
// if it has none.
func inherit(n *frontend.Node, addr netip.AddrPort, in portal.Namespace) (fds []int) {
	for {
		fd, err := n.Inherit(socketName(addr, in, len(fds)), addr)
		switch {
		case err != nil: // the others of the group cannot be had without this one
			for _, fd := range fds {
				unix.Close(fd)
			}
			return nil
		case fd < 0:
			return fds
		}
		fds = append(fds, fd)
	}
}

// retire leaves the listener to a successor. It does not wait: see
// Server.retiring.
func (l *listener) retire() {
	retiring := &l.server.retiring
	for _, sk := range l.sockets {
		retiring.Add(1)
		if sk.loop.poller.Do(func() { sk.retire(retiring.Done) }) != nil {
			retiring.Done() // the loop has ended, and the socket with it
		}
	}
}

// Retired waits until all sockets that were left to a successor are closed.
func (srv *Server) Retired() { srv.retiring.Wait() }

// retire stops receiving. When no client waits for a reply any more, or after
// replyTime, it closes the socket and calls done.
func (sk *socket) retire(done func()) {
	if sk.closed {
		done()
		return
	}
	sk.stopReceiving()
	for e := sk.order.Front(); e != nil; e = e.Next() {
		if e.Value.(*session).asked {
			sk.awaited++
		}
	}
	sk.retired = sync.OnceFunc(func() {
		sk.close(trace.Drained)
		done()
	})
	if sk.awaited == 0 {
		sk.retired()
		return
	}
	time.AfterFunc(replyTime, func() { _ = sk.loop.poller.Do(sk.retired) })
}

// replied notes that a client waits for a reply no more.
func (sk *socket) replied() {
	if sk.retired == nil {
		return
	}
	if sk.awaited--; sk.awaited == 0 {
		_ = sk.loop.poller.Do(sk.retired) // after this round, at whose end replies are sent
	}
}
