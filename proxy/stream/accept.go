package stream

import (
	"errors"
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
	fd     int                         // of the socket; unused on systems without a handover
	close  func(handedOver bool) error // closes the socket
	closed chan struct{}               // closed when run has returned
}

// newListening returns a listener for b on a socket whose address is at. The caller starts run.
func (s *Server) newListening(f *frontend.FrontEnd, b portal.Bind, fd int, at netip.AddrPort, close func(handedOver bool) error) *listening {
	l := &listening{acceptor: acceptor{server: s, front: f}, fd: fd, close: close, closed: make(chan struct{})}
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
func (l *listening) HandOver() (handover.Socket, bool) {
	return frontend.SocketFor(l.fd, frontend.SocketName(l.front.Protocol, l.At))
}

// Close stops accepting and returns when run has returned. The kernel resets or aborts the clients that wait to be
// accepted, unless a successor has the socket.
func (l *listening) Close(why frontend.Closing) {
	_ = l.close(why == frontend.HandedOver)
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
