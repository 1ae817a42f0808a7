package stream

import (
	"context"
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

// tcpListener is a listener for a TCP service port. Several loops accept from it.
type tcpListener struct {
	acceptor
	fd             int
	acceptHandlers []*acceptHandler
}

// ListenTCP opens the listener that b describes and starts to accept.
func (s *Server) ListenTCP(f *frontend.FrontEnd, b portal.Bind) (frontend.Listener, error) {
	if err := s.loops.start(s); err != nil {
		return nil, err
	}
	fd, at, inherited, err := f.OpenSocket(b, func(sockets forward.Sockets, addr netip.AddrPort) (int, error) {
		return sockets.ListenTCP(addr, s.keepalive())
	})
	if err != nil {
		return nil, err
	}
	if inherited {
		s.keepalive().Set(fd)
	}
	l := &tcpListener{acceptor: acceptor{server: s, front: f}, fd: fd}
	l.SetBound(b, at)
	f.Budget.CountListener(f.ID().Namespace, l.At.Port(), false, 1)
	for _, loop := range s.loops.watchers() {
		e := &acceptHandler{listener: l, loop: loop}
		l.acceptHandlers = append(l.acceptHandlers, e)
		_ = loop.Do(e.open) // the loops run as long as there are listeners
	}
	return l, nil
}

// HandOver implements frontend.Listener.
func (l *tcpListener) HandOver() (handover.Socket, bool) {
	return frontend.SocketFor(l.fd, frontend.SocketName(config.TCP, l.At))
}

// Close stops accepting, and returns when no loop accepts from l. If usher stops, it first accepts the connections that
// wait. Otherwise the kernel resets them, unless a successor has the socket.
func (l *tcpListener) Close(why frontend.Closing) {
	var closed sync.WaitGroup
	for _, e := range l.acceptHandlers {
		e.loop.Go(&closed, func() { e.close(why) })
	}
	closed.Wait()
	if why == frontend.Withdrawn {
		_ = unix.Shutdown(l.fd, unix.SHUT_RD) // stops listening now; a keeper closes its copy only later
	}
	unix.Close(l.fd)
	l.front.Budget.CountListener(l.front.ID().Namespace, l.At.Port(), false, -1)
}

// acceptHandler is a listener on one loop. Only that loop may use it.
type acceptHandler struct {
	listener *tcpListener
	loop     *forward.Loop
	watch    forward.Registration
	watching bool
	closed   bool
	pause    time.Duration // after a failure
}

func (e *acceptHandler) open() {
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

// lastAccepts limits how many connections a loop accepts from a listener when usher stops, since clients may continue to
// connect.
const lastAccepts = 4096

func (e *acceptHandler) close(why frontend.Closing) {
	e.closed = true
	e.unwatch()
	for n := 0; why == frontend.Stopped && n < lastAccepts; n++ {
		client, from, err := forward.Accept(e.listener.fd)
		if err != nil {
			break
		}
		e.accepted(client, from)
	}
}

func (e *acceptHandler) unwatch() {
	if e.watching {
		e.loop.Remove(e.watch)
		e.watching = false
	}
}

// acceptsPerCall limits the clients that one call of Ready accepts: the loop's established connections wait meanwhile.
const acceptsPerCall = 16

// Ready accepts one client. It does not try again, because an accept that finds no client costs a third of a successful
// one. If more clients wait, the next round or another loop calls Ready. On a crowded loop, the next round comes late,
// so Ready accepts more.
func (e *acceptHandler) Ready(forward.Readiness) {
	for n := 1; ; n++ {
		client, from, err := forward.Accept(e.listener.fd)
		switch err {
		case nil:
			e.pause = 0
			e.accepted(client, from)
		case unix.EAGAIN: // no client waits; another loop may have accepted it
			return
		default:
			e.failed(err)
			return
		}
		if n == acceptsPerCall || !e.loop.Crowded() {
			return
		}
	}
}

// failed pauses before the next accept.
func (e *acceptHandler) failed(err error) {
	if e.pause = e.listener.acceptFailed(err, e.pause); e.pause > 0 {
		e.unwatch()
		time.AfterFunc(e.pause, func() { _ = e.loop.Do(e.open) })
	}
}

// accepted serves a client on the loop that LessLoaded selects, or with goroutines if Options.Dial is set.
func (e *acceptHandler) accepted(socket forward.Socket, from netip.AddrPort) {
	l := e.listener
	if l.server.Dial != nil {
		conn, err := socket.TCPConn()
		if err != nil {
			l.acceptFailed(err, 0) // logs it; the client sees that its connection is closed
			return
		}
		l.servePortable(conn, from)
		return
	}
	w := &waiting{Client: forward.Client{Socket: socket}, loop: e.loop.LessLoaded(l.server.loops.list)}
	if w.Conn = l.acceptor.accepted(w, from); w.Conn == nil {
		return
	}
	if w.loop == e.loop || w.loop.Do(func() { w.start(&l.acceptor, w) }) != nil {
		w.loop = e.loop
		w.start(&l.acceptor, w)
	}
}

// pair is the part of a connection that a loop forwards.
type pair = forward.Pair

// waiting is a client without an endpoint. It belongs to a loop until the connection is established.
type waiting struct {
	*Conn
	forward.Client
	loop       *forward.Loop
	connecting frontend.Connecting
	dial       *forward.Dialed // the last attempt; nil before the first
	wait       *leavable       // the current wait; nil if none
}

// leavable is a wait that can be ended early with a reason.
type leavable struct {
	context.Context
	leave func(error) // ends it; the argument is the reason
}

func (w *waiting) localAddr() netip.AddrPort {
	at, _ := forward.LocalAddr(int(w.Socket)) // fails only if the socket is closed
	return at
}

func (w *waiting) originalDst(from netip.Addr) (netip.AddrPort, error) {
	return kernel.OriginalDstFD(int(w.Socket), from.Is6())
}

// awaitHeader implements runner.
func (w *waiting) awaitHeader() {
	w.loop.AwaitHeader(&w.Client, headerTimeout, proxyproto.Complete, func(failed error) {
		n, r := w.readHeader(w.First(), failed)
		w.Skip(n)
		w.enter(r, w)
	})
}

// seek implements runner.
func (w *waiting) seek() {
	if w.loop.ReadAhead(&w.Client) != nil {
		w.Refuse(searchEnded(errClientReset))
		return
	}
	w.connecting = w.Connect(w.server.ctx, w)
	w.connecting.Next(time.Now())
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
		_ = w.loop.Do(w.waited) // the loop runs as long as there are connections
	}()
	w.changed() // events from before this wait are not reported again
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
			w.connecting.Done(time.Now(), err)
			return
		}
	}
	if d := w.loop.Connect(from, w.Endpoint.Addr, hops, w.Opening(), limit, w.dialed); d != nil {
		w.dial = d
		w.watch()
	}
}

