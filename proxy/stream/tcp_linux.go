package stream

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/portal/handover"
	"github.com/usherproxy/usher/portal/kernel"
	"github.com/usherproxy/usher/proxy/forward"
	"github.com/usherproxy/usher/proxy/frontend"
	"github.com/usherproxy/usher/proxy/outcome"
	"github.com/usherproxy/usher/proxy/proxyproto"
	"github.com/usherproxy/usher/proxy/search"
)

// tcpListener is a listener for a TCP service port. Some loops accept from it.
type tcpListener struct {
	acceptor
	fd        int
	entrances []*entrance
}

// ListenTCP opens the listener that b asks for and starts to accept.
func (s *Server) ListenTCP(f *frontend.FrontEnd, b portal.Bind) (frontend.Listener, error) {
	if err := s.loops.start(s); err != nil {
		return nil, err
	}
	fd, err := frontend.Listen(f.Node, b, func(addr netip.AddrPort) (int, error) {
		if addr == b.Addr && addr.Port() != 0 { // what is inherited at others is for other front ends
			if fd, err := f.Inherit(frontend.SocketName(config.TCP, addr, b.Namespace != nil), addr); fd >= 0 || err != nil {
				return fd, err
			}
		}
		return forward.Sockets(f.Sockets(b)).ListenTCP(addr, s.keepalive())
	})
	if err == nil && b.Transparent {
		if err = forward.SetTransparent(fd, b.Addr.Addr()); err != nil {
			unix.Close(fd)
		}
	}
	if err != nil {
		return nil, err
	}
	l := &tcpListener{acceptor: acceptor{server: s, front: f}, fd: fd}
	if l.At, err = forward.LocalAddr(fd); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("cannot listen on %s: %w", b.Addr, err)
	}
	l.Redirected, l.Namespace = b.Redirected, b.Namespace
	l.SetTargets(b.Targets)
	f.Budget.Listeners.Add(1)
	for _, loop := range s.loops.watchers() {
		e := &entrance{listener: l, loop: loop}
		l.entrances = append(l.entrances, e)
		_ = loop.Do(e.open) // the loops run as long as there are listeners
	}
	return l, nil
}

// HandOver implements frontend.Listener. A socket that cannot be copied is opened anew
// by the successor.
func (l *tcpListener) HandOver() []handover.Socket {
	s, ok := frontend.SocketFor(l.fd, frontend.SocketName(config.TCP, l.At, l.Namespace != nil))
	if !ok {
		return nil
	}
	return []handover.Socket{s}
}

