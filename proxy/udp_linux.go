package proxy

import (
	"container/list"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/proxy/balance"
	"github.com/usherproxy/usher/proxy/forward"
	"github.com/usherproxy/usher/proxy/trace"
)

// udpEngine runs the loops that serve UDP, about one for each processor, from
// the first UDP listener on.
//
// A listener has a socket on each of several loops. The kernel brings all
// datagrams of one client to the same socket, so a session belongs to one loop
// for all its life, and nothing that a datagram touches needs a lock.
type udpEngine struct {
	proxy  *Proxy
	limits sessionLimits

	loops []*udpLoop // guarded by Proxy.mu
	next  int        // the loop on which the next listener begins

	retiring sync.WaitGroup // sockets that a successor has, and by which replies go out yet

	returning atomic.Bool    // memory is being given back
	returns   sync.WaitGroup // what does it
}

// A listener has a socket on so many loops at the most: with a thousand
// service ports on a machine of many cores they would be too many descriptors,
// and the clients of different ports are spread all the same.
const maxSocketsPerListener = 4

// descriptorsPerLoop are epoll, eventfd and netlink.
const descriptorsPerLoop = 3

// start starts the loops if they do not run yet.
func (e *udpEngine) start() error {
	for len(e.loops) < runtime.GOMAXPROCS(0) {
		poller, err := forward.NewPoller()
		if err != nil {
			return fmt.Errorf("starting a loop for UDP: %w", err)
		}
		loop := &udpLoop{
			proxy:    e.proxy,
			poller:   poller,
			in:       forward.NewBatch(batchSize),
			out:      forward.NewBatch(batchSize),
			keys:     make([]sessionKey, batchSize),
			refusals: rate.NewLimiter(refusalsPerSecond, refusalsPerSecond),
		}
		if err := poller.Do(func() { poller.OnRoundEnd(loop.endRound) }); err != nil {
			return fmt.Errorf("starting a loop for UDP: %w", err)
		}
		e.loops = append(e.loops, loop)
		e.proxy.connections.udp.Add(descriptorsPerLoop)
	}
	return nil
}

// stop ends the loops. Their listeners are closed already.
func (e *udpEngine) stop() {
	for _, loop := range e.loops {
		loop.poller.Close()
		if loop.flows != nil {
			loop.flows.Close()
		}
		e.proxy.connections.udp.Add(-descriptorsPerLoop)
	}
	e.loops = nil
	e.returns.Wait()
}

// returnMemory gives memory back to the system soon. After many sessions there
// may be nothing that makes Go collect: its collector follows allocation.
func (e *udpEngine) returnMemory() {
	if !e.returning.CompareAndSwap(false, true) {
		return
	}
	e.returns.Go(func() {
		debug.FreeOSMemory()
		e.returning.Store(false)
	})
}

// choose returns the loops for a new listener.
func (e *udpEngine) choose() []*udpLoop {
	n := min(len(e.loops), maxSocketsPerListener)
	chosen := make([]*udpLoop, n)
	for i := range chosen {
		chosen[i] = e.loops[(e.next+i)%len(e.loops)]
	}
	e.next = (e.next + n) % len(e.loops)
	return chosen
}

// batchSize is how many datagrams one system call may bring or send.
const batchSize = 32

// refusalsPerSecond bounds how much of the trace clients can take that are not
// admitted: each of their datagrams would leave two events.
const refusalsPerSecond = 10

// udpLoop is what the sockets and sessions of one poller share. Except for what
// is set before it starts, it belongs to the poller's goroutine.
type udpLoop struct {
	proxy  *Proxy
	poller *forward.Poller
	flows  *portal.Flows // nil until a listener behind a redirect needs it

	in   *forward.Batch // from clients
	keys []sessionKey   // of those in in

	out      *forward.Batch // replies that wait for the end of the round
	outCount int
	outFrom  *udpSocket // the socket that they go out by

	sessions list.List // *udpSession; idle for longest first
	kept     int       // bytes in copies of datagrams
	now      time.Time // of this round, once somebody asked
	refusals *rate.Limiter
}

// clock returns the time, to the accuracy of a round.
func (l *udpLoop) clock() time.Time {
	if l.now.IsZero() {
		l.now = time.Now()
	}
	return l.now
}

func (l *udpLoop) endRound() {
	l.flush()
	l.now = time.Time{}
}

