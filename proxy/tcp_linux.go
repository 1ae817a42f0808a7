package proxy

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/portal/handover"
	"github.com/usherproxy/usher/proxy/forward"
)

// tcpListener is a listener for a TCP service port. All loops accept from it.
type tcpListener struct {
	acceptor
	fd        int
	entrances []*entrance
}

// tcp carries TCP connections.
var tcp = carrier{
	originalDst: func(client conn) (netip.AddrPort, error) {
		return portal.OriginalDstFD(int(client.(*forward.Client).Socket))
	},
	dial: func(ctx context.Context, p *Proxy, _ conn, from netip.Addr, to *config.Endpoint) (endpointConn, error) {
		return dialOnLoop(ctx, p.loops.list, from, to.Addr)
	},
	forward: func(client conn, endpoint endpointConn, limits *forward.Limits, done func(forward.Result)) forward.Flow {
		d := endpoint.(*forward.Dialed)
		return d.Loop.Forward(client.(*forward.Client), d, limits, done)
	},
}

// openTCP opens the listener that b asks for and starts to accept.
func openTCP(f *frontEnd, b portal.Bind) (*tcpListener, error) {
	if err := f.proxy.loops.start(f.proxy); err != nil {
		return nil, err
	}
	fd, err := listenFor(f.proxy, b, func(addr netip.AddrPort) (int, error) {
		if addr == b.Addr { // what is inherited at others is for other front ends
			if fd, err := f.proxy.inheritTCP(addr); fd >= 0 || err != nil {
				return fd, err
			}
		}
		return forward.Sockets(f.proxy.Socket).ListenTCP(addr, f.proxy.keepalive())
	})
	if err != nil {
		return nil, err
	}
	l := &tcpListener{acceptor: acceptor{front: f, carrier: f.proxy.tcpCarrier(), redirected: b.Redirected}, fd: fd}
	if l.at, err = forward.LocalAddr(fd); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("cannot listen on %s: %w", b.Addr, err)
	}
	l.setTargets(b.Targets)
	f.proxy.budget.listeners.Add(1)
	for _, loop := range f.proxy.loops.list {
		e := &entrance{listener: l, loop: loop}
		l.entrances = append(l.entrances, e)
		_ = loop.Do(e.open) // the loops run as long as there are listeners
	}
	return l, nil
}

