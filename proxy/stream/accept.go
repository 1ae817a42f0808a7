package stream

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"syscall"
	"time"

	"golang.org/x/time/rate"

	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/portal/handover"
	"github.com/usherproxy/usher/proxy/frontend"
	"github.com/usherproxy/usher/proxy/search"
)

// acceptor is the common part of the listeners of all protocols.
type acceptor struct {
	frontend.Place
	server *Server
	front  *frontend.FrontEnd
}

// ViewReplaced does nothing: an acceptor does not select endpoints. See [Server.Retire] for open connections.
func (a *acceptor) ViewReplaced() {}

// listening is a listener with one goroutine that accepts its clients.
type listening struct {
	acceptor
	socket         io.Closer
	transferSocket transferable  // nil if a successor opens its own socket
	closed         chan struct{} // closed when run has returned
}

// transferable is a socket that a successor can inherit.
type transferable interface {
	SyscallConn() (syscall.RawConn, error)
	// Leave closes this process's copy.
	Leave() error
}

// newListening returns a listener for b on socket, whose address is at. The caller starts run.
func (s *Server) newListening(f *frontend.FrontEnd, b portal.Bind, socket io.Closer, at netip.AddrPort) *listening {
	l := &listening{acceptor: acceptor{server: s, front: f}, socket: socket, closed: make(chan struct{})}
	l.SetBound(b, at)
	f.Budget.CountListener(f.ID().Namespace, at.Port(), false, 1)
	return l
}

// run calls next until l is closed; next then returns net.ErrClosed. next accepts one client and starts to serve it.
// Once it has accepted the client, it must not wait for the client or an endpoint.
func (l *listening) run(next func() error) {
	defer close(l.closed)
	defer l.front.Budget.CountListener(l.front.ID().Namespace, l.At.Port(), false, -1)
	var pause time.Duration
	for {
		err := next()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil:
			pause = l.acceptFailed(err, pause)
			wait(l.server.ctx, search.Step{For: pause}, nil)
		default:
			pause = 0
		}
	}
}

// HandOver implements frontend.Listener.
func (l *listening) HandOver() (s handover.Socket, ok bool) {
	if l.transferSocket == nil {
		return s, false
	}
	raw, err := l.transferSocket.SyscallConn()
	if err != nil {
		return s, false
	}
	_ = raw.Control(func(fd uintptr) { // fails only once it is closed
		s, ok = frontend.SocketFor(int(fd), frontend.SocketName(l.front.Protocol, l.At, l.Namespace != nil))
	})
	return s, ok
}

// Close stops accepting and returns when run has returned. The kernel resets or aborts the clients that wait to be
// accepted, unless a successor has the socket.
func (l *listening) Close(why frontend.Closing) {
	if why == frontend.HandedOver && l.transferSocket != nil {
		_ = l.transferSocket.Leave()
	} else {
		l.socket.Close()
	}
	<-l.closed
}

const (
	minAcceptPause = 5 * time.Millisecond
	maxAcceptPause = 100 * time.Millisecond
)

// acceptErrors limits the log lines that a flood can cause.
var acceptErrors = rate.Sometimes{First: 1, Interval: 10 * time.Second}

// acceptFailed returns the time to wait before the next accept: twice the previous one. It is 0 if a client gave up
// before it was accepted.
func (a *acceptor) acceptFailed(err error, pause time.Duration) time.Duration {
	if errors.Is(err, syscall.ECONNABORTED) {
		return 0
	}
	acceptErrors.Do(func() {
		a.front.Log.WithField("service", a.front.ID().String()).WithError(search.Plain(err)).
			Error("Cannot accept clients; retrying (such errors, of all Services, are logged at most every 10 s)")
	})
	return min(max(2*pause, minAcceptPause), maxAcceptPause)
}

// plainAddr converts an address to netip, with IPv4-mapped addresses as IPv4.
func plainAddr(a net.Addr) netip.AddrPort {
	ap := a.(interface{ AddrPort() netip.AddrPort }).AddrPort()
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
}