// flush sends the replies that wait.
func (l *udpLoop) flush() {
	if l.outCount == 0 {
		return
	}
	c := &l.proxy.counters
	sent := 0
	for at := 0; at < l.outCount; {
		n, err := l.out.Send(l.outFrom.fd, at, l.outCount-at)
		at += n
		sent += n
		switch {
		case err == nil:
		case bufferFull(err): // for the others, too
			c.drop(DropSendBuffer, l.outCount-at)
			at = l.outCount
		default:
			c.drop(DropNotSent, 1)
			at++
		}
	}
	c.datagramsToClient.Add(int64(sent))
	l.outCount, l.outFrom = 0, nil
}

// bufferFull reports whether err says that a socket has no room for more.
func bufferFull(err error) bool { return err == unix.EAGAIN || err == unix.ENOBUFS }

// evictOldest ends the session that has been idle longest, unless it is spare,
// and reports whether there was one.
func evictOldest(sessions *list.List, spare *udpSession) bool {
	for e := sessions.Front(); e != nil; e = e.Next() {
		if s := e.Value.(*udpSession); s != spare {
			s.end(trace.Limit, errEvicted)
			return true
		}
	}
	return false
}

var errEvicted = errors.New("another client needed the room, and this one had been idle longest")

// udpListener is a listener for a UDP service port.
type udpListener struct {
	front      *frontEnd
	at         netip.AddrPort
	redirected bool
	targets    atomic.Pointer[[]portal.Target]
	sockets    []*udpSocket
}

// openUDP opens the listener that b asks for.
//
// Behind a redirect, conntrack must be able to tell where each client wanted to
// go. If it is not, there is no listener: one that let everybody in would be a
// way around loadBalancerSourceRanges and traffic policies.
func openUDP(f *frontEnd, b portal.Bind) (listener, error) {
	e := &f.proxy.udp
	if err := e.start(); err != nil {
		return nil, err
	}
	loops := e.choose()
	if b.Redirected {
		for _, loop := range loops {
			if loop.flows != nil {
				continue
			}
			var err error
			if loop.flows, err = portal.OpenFlows(); err != nil {
				return nil, fmt.Errorf("cannot tell which UDP clients come through the portal: %w (the module nf_conntrack_netlink is needed; --portal=address does without)", err)
			}
		}
	}
	fds, err := f.proxy.inheritUDP(b.Addr), error(nil)
	if len(fds) == 0 {
		fds, err = forward.Sockets(f.proxy.Socket).ListenUDP(b.Addr, len(loops))
	}
	if b.Preferred {
		for _, port := range f.proxy.otherPorts() {
			if !portTaken(err) {
				break
			}
			fds, err = forward.Sockets(f.proxy.Socket).ListenUDP(netip.AddrPortFrom(b.Addr.Addr(), port), len(loops))
		}
	}
	if err != nil {
		return nil, fmt.Errorf("cannot listen on %s: %w", b.Addr, plainError(err))
	}
	l := &udpListener{front: f, redirected: b.Redirected}
	l.setTargets(b.Targets)
	if l.at, err = forward.LocalAddr(fds[0]); err != nil {
		for _, fd := range fds {
			unix.Close(fd)
		}
		return nil, fmt.Errorf("cannot listen on %s: %w", b.Addr, err)
	}
	f.proxy.connections.listeners.Add(1)
	f.proxy.connections.udp.Add(int64(len(fds) - 1))
	for i, fd := range fds {
		l.sockets = append(l.sockets, newUDPSocket(l, loops[i%len(loops)], fd))
	}
	for _, s := range l.sockets {
		_ = s.loop.poller.Do(s.open) // the loops run until Stop, after which nothing is opened
	}
	return l, nil
}

func (l *udpListener) addr() netip.AddrPort { return l.at }

func (l *udpListener) serves(b portal.Bind) bool {
	return fits(b, l.at, l.redirected)
}

func (l *udpListener) setTargets(targets []portal.Target) { l.targets.Store(&targets) }

// endpointsChanged makes the loops look at the new view soon, also at sessions
// whose clients are silent. A datagram that comes before that looks itself.
func (l *udpListener) endpointsChanged() {
	for _, s := range l.sockets {
		_ = s.loop.poller.Do(s.refresh)
	}
}

// abandon makes all sockets abandon an endpoint that has refused a client,
// soon.
func (l *udpListener) abandon(refused *balance.State) {
	for _, s := range l.sockets {
		_ = s.loop.poller.Do(func() { s.abandon(refused) })
	}
}