// inheritTCP returns the listener for addr that a predecessor has handed over, or
// -1 if there is none.
func (p *Proxy) inheritTCP(addr netip.AddrPort) (int, error) {
	file := p.inherited[tcpSocketName(addr)]
	if file == nil || addr.Port() == 0 {
		return -1, nil
	}
	delete(p.inherited, tcpSocketName(addr))
	defer file.Close() // the listener has a copy
	fd, err := unix.FcntlInt(file.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	if at, err := forward.LocalAddr(fd); err != nil || at != addr {
		unix.Close(fd)
		return -1, fmt.Errorf("the socket that was handed over is no listener on %s", addr)
	}
	return fd, unix.SetNonblock(fd, true)
}

// handOver returns a copy of the socket. One that cannot be copied is opened anew
// by the successor.
func (l *tcpListener) handOver() []handover.Socket {
	fd, err := unix.FcntlInt(uintptr(l.fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	name := tcpSocketName(l.at)
	return []handover.Socket{{Name: name, File: os.NewFile(uintptr(fd), name)}}
}

// tcpSocketName is the name of a listener in a handover.
func tcpSocketName(addr netip.AddrPort) string { return "tcp " + addr.String() }

func (l *tcpListener) addr() netip.AddrPort { return l.at }

func (l *tcpListener) serves(b portal.Bind) bool { return fits(b, l.at, l.redirected) }

// close stops accepting, and returns when nobody does any more. Connections that
// wait to be accepted are reset by the kernel, unless a successor has the socket.
func (l *tcpListener) close() {
	var closed sync.WaitGroup
	for _, e := range l.entrances {
		closed.Add(1)
		err := e.loop.Do(func() {
			e.close()
			closed.Done()
		})
		if err != nil {
			closed.Done()
		}
	}
	closed.Wait()
	unix.Close(l.fd)
	l.front.proxy.budget.listeners.Add(-1)
}

// entrance is a listener on one of the loops, to which it belongs.
type entrance struct {
	listener *tcpListener
	loop     *forward.Loop
	watch    forward.Registration
	watching bool
	closed   bool
	pause    time.Duration // after a failure
}

func (e *entrance) open() {
	if e.closed || e.watching {
		return
	}
	var err error
	if e.watch, err = e.loop.Add(e.listener.fd, forward.Readable|forward.Shared, e); err != nil {
		e.failed(err)
		return
	}
	e.watching = true
}

func (e *entrance) close() {
	e.closed = true
	e.unwatch()
}

func (e *entrance) unwatch() {
	if e.watching {
		e.loop.Remove(e.watch)
		e.watching = false
	}
}

// acceptsPerTurn bounds how long those wait who are connected already. What is left
// is accepted in the next round, or by another loop.
const acceptsPerTurn = 4

// Ready accepts clients.
func (e *entrance) Ready(forward.Readiness) {
	for range acceptsPerTurn {
		client, from, err := forward.AcceptTCP(e.listener.fd)
		switch err {
		case nil:
			e.pause = 0
			e.accepted(client, from)
		case unix.EAGAIN:
			return
		default:
			e.failed(err)
			return
		}
	}
}

// failed lets some time pass before the next client is accepted.
func (e *entrance) failed(err error) {
	if e.pause = e.listener.acceptFailed(err, e.pause); e.pause > 0 {
		e.unwatch()
		time.AfterFunc(e.pause, func() { _ = e.loop.Do(e.open) })
	}
}

// accepted serves a client, on the loop that has the least to do.
func (e *entrance) accepted(client forward.Socket, from netip.AddrPort) {
	if e.listener.carrier == &portable {
		e.listener.acceptedPortable(client, from)
		return
	}
	c := e.listener.accepted(&forward.Client{Socket: client}, from)
	if c == nil {
		return
	}
	loop := e.listener.front.proxy.loops.idlest(e.loop)
	if loop == e.loop || loop.Do(func() { c.serveOn(loop, &e.listener.acceptor) }) != nil {
		c.serveOn(e.loop, &e.listener.acceptor)
	}
}

// acceptedPortable serves a client by goroutines.
func (l *tcpListener) acceptedPortable(client forward.Socket, from netip.AddrPort) {
	conn, err := client.TCPConn()
	if err != nil {
		l.acceptFailed(err, 0) // it is logged; the client sees that it was closed
		return
	}
	if c := l.acceptor.accepted(&keptClient{Conn: conn}, from); c != nil {
		go c.serve(&l.acceptor)
	}
}

// serveOn is serve without a goroutine, on a loop: most connections need just one
// attempt. If it fails, a goroutine makes the others.
func (c *connection) serveOn(loop *forward.Loop, a *acceptor) {
	if !c.admitted(a) {
		return
	}
	search := c.search()
	set, _ := search.endpoints()
	t, err := search.begin(set, time.Now())
	if err != nil {
		c.refuse(endOf(err), err)
		return
	}
	tried := func(d *forward.Dialed, err error) {
		switch err := search.settle(c.front.proxy.ctx, t, err); {
		case err == nil:
			c.forward(d, t.Endpoint)
		case errors.Is(err, errTryAgain):
			go c.tryOthers(search)
		default:
			c.refuse(endOf(err), err)
		}
	}
	if c.front.proxy.leadsBack(c.front.protocol, t.Endpoint.Addr) {
		tried(nil, errLeadsBack)
		return
	}
	loop.Connect(search.from, t.Endpoint.Addr, loop.ReadAhead(c.client.(*forward.Client)), search.schedule[0], tried)
}

// tryOthers is findEndpoint for a connection whose first attempt has failed.
func (c *connection) tryOthers(search *attempts) {
	conn, endpoint, err := search.run(c.front.proxy.ctx)
	if err != nil {
		c.refuse(endOf(err), err)
		return
	}
	loop := conn.(*forward.Dialed).Loop
	_ = loop.Do(func() { c.forward(conn, endpoint) }) // it runs as long as there are connections
}

// dialOnLoop lets one of the loops connect to an endpoint.
func dialOnLoop(ctx context.Context, loops []*forward.Loop, from netip.Addr, to netip.AddrPort) (*forward.Dialed, error) {
	loop := loops[0]
	for _, l := range loops {
		if l.Pairs() < loop.Pairs() {
			loop = l
		}
	}
	type outcome struct {
		d   *forward.Dialed
		err error
	}
	made := make(chan outcome, 1)
	started := make(chan *forward.Dialed, 1)
	err := loop.Do(func() {
		started <- loop.Connect(from, to, false, 0, func(d *forward.Dialed, err error) { made <- outcome{d, err} })
	})
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() {
		d := <-started
		_ = loop.Do(d.Cancel)
	})
	defer stop()
	o := <-made
	switch {
	case errors.Is(o.err, context.Canceled):
		return nil, ctx.Err()
	case o.err != nil:
		return nil, o.err
	}
	return o.d, nil
}
