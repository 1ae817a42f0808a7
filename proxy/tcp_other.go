//go:build !linux

package proxy

import (
	"context"
	"net"
	"net/netip"
	"sync"

	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/portal/handover"
)

// tcpListener is a listener for a TCP service port.
type tcpListener struct {
	*net.TCPListener
	acceptor

	closing sync.Once
	closed  chan struct{} // the accept loop has ended
}

// tcp carries TCP connections.
var tcp = portable

// openTCP opens the listener that b asks for and starts to accept.
func openTCP(f *frontEnd, b portal.Bind) (*tcpListener, error) {
	l, err := listenFor(f.proxy, b, listenTCP)
	if err != nil {
		return nil, err
	}
	t := &tcpListener{TCPListener: l, acceptor: acceptor{front: f, carrier: f.proxy.tcpCarrier(), redirected: b.Redirected, at: plainAddr(l.Addr())}, closed: make(chan struct{})}
	t.setTargets(b.Targets)
	f.proxy.budget.listeners.Add(1)
	go t.run()
	return t, nil
}

// handOver: there is no handover on these systems.
func (l *tcpListener) handOver() []handover.Socket { return nil }

// run accepts until t is closed.
func (l *tcpListener) run() {
	defer l.front.proxy.budget.listeners.Add(-1)
	defer close(l.closed)
	l.acceptLoop(func() (conn, net.Addr, error) {
		client, err := l.AcceptTCP()
		if err != nil {
			return nil, nil, err
		}
		_ = client.SetKeepAliveConfig(keepaliveConfig(l.front.proxy.Keepalive)) // good to have
		return &keptClient{Conn: client}, client.RemoteAddr(), nil
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

func (l *tcpListener) addr() netip.AddrPort { return l.Addr().(*net.TCPAddr).AddrPort() }

func (l *tcpListener) serves(b portal.Bind) bool { return fits(b, l.addr(), l.redirected) }

// close stops accepting and returns when the accept loop has ended. Connections
// that wait to be accepted are reset by the kernel.
func (l *tcpListener) close() {
	l.closing.Do(func() { l.TCPListener.Close() })
	<-l.closed
}