// Close stops accepting, and returns when no loop accepts any more. The kernel resets the connections
// that wait to be accepted, unless a successor has the socket.
func (l *tcpListener) Close(why frontend.Closing) {
	var closed sync.WaitGroup
	for _, e := range l.entrances {
		e.loop.Go(&closed, e.close)
	}
	closed.Wait()
	if why == frontend.Withdrawn {
		_ = unix.Shutdown(l.fd, unix.SHUT_RD) // a keeper closes its copy only later
	}
	unix.Close(l.fd)
	l.front.Budget.Listeners.Add(-1)
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

// acceptsPerTurn bounds how long those wait who are connected already.
const acceptsPerTurn = 16

// Ready accepts a client. If there are more, it is called again in the next round, or another
// loop is: to find out that there is none would cost a third of what it takes to accept one. If
// it may not be called for some time, it accepts more.
func (e *entrance) Ready(forward.Readiness) {
	for n := 1; ; n++ {
		client, from, err := forward.AcceptTCP(e.listener.fd)
		switch err {
		case nil:
			e.pause = 0
			e.accepted(client, from)
		case unix.EAGAIN: // another loop has it
			return
		default:
			e.failed(err)
			return
		}
		if n == acceptsPerTurn || !e.loop.Crowded() {
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

// accepted serves a client, on the less loaded of two loops.
func (e *entrance) accepted(socket forward.Socket, from netip.AddrPort) {
	l := e.listener
	if l.server.Dial != nil {
		l.acceptedPortable(socket, from)
		return
	}
	w := &waiting{Client: forward.Client{Socket: socket}, loop: l.server.loops.lessLoaded(e.loop)}
	if w.Conn = l.acceptor.accepted(w, from); w.Conn == nil {
		return
	}
	if w.loop == e.loop || w.loop.Do(func() { w.start(&l.acceptor, w) }) != nil {
		w.loop = e.loop
		w.start(&l.acceptor, w)
	}
}

// muchMore is how many more connections than another a loop has before that one gets
// the next: to hand it over takes a wake-up.
const muchMore = 16

// lessLoaded returns the loop given, or a random other one if that has clearly fewer pairs: two
// counts are read for a connection, however many loops there are.
func (ls *loops) lessLoaded(here *forward.Loop) *forward.Loop {
	if other := ls.list[rand.N(len(ls.list))]; other.Pairs() < here.Pairs()*3/4-muchMore {
		return other
	}
	return here
}

// acceptedPortable serves a client by goroutines.
func (l *tcpListener) acceptedPortable(client forward.Socket, from netip.AddrPort) {
	conn, err := client.TCPConn()
	if err != nil {
		l.acceptFailed(err, 0) // it is logged; the client sees that it was closed
		return
	}
	l.servePortable(conn, from)
}

// pair is what a loop moves.
type pair = forward.Pair

// waiting is a client on a loop that has no endpoint yet, and waits for what the search asks for. It belongs to the
// loop, and is forgotten once the connection is established.
type waiting struct {
	*Conn
	forward.Client
	loop   *forward.Loop
	search frontend.Connecting
	dial   *forward.Dialed // the last attempt; nil before the first
	wait   *leavable       // the wait that is under way; nil if none is
}

// leavable is a wait that ends when it is not worth it any more, and why.
type leavable struct {
	context.Context
	leave func(error) // ends it
}

func (w *waiting) originalDst() (netip.AddrPort, error) {
	return kernel.OriginalDstFD(int(w.Socket), w.From.Addr().Is6())
}

// awaitHeader implements runner.
func (w *waiting) awaitHeader() {
	w.loop.Await(&w.Client, headerTimeout, proxyproto.Complete, func(failed error) {
		n, r := w.introduced(w.First(), failed)
		w.Skip(n)
		w.enter(r, w)
	})
}

// seek implements runner.
func (w *waiting) seek() {
	if w.loop.ReadAhead(&w.Client); w.Reset() {
		w.Refuse(left(errClientReset))
		return
	}
	w.search = w.Connect(w.server.ctx, w)
	w.search.Next(time.Now())
}

// Wait implements frontend.Runner.
func (w *waiting) Wait(v *frontend.View, step search.Step) {
	if !w.watch() {
		return
	}
	ctx, leave := context.WithCancelCause(w.server.ctx)
	w.wait = &leavable{ctx, leave}
	go func() {
		wait(ctx, step, v.Replaced)
		_ = w.loop.Do(w.waited) // it runs as long as there are connections
	}()
	w.changed() // what has come since it is watched is not reported again
}

// Dial implements frontend.Runner.
func (w *waiting) Dial(v *frontend.View, from netip.AddrPort, mayLoop bool, limit time.Duration) {
	if w.Preface = nil; v.Port.ProxyProtocol != 0 {
		w.Preface = w.Header(v)
	}
	hops := 0
	if mayLoop {
		var err error
		if hops, err = frontend.HopsLeft(w.Hops()); err != nil {
			w.search.Done(time.Now(), err)
			return
		}
	}
	if d := w.loop.Connect(from, w.Endpoint.Addr, hops, w.Opening(), limit, w.dialed); d.Pending() {
		w.dial = d
		w.watch()
	}
}

// dialed is called when an attempt has ended.
func (w *waiting) dialed(d *forward.Dialed, err error) {
	w.dial = d
	w.search.Done(time.Now(), err)
}

// Connected implements frontend.Runner.
func (w *waiting) Connected() {
	w.loop.Forward(&w.pair, &w.Client, w.dial, w.limits(), w.Conn)
	w.flowing(&w.pair)
}

// waited is called when a wait is over.
func (w *waiting) waited() {
	over := context.Cause(w.wait)
	w.wait.leave(nil)
	if w.wait = nil; over == nil {
		w.search.Next(time.Now())
		return
	}
	w.search.Stop(time.Now(), left(over))
}

// watch begins to watch for a reset of the client's: when an attempt does not end at once, or the
// client has to wait. It reports whether the search goes on.
func (w *waiting) watch() bool {
	if err := w.loop.WatchClient(&w.Client, w.changed); err != nil {
		w.stop(outcome.Result{Outcome: outcome.Limit, Err: unix.ENOMEM})
		return false
	}
	return true
}

// changed is called when the client has sent something, ended its side or reset the connection.
func (w *waiting) changed() {
	switch waits := w.wait != nil; {
	case waits && w.search.Queued():
		// If something was read of the client, only a reset means that it left: that may be a whole request.
		if w.Reset() || len(w.First()) == 0 && w.Left() {
			w.wait.leave(errClientLeft)
		}
	case !w.Reset():
	case waits:
		w.wait.leave(errClientReset)
	default:
		w.stop(left(errClientReset))
	}
}

// stop ends the search and the attempt that may be under way, and resets the client.
func (w *waiting) stop(r outcome.Result) {
	if w.dial != nil && w.dial.Pending() {
		w.dial.Cancel()
	}
	w.search.Stop(time.Now(), r)
}

// dialFrom makes a socket that is to connect send with a mark, unless it is 0, and from an
// address (see forward.BindTransparent), unless it is not valid.
func dialFrom(fd uintptr, mark uint32, from netip.AddrPort) (err error) {
	if mark != 0 {
		err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, int(mark))
	}
	if err == nil && from.IsValid() {
		err = forward.BindTransparent(int(fd), from)
	}
	return err
}