// dialed is called when an attempt has ended.
func (w *waiting) dialed(d *forward.Dialed, err error) {
	w.dial = d
	w.connecting.Done(time.Now(), err)
}

// Connected implements frontend.Runner.
func (w *waiting) Connected() {
	w.Endpoint = w.Endpoint.Own()
	w.loop.Forward(&w.pair, &w.Client, w.dial, w.limits(), w.Conn)
	w.flowing(&w.pair)
}

// waited is called when a wait is over.
func (w *waiting) waited() {
	over := context.Cause(w.wait)
	w.wait.leave(nil)
	if w.wait = nil; over == nil {
		w.connecting.Next(time.Now())
		return
	}
	w.connecting.Stop(time.Now(), searchEnded(over))
}

// watch starts to watch for a reset from the client. It is called when an attempt does not end at once, or when the
// client has to wait. It reports whether the search continues.
func (w *waiting) watch() bool {
	if err := w.loop.WatchClient(&w.Client, w.changed); err != nil {
		w.stop(outcome.Result{Outcome: outcome.Limit, Err: unix.ENOMEM})
		return false
	}
	return true
}

// changed is called when the client has sent data, ended its stream or reset the connection.
func (w *waiting) changed() {
	switch waits := w.wait != nil; {
	case waits && w.connecting.Queued():
		// Bytes that were read may be a complete request, whose client closes its side and waits for the response. If
		// there are any, only a reset means that the client has left.
		if w.Reset() || len(w.First()) == 0 && w.Left() {
			w.wait.leave(errClientLeft)
		}
	case !w.Reset():
	case waits:
		w.wait.leave(errClientReset)
	default:
		w.stop(searchEnded(errClientReset))
	}
}

// stop ends the search and a pending attempt, and resets the client.
func (w *waiting) stop(r outcome.Result) {
	if w.dial != nil && w.dial.Pending() {
		w.dial.Cancel()
	}
	w.connecting.Stop(time.Now(), r)
}

// prepareDialSocket prepares a socket that is not connected yet. It sets mark unless that is 0, and binds the socket to
// the address from if that is valid (see forward.BindTransparent).
func prepareDialSocket(fd uintptr, mark uint32, from netip.AddrPort) (err error) {
	if mark != 0 {
		err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, int(mark))
	}
	if err == nil && from.IsValid() {
		err = forward.BindTransparent(int(fd), from)
	}
	return err
}