// close ends the sessions and closes the sockets. It is called with Proxy.mu.
func (l *udpListener) close() {
	l.front.proxy.connections.listeners.Add(-1)
	l.front.proxy.connections.udp.Add(-int64(len(l.sockets) - 1))
	if l.front.proxy.handedOver {
		l.retire()
		return
	}
	end := trace.Withdrawn
	if l.front.proxy.stopped {
		end = trace.Drained
	}
	var closed sync.WaitGroup
	for _, s := range l.sockets {
		closed.Add(1)
		err := s.loop.poller.Do(func() {
			s.close(end)
			closed.Done()
		})
		if err != nil {
			closed.Done()
		}
	}
	closed.Wait()
}

// udpSocket is one of a listener's sockets, with the sessions of the clients
// whose datagrams the kernel brings there. It belongs to its loop.
type udpSocket struct {
	listener *udpListener
	front    *frontEnd
	loop     *udpLoop
	fd       int
	watched  forward.Registration

	view     *view // that the sessions were last compared with
	idle     time.Duration
	sessions map[sessionKey]*udpSession
	order    list.List // *udpSession; idle for longest first
	peak     int       // sessions at once since the map was made
	expiry   *time.Timer
	ticking  bool   // expiry will call expire
	lost     uint32 // datagrams that the kernel dropped before they were received
	deaf     bool   // it is not watched any more
	closed   bool

	// Once a successor has the socket: what closes it, and how many clients
	// wait for a reply before that. See retire.
	retired func()
	awaited int
}

// sessionKey is a client and where on this node its datagrams arrive: answers
// must come from there.
type sessionKey struct {
	peer  forward.Peer
	local netip.Addr
}

func newUDPSocket(l *udpListener, loop *udpLoop, fd int) *udpSocket {
	s := &udpSocket{listener: l, front: l.front, loop: loop, fd: fd, sessions: map[sessionKey]*udpSession{}}
	s.expiry = time.AfterFunc(time.Hour, func() { _ = loop.poller.Do(s.expire) })
	s.expiry.Stop()
	return s
}

// open begins to receive.
func (l *udpSocket) open() {
	l.refresh()
	watched, err := l.loop.poller.Add(l.fd, forward.Readable, l)
	if err != nil { // the kernel has no memory
		l.front.proxy.Log.WithField("service", l.front.id.String()).WithError(err).Error("A UDP listener cannot be served")
		unix.Close(l.fd)
		l.closed = true
		return
	}
	l.watched = watched
}

func (l *udpSocket) close(end trace.End) {
	if l.closed {
		return
	}
	if l.loop.outFrom == l {
		l.loop.flush()
	}
	for e := l.order.Front(); e != nil; e = l.order.Front() {
		e.Value.(*udpSession).end(end, nil)
	}
	l.expiry.Stop()
	l.stopReceiving()
	unix.Close(l.fd)
	l.closed = true
}

// stopReceiving takes the socket out of the loop. Closing it would not, while
// another process has it too.
func (l *udpSocket) stopReceiving() {
	if !l.deaf {
		l.deaf = true
		l.loop.poller.Remove(l.watched)
	}
}

// Ready receives what clients have sent.
func (l *udpSocket) Ready(forward.Readiness) {
	b, keys := l.loop.in, l.loop.keys
	n, err := b.Receive(l.fd, 0, batchSize)
	if err != nil || n == 0 {
		return // somebody else's readiness, or an error that is over now
	}
	l.refresh()
	links := 0
	for i := range n {
		control := b.Control(i)
		keys[i] = sessionKey{peer: *b.Peer(i), local: control.Local}
		if control.Lost != l.lost {
			l.front.proxy.counters.drop(DropReceiveBuffer, int(control.Lost-l.lost))
			l.lost = control.Lost
		}
		links = control.Interface
	}
	for i := 0; i < n; {
		run := 1
		for i+run < n && keys[i+run] == keys[i] {
			run++
		}
		l.pass(i, run, links)
		i += run
	}
}

// pass passes on a run of datagrams of one client.
func (l *udpSocket) pass(at, count, link int) {
	key := &l.loop.keys[at]
	s := l.sessions[*key]
	if s != nil {
		done := s.send(at, count)
		if done == count {
			return
		}
		// The endpoint is gone, though it had answered. These were not sent.
		at, count = at+done, count-done
	}
	if s = l.begin(key, link, count); s != nil {
		s.send(at, count)
	}
}

