package proxy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/proxy/forward"
)

// tcpListener is a listener for a TCP service port.
type tcpListener struct {
	*net.TCPListener
	acceptor

	closing sync.Once
	closed  chan struct{} // the accept loop has ended
}

// tcp carries TCP connections.
var tcp = carrier{
	dial: func(ctx context.Context, p *Proxy, _ conn, from netip.Addr, to netip.AddrPort) (conn, error) {
		return dialTCP(ctx, p.Keepalive, from, to)
	},
	forward: func(f *forward.Forwarder, client, endpoint conn, done func(forward.Result)) *forward.Flow {
		return f.Forward(client.(*net.TCPConn), endpoint.(*net.TCPConn), done)
	},
}

// keepaliveProbes and keepaliveInterval are how often and at what distance a
// silent peer is probed before it counts as gone.
const (
	keepaliveProbes   = 3
	keepaliveInterval = 30 * time.Second
)

// openTCP opens the listener that b asks for and starts to accept. Accepted
// connections inherit keepalive from it.
func openTCP(f *frontEnd, b portal.Bind) (*tcpListener, error) {
	l, err := listenTCP(b.Addr, f.proxy.Keepalive)
	if err != nil && b.Preferred && errors.Is(err, syscall.EADDRINUSE) {
		l, err = listenTCP(netip.AddrPortFrom(b.Addr.Addr(), 0), f.proxy.Keepalive)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot listen on %s: %w", b.Addr, plainError(err))
	}
	t := &tcpListener{TCPListener: l, acceptor: acceptor{front: f, carrier: &tcp, redirected: b.Redirected}, closed: make(chan struct{})}
	t.setTargets(b.Targets)
	f.proxy.connections.listeners.Add(1)
	go t.run()
	return t, nil
}

// run accepts until t is closed.
func (l *tcpListener) run() {
	defer l.front.proxy.connections.listeners.Add(-1)
	defer close(l.closed)
	l.acceptLoop(func() (conn, error) { return l.AcceptTCP() })
}

func listenTCP(addr netip.AddrPort, keepalive time.Duration) (*net.TCPListener, error) {
	config := net.ListenConfig{
		KeepAlive: -1, // not set again for each connection
		Control: func(_, _ string, raw syscall.RawConn) error {
			var failed error
			err := raw.Control(func(fd uintptr) { failed = setListenerOptions(fd, addr.Addr(), keepalive) })
			return errors.Join(err, failed)
		},
	}
	network := "tcp4"
	if addr.Addr().Is6() {
		network = "tcp6" // sets IPV6_V6ONLY
	}
	l, err := config.Listen(context.Background(), network, addr.String())
	if err != nil {
		return nil, err
	}
	return l.(*net.TCPListener), nil
}

func (l *tcpListener) addr() netip.AddrPort { return l.Addr().(*net.TCPAddr).AddrPort() }

func (l *tcpListener) serves(b portal.Bind) bool {
	have := l.addr()
	samePort := have.Port() == b.Addr.Port() || b.Addr.Port() == 0 || b.Preferred
	return samePort && have.Addr() == b.Addr.Addr() && l.redirected == b.Redirected
}

// close stops accepting and returns when the accept loop has ended. Connections
// that wait to be accepted are reset by the kernel.
func (l *tcpListener) close() {
	l.closing.Do(func() { l.TCPListener.Close() })
	<-l.closed
}

// dialTCP connects to an endpoint, with keepalive.
func dialTCP(ctx context.Context, keepalive time.Duration, from netip.Addr, to netip.AddrPort) (conn, error) {
	d := net.Dialer{
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: keepalive, Interval: keepaliveInterval, Count: keepaliveProbes},
	}
	if from.IsValid() {
		d.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(from, 0))
	}
	c, err := d.DialContext(ctx, "tcp", to.String())
	if err != nil {
		return nil, err
	}
	return c.(*net.TCPConn), nil
}
