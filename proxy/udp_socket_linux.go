package proxy

import (
	"container/list"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"

	"github.com/usherproxy/usher/proxy/forward"
	"github.com/usherproxy/usher/proxy/trace"
)

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

// arrival is what is known of a datagram from a client.
type arrival struct {
	sessionKey
	link, hops int // see forward.Control
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
		l.front.proxy.Log.WithField("service", l.front.id().String()).WithError(err).Error("A UDP listener cannot be served")
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
		s := e.Value.(*udpSession)
		if s.leaving {
			s.end(trace.EndpointLeft, nil) // that came before
			continue
		}
		s.end(end, nil)
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
	b, came := l.loop.in, l.loop.came
	n, err := b.Receive(l.fd, 0, batchSize)
	if err != nil || n == 0 {
		return // somebody else's readiness, or an error that is over now
	}
	l.refresh()
	for i := range n {
		control := b.Control(i)
		came[i] = arrival{sessionKey{peer: *b.Peer(i), local: control.Local}, control.Interface, control.Hops}
		if control.Lost != l.lost {
			l.front.proxy.counters.drop(DropReceiveBuffer, int(control.Lost-l.lost))
			l.lost = control.Lost
		}
	}
	for i := 0; i < n; {
		run := 1
		for i+run < n && came[i+run].sessionKey == came[i].sessionKey {
			run++
		}
		l.pass(i, run)
		i += run
	}
}

// pass passes on a run of datagrams of one client.
func (l *udpSocket) pass(at, count int) {
	first := &l.loop.came[at]
	s := l.sessions[first.sessionKey]
	if s != nil {
		done := s.send(at, count)
		if done == count {
			return
		}
		// The endpoint is gone, though it had answered. These were not sent.
		at, count = at+done, count-done
	}
	if s = l.begin(first, count); s != nil {
		s.send(at, count)
	}
}

// begin begins a session with the client that sent count datagrams, of which first
// is the first. If there can be none, it returns nil.
func (l *udpSocket) begin(first *arrival, count int) *udpSession {
	p := l.front.proxy
	s := &udpSession{socket: l, key: first.sessionKey, hops: first.hops - 1, began: l.loop.clock(), fd: -1}
	s.from = first.peer.AddrPort()
	s.to = l.listener.at
	if first.local.IsValid() {
		s.to = netip.AddrPortFrom(first.local.Unmap(), s.to.Port())
		s.control = forward.SourceControl(first.local, first.link)
	}
	if end, drop, err := s.admit(); err != nil {
		p.counters.drop(drop, count)
		if drop == DropUnknownOrigin {
			originErrors.Do(func() {
				p.Log.WithField("service", l.front.id().String()).WithError(err).
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
	l.makeRoom(s.from.Addr())
	l.sessions[s.key] = s
	l.peak = max(l.peak, len(l.sessions))
	s.inSocket, s.inLoop = l.order.PushBack(s), l.loop.sessions.PushBack(s)
	l.loop.join(s)
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

// makeRoom makes room for one more session of client: if there is none, the one
// that has been idle longest goes, of the client's own if it has its share, of this
// socket if the service port has its, and otherwise of this loop. Each socket may
// have one session in any case.
func (l *udpSocket) makeRoom(client netip.Addr) {
	b := &l.front.proxy.budget
	toPort := l.front.sessions.Add(1)
	for {
		own := l.loop.clients[client]
		ofClient := 1
		if own != nil {
			ofClient += own.Len()
		}
		from := &l.loop.sessions
		switch b.takeSession(toPort, int64(ofClient), len(l.listener.sockets)) {
		case notFull:
			return
		case clientFull:
			from = own
		case portFull:
			from = &l.order
		}
		limitErrors.Do(func() {
			l.front.proxy.Log.WithFields(map[string]any{"service": l.front.id().String(), "open": b.sessions.Load(), "limit": b.sessionLimit(), "limit-per-port": b.sessionLimitPerPort()}).
				Error("Too many UDP sessions: those that have been idle longest end (logged every 10 s at the most)")
		})
		if from == nil || !evictOldest(from, nil) {
			b.sessions.Add(1)
			return
		}
		toPort = l.front.sessions.Load()
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
	before := make([]*udpSession, 0, l.order.Len())
	for e := l.order.Front(); e != nil; e = e.Next() {
		before = append(before, e.Value.(*udpSession))
	}
	for _, s := range before {
		if s.fd >= 0 { // one that goes on to another endpoint may have ended others for want of room
			s.compare(v, usable)
		}
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
	l.loop.leave(s)
	l.front.sessions.Add(-1)
	l.front.proxy.budget.sessions.Add(-1)
	if len(l.sessions) == 0 && l.peak > keepMap {
		// A Go map does not shrink.
		l.sessions, l.peak = map[sessionKey]*udpSession{}, 0
	}
}

// keepMap is the size up to which an empty map is kept.
const keepMap = 256