// begin begins a session with the client that sent count datagrams. If there
// can be none, it returns nil.
func (l *udpSocket) begin(key *sessionKey, link, count int) *udpSession {
	p := l.front.proxy
	s := &udpSession{socket: l, key: *key, began: l.loop.clock(), fd: -1}
	s.from = key.peer.AddrPort()
	s.to = l.listener.at
	if key.local.IsValid() {
		s.to = netip.AddrPortFrom(key.local.Unmap(), s.to.Port())
		s.control = forward.SourceControl(key.local, link)
	}
	if end, drop, err := s.admit(); err != nil {
		p.counters.drop(drop, count)
		if drop == DropUnknownOrigin {
			originErrors.Do(func() {
				p.Log.WithField("service", l.front.id.String()).WithError(err).
					Error("UDP clients are not served: it cannot be told whether they came through the portal (logged every 10 s at the most)")
			})
		}
		if l.loop.refusals.Allow() {
			s.id = p.connections.next.Add(1)
			s.event(trace.Event{Kind: trace.Accepted, Time: s.began})
			s.closed(trace.Event{End: end, Err: err.Error()})
		}
		return nil
	}
	s.id = p.connections.next.Add(1)
	s.event(trace.Event{Kind: trace.Accepted, Time: s.began})
	l.makeRoom()
	l.sessions[s.key] = s
	l.peak = max(l.peak, len(l.sessions))
	s.inSocket, s.inLoop = l.order.PushBack(s), l.loop.sessions.PushBack(s)
	s.last = s.began
	l.tick()
	s.search = newUDPSearch(s)
	if !s.connect() {
		p.counters.drop(DropNoEndpoint, count)
		return nil
	}
	return s
}

var originErrors = rate.Sometimes{First: 1, Interval: 10 * time.Second}

// makeRoom makes room for one more session: if there is none, the one that has
// been idle longest goes, of this socket if the service port has its share, and
// otherwise of this loop. Each socket may have one session in any case.
func (l *udpSocket) makeRoom() {
	p := l.front.proxy
	for {
		full := p.udp.reserve(l.front)
		if full == notFull {
			return
		}
		limitErrors.Do(func() {
			p.Log.WithFields(map[string]any{"service": l.front.id.String(), "open": p.udp.limits.open.Load(), "limit": p.udp.limit(), "limit-per-port": p.udp.limitPerPort()}).
				Error("Too many UDP sessions: those that have been idle longest end (logged every 10 s at the most)")
		})
		from := &l.loop.sessions
		if full == portFull {
			from = &l.order
		}
		if !evictOldest(from, nil) {
			p.udp.take(l.front)
			return
		}
	}
}

// refresh compares the sessions with the front end's configuration if that has
// changed: a session whose endpoint is not to be used any more ends now.
func (l *udpSocket) refresh() {
	v := l.front.view.Load()
	if v == l.view || l.closed {
		return
	}
	l.view = v
	l.idle = v.port.UDPIdleTimeout
	if l.idle == 0 {
		l.idle = l.front.proxy.UDPIdleTimeout
	}
	if l.order.Len() == 0 {
		return
	}
	usable := v.usable()
	for e := l.order.Front(); e != nil; {
		s := e.Value.(*udpSession)
		e = e.Next()
		s.compare(v, usable)
	}
	l.expire()
}

// expire ends the sessions that are idle for too long.
func (l *udpSocket) expire() {
	l.ticking = false
	if l.closed {
		return
	}
	now := l.loop.clock()
	for e := l.order.Front(); e != nil; e = l.order.Front() {
		s := e.Value.(*udpSession)
		if now.Sub(s.last) < l.idle {
			break
		}
		s.end(trace.Idle, nil)
	}
	l.tick()
}

// tick makes expire be called when the next session may be idle for too long.
func (l *udpSocket) tick() {
	if first := l.order.Front(); first != nil && !l.ticking {
		l.ticking = true
		l.expiry.Reset(max(l.idle-l.loop.clock().Sub(first.Value.(*udpSession).last), time.Millisecond))
	}
}

// forget takes s out of the books.
func (l *udpSocket) forget(s *udpSession) {
	if l.sessions[s.key] == s {
		delete(l.sessions, s.key)
	}
	l.order.Remove(s.inSocket)
	l.loop.sessions.Remove(s.inLoop)
	l.front.proxy.udp.release(l.front)
	if len(l.sessions) == 0 && l.peak > keepMap {
		// A Go map does not shrink.
		l.sessions, l.peak = map[sessionKey]*udpSession{}, 0
		l.front.proxy.udp.returnMemory()
	}
}

// keepMap is the size up to which an empty map is kept.
const keepMap = 256

// vipOf returns the VIP that a client meant which sent to original, or whose
// datagrams came to this listener without a redirect.
func (l *udpListener) vipOf(v *view, original netip.AddrPort) (*config.VIP, bool) {
	if l.redirected {
		return v.vip(original)
	}
	return v.vipOf((*l.targets.Load())[0])
}
