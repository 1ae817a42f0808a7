package proxy

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/portal/handover"
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
	l, err := f.proxy.inheritTCP(b.Addr)
	if l == nil && err == nil {
		l, err = listenTCP(b.Addr, f.proxy.Keepalive)
	}
	if b.Preferred {
		for _, port := range f.proxy.otherPorts() {
			if !errors.Is(err, syscall.EADDRINUSE) {
				break
			}
			l, err = listenTCP(netip.AddrPortFrom(b.Addr.Addr(), port), f.proxy.Keepalive)
		}
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

// otherPorts returns the ports to try when the preferred one is taken, in a random
// order: those that the user allows, or 0 for any.
func (p *Proxy) otherPorts() []uint16 {
	if p.Ports.First == 0 {
		return []uint16{0}
	}
	var ports []uint16
	for _, i := range rand.Perm(int(p.Ports.Last-p.Ports.First) + 1) {
		ports = append(ports, p.Ports.First+uint16(i))
	}
	return ports
}

// inheritTCP returns the listener for addr that a predecessor has handed over, or
// nil if there is none.
func (p *Proxy) inheritTCP(addr netip.AddrPort) (*net.TCPListener, error) {
	file := p.inherited[tcpSocketName(addr)]
	if file == nil || addr.Port() == 0 {
		return nil, nil
	}
	delete(p.inherited, tcpSocketName(addr))
	defer file.Close() // the listener has a copy
	l, err := net.FileListener(file)
	if err != nil {
		return nil, err
	}
	t, ok := l.(*net.TCPListener)
	if !ok || t.Addr().(*net.TCPAddr).AddrPort() != addr {
		l.Close()
		return nil, fmt.Errorf("the socket that was handed over is no listener on %s", addr)
	}
	return t, nil
}

// tcpSocketName is the name of a listener in a handover.
func tcpSocketName(addr netip.AddrPort) string { return "tcp " + addr.String() }

// handOver returns a copy of the socket. One that cannot be copied is opened anew
// by the successor.
func (l *tcpListener) handOver() []handover.Socket {
	file, err := l.File()
	if err != nil {
		return nil
	}
	return []handover.Socket{{Name: tcpSocketName(l.addr()), File: file}}
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
	// A client that asks for MPTCP gets TCP: the kernel does not tell the original
	// destination of an MPTCP connection.
	config.SetMultipathTCP(false)
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
	return fits(b, l.addr(), l.redirected)
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
