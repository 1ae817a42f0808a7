package proxy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/portal/handover"
)

// tcpListener is a listener for a TCP service port.
type tcpListener struct {
	*net.TCPListener
	front      *frontEnd
	redirected bool
	targets    atomic.Pointer[[]portal.Target]

	closing sync.Once
	closed  chan struct{} // the accept loop has ended
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
	l, err := f.proxy.inheritTCP(b.Addr)
	if l == nil && err == nil {
		l, err = listenTCP(b.Addr, f.proxy.Keepalive)
	}
	if err != nil && b.Preferred && errors.Is(err, syscall.EADDRINUSE) {
		l, err = listenTCP(netip.AddrPortFrom(b.Addr.Addr(), 0), f.proxy.Keepalive)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot listen on %s: %w", b.Addr, plainError(err))
	}
	t := &tcpListener{TCPListener: l, front: f, redirected: b.Redirected, closed: make(chan struct{})}
	t.setTargets(b.Targets)
	f.proxy.connections.listeners.Add(1)
	go t.acceptLoop()
	return t, nil
}

// inheritTCP returns the listener for addr that a predecessor has handed over, or
// nil if there is none.
func (p *Proxy) inheritTCP(addr netip.AddrPort) (*net.TCPListener, error) {
	file := p.inherited[tcpSocketName(addr)]
	if file == nil {
		return nil, nil
	}
	delete(p.inherited, tcpSocketName(addr))
	defer file.Close() // the listener has a copy
	l, err := net.FileListener(file)
	if err != nil {
		return nil, err
	}
	return l.(*net.TCPListener), nil
}

// tcpSocketName is the name of a listener in a handover.
func tcpSocketName(addr netip.AddrPort) string { return "tcp " + addr.String() }

func (l *tcpListener) socket() (handover.Socket, error) {
	file, err := l.File()
	return handover.Socket{Name: tcpSocketName(l.addr()), File: file}, err
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

func (l *tcpListener) setTargets(targets []portal.Target) { l.targets.Store(&targets) }

// endpointsChanged: connections go on whatever happens to their endpoints.
func (l *tcpListener) endpointsChanged() {}

// close stops accepting and returns when the accept loop has ended. Connections
// that wait to be accepted are reset by the kernel.
func (l *tcpListener) close() {
	l.closing.Do(func() { l.TCPListener.Close() })
	<-l.closed
}
