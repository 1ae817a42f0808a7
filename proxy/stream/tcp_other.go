//go:build !linux

package stream

import (
	"context"
	"net"
	"net/netip"
	"sync"

	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/portal/handover"
	"github.com/usherproxy/usher/proxy/frontend"
)

// tcpListener is a listener for a TCP service port.
type tcpListener struct {
	acceptor
	listener *net.TCPListener

	closing sync.Once
	closed  chan struct{} // the accept loop has ended
}

// ListenTCP opens the listener that b asks for and starts to accept.
func (s *Server) ListenTCP(f *frontend.FrontEnd, b portal.Bind) (frontend.Listener, error) {
	opened, err := frontend.Listen(f.Node, b, listenTCP)
	if err != nil {
		return nil, err
	}
	l := &tcpListener{listener: opened, acceptor: acceptor{server: s, front: f}, closed: make(chan struct{})}
	l.At, l.Redirected = plainAddr(opened.Addr()), b.Redirected
	l.SetTargets(b.Targets)
	f.Budget.Listeners.Add(1)
	go l.run()
	return l, nil
}

// HandOver: there is no handover on these systems.
func (l *tcpListener) HandOver() []handover.Socket { return nil }

// run accepts until l is closed.
func (l *tcpListener) run() {
	defer l.front.Budget.Listeners.Add(-1)
	defer close(l.closed)
	l.acceptLoop(func() error {
		conn, err := l.listener.AcceptTCP()
		if err != nil {
			return err
		}
		_ = conn.SetKeepAliveConfig(keepaliveConfig(l.server.Keepalive)) // good to have
		l.servePortable(conn, plainAddr(conn.RemoteAddr()))
		return nil
	})
}

func listenTCP(addr netip.AddrPort) (*net.TCPListener, error) {
	network := "tcp4"
	if addr.Addr().Is6() {
		network = "tcp6"
	}
	config := net.ListenConfig{KeepAlive: -1} // set for each connection
	l, err := config.Listen(context.Background(), network, addr.String())
	if err != nil {
		return nil, err
	}
	return l.(*net.TCPListener), nil
}

// Close stops accepting and returns when the accept loop has ended. Connections
// that wait to be accepted are reset by the kernel.
func (l *tcpListener) Close(frontend.Closing) {
	l.closing.Do(func() { l.listener.Close() })
	<-l.closed
}

// setMark is never called: no portal looks at marks.
func setMark(uintptr, uint32) error { return nil }
