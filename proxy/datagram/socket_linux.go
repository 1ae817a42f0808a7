package datagram

import (
	"container/list"
	"context"
	"maps"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"

	"github.com/usherproxy/usher/proxy/balance"
	"github.com/usherproxy/usher/proxy/budget"
	"github.com/usherproxy/usher/proxy/conn"
	"github.com/usherproxy/usher/proxy/forward"
	"github.com/usherproxy/usher/proxy/frontend"
	"github.com/usherproxy/usher/proxy/outcome"
)

// socket is a listener's socket, with the sessions of its clients. It belongs to its loop.
type socket struct {
	listener  *listener
	front     *frontend.FrontEnd
	loop      *loop
	fd        int
	watched   forward.Registration
	burstSize burstSize
	room      int // maximum number of datagrams per turn

	view     *frontend.View // the latest view; stale sessions have not been compared with it yet
	sessions map[sessionKey]*session
	order    list.List // *session; longest idle first
	ported   list.List // those that occupy a port of this node: see session.takePort
	// The sessions that no endpoint has answered, in the same order.
	unanswered list.List
	// The same sessions by the endpoint that they wait for, except those that abandon has removed.
	waiting map[*balance.State]*list.List
	// Idle timeouts: of all sessions, and of unanswered ones, which is at most as long.
	idle, unansweredIdle time.Duration
	peak                 int // maximum number of sessions since the map was made
	expiry               *time.Timer
	ticking              bool   // expiry will call expire
	lost                 uint32 // datagrams that the kernel dropped before they were received
	// inherited is set until a socket from a predecessor receives its first datagrams. The kernel's count then includes
	// the predecessor's, so it is stored in lost, and not reported.
	inherited bool
	deaf      bool        // not watched
	retry     *time.Timer // will call openAgain; nil for none
	closed    bool
	lent      bool // another loop may send with it

	// Once a successor has the socket: the function that closes it, and the number of clients that wait for a reply.
	// See retire.
	retired func()
	awaited int
}

// sessionKey is a client, and the address of this node that its datagrams arrive at. Replies must come from that
// address.
type sessionKey struct {
	peer  forward.Peer
	local netip.Addr
}

// arrival is the metadata of a datagram from a client.
type arrival struct {
	sessionKey
	link, hops int // see forward.Control
}

func newSocket(l *listener, lp *loop, fd int) *socket {
	sk := &socket{listener: l, front: l.front, loop: lp, fd: fd, room: batchSize, deaf: true, sessions: map[sessionKey]*session{}, waiting: map[*balance.State]*list.List{}}
	sk.expiry = time.AfterFunc(time.Hour, func() { _ = lp.poller.Do(sk.expire) })
	sk.expiry.Stop()
	return sk
}

// retryOpen is the interval between attempts to watch a socket. stopReceiving ends these attempts.
const retryOpen = time.Second

func (sk *socket) openAgain() {
	if sk.retry != nil {
		sk.retry = nil
		sk.open()
	}
}

// open starts receiving.
func (sk *socket) open() {
	if sk.closed || !sk.deaf {
		return
	}
	sk.refresh()
	watched, err := sk.loop.poller.Add(sk.fd, forward.Readable, sk)
	if err != nil { // the kernel is out of memory, or this user's limit of watches is reached: see epoll_ctl(2)
		sk.front.LimitLog.Do(func() {
			sk.front.Log.WithField("service", sk.front.ID().String()).WithError(err).Error("Cannot receive on a UDP listener; trying again (logged at most every 10 s)")
		})
		// Do fails only if the loop has ended.
		sk.retry = time.AfterFunc(retryOpen, func() { _ = sk.loop.poller.Do(sk.openAgain) })
		return
	}
	sk.watched, sk.deaf = watched, false
}

// close ends the sessions, sessionsPerTurn in a turn, and closes the socket. Then it calls done.
func (sk *socket) close(end outcome.Outcome, done func()) {
	if sk.closed {
		done()
		return
	}
	if sk.loop.outFrom == sk {
		sk.loop.flush()
	}
	sk.stopReceiving()
	for n := 0; sk.order.Len() > 0; n++ {
		if n == sessionsPerTurn && sk.loop.poller.Do(func() { sk.close(end, done) }) == nil {
			return
		}
		s := sk.order.Front().Value.(*session)
		if s.lingering || s.stale && !stays(sk.view.Endpoint(s.Endpoint.State)) {
			s.end(outcome.Result{Outcome: outcome.EndpointRemoved}) // its endpoint was removed earlier
			continue
		}
		s.end(outcome.Result{Outcome: end})
	}
	sk.expiry.Stop()
	sk.closed = true
	sk.whenUnused(func() {
		unix.Close(sk.fd)
		done()
	})
}

// sessionsPerTurn limits the sessions that end, or move to another endpoint, before the loop serves others: each takes
// several system calls.
const sessionsPerTurn = 64

// inTurns calls f for the sessions, sessionsPerTurn in a turn, except for those that have ended by then.
func (sk *socket) inTurns(sessions []*session, f func(*session)) {
	n := min(len(sessions), sessionsPerTurn)
	for _, s := range sessions[:n] {
		if s.fd >= 0 { // one that moves to another endpoint may have evicted others
			f(s)
		}
	}
	if n < len(sessions) {
		_ = sk.loop.poller.Do(func() { sk.inTurns(sessions[n:], f) }) // the loop runs as long as there are sessions
	}
}

// stopReceiving removes the socket from the loop. Closing it would not do that while another process has it too.
func (sk *socket) stopReceiving() {
	sk.retry = nil
	if !sk.deaf {
		sk.deaf = true
		sk.loop.poller.Remove(sk.watched)
	}
}

// Ready receives what clients have sent.
func (sk *socket) Ready(forward.Readiness) {
	b, arrivals := sk.loop.in, sk.loop.arrivals
	n, err := b.Receive(sk.fd, 0, sk.burstSize.expect(sk.loop, sk.room))
	sk.burstSize.record(sk.loop, n)
	if err != nil || n == 0 {
		// The other process of a handover has read the datagram, or there was an error, which reading has cleared.
		return
	}
	sk.refresh()
	for i := range n {
		control := b.Control(i)
		arrivals[i] = arrival{sessionKey{peer: *b.Peer(i), local: control.Local}, control.Interface, control.Hops}
		if sk.inherited {
			sk.lost, sk.inherited = control.Lost, false
		}
		if control.Lost != sk.lost {
			sk.front.Counters.Drop(frontend.DropReceiveBuffer, int(control.Lost-sk.lost))
			sk.lost = control.Lost
		}
	}
	newcomers := 0
	for i := 0; i < n; {
		run := 1
		for i+run < n && arrivals[i+run].sessionKey == arrivals[i].sessionKey {
			run++
		}
		if sk.pass(i, run) {
			newcomers++
		}
		i += run
	}
	if sk.room = min(2*sk.room, batchSize); newcomers > newcomersPerTurn {
		sk.room = newcomersPerTurn
	}
}

// If more than newcomersPerTurn clients were new in a turn, the next turn receives at most this many datagrams.
// Beginning a session takes as long as forwarding dozens of datagrams, and meanwhile all other sockets of the loop
// wait.
const newcomersPerTurn = 2

// pass forwards a run of datagrams of one client, and reports whether it had to begin a session, even if that failed.
func (sk *socket) pass(at, count int) (newcomer bool) {
	first := &sk.loop.arrivals[at]
	s := sk.sessions[first.sessionKey]
	if s != nil && s.stale {
		s.compare()
		s = sk.sessions[first.sessionKey]
	}
	if s != nil {
		done := s.send(at, count)
		if done == count {
			return false
		}
		// The session has ended because its endpoint is unreachable. The rest was not sent.
		at, count = at+done, count-done
	}
	if s = sk.begin(first, count); s != nil {
		s.send(at, count)
	}
	return true
}

// begin begins a session with the client that sent count datagrams, starting with first. It returns nil if there can be
// no session.
func (sk *socket) begin(first *arrival, count int) *session {
	f := sk.front
	s := &session{
		Conn:   frontend.Conn{Record: &conn.Record{Port: sk.view.Clients, From: first.peer.AddrPort(), To: sk.listener.At, Start: sk.loop.clock()}, Front: f},
		socket: sk, key: first.sessionKey, hops: int16(first.hops - 1), fd: -1,
	}
	if first.local.IsValid() {
		s.To = netip.AddrPortFrom(first.local.Unmap(), s.To.Port())
		s.control = forward.SourceControl(first.local, first.link)
	}
	if r, drop := s.admit(); r.Outcome != outcome.Open {
		f.Counters.Drop(drop, count)
		if drop == frontend.DropUnknownDestination {
			destinationErrors.Do(func() {
				f.Log.WithField("service", f.ID().String()).WithError(r.Err).
					Error("UDP clients are not served: cannot determine whether they came through the portal (logged at most every 10 s)")
			})
		}
		if sk.loop.refusals.Allow() {
			s.ID = f.NewID()
			s.Accepted()
			s.Closed(sk.loop.clock(), r, netip.AddrPort{})
		}
		return nil
	}
	s.last = s.Start
	sk.enter(s)
	s.search = &unanswered{Connecting: s.Connect(context.Background(), s), inSocket: sk.unanswered.PushBack(s)}
	if s.search.Next(s.Start); s.fd < 0 {
		f.Counters.Drop(frontend.DropNoEndpoint, count)
		return nil
	}
	return s
}

// enter registers s, which is admitted.
func (sk *socket) enter(s *session) {
	s.ID = sk.front.NewID()
	s.Accepted()
	sk.front.Trace.Moves(s.Record, s)
	sk.makeRoom(s.From.Addr())
	sk.sessions[s.key] = s
	sk.peak = max(sk.peak, len(sk.sessions))
	s.inSocket, s.inLoop = sk.order.PushBack(s), sk.loop.sessions.PushBack(s)
	sk.loop.join(s)
	s.updateHeader(sk.view)
	sk.tick()
}

var destinationErrors = rate.Sometimes{First: 1, Interval: 10 * time.Second}

// makeRoom counts one more session of client. If a limit is reached, it evicts the longest idle session. It looks among
// the client's sessions if the client's share is used up, in this socket if the service port's limit is reached, and
// otherwise in this loop. If there is none to evict, the new session exceeds the limit, so each socket can have one.
func (sk *socket) makeRoom(client netip.Addr) {
	b := sk.front.Budget
	toPort := sk.front.Sessions.Add(1)
	clients := &sk.loop.server.clients
	ofClient := clients.Add(client, 1)
	for {
		from := &sk.loop.sessions
		switch b.TakeSession(toPort, ofClient) {
		case budget.NoLimit:
			return
		case budget.ClientLimit:
			from = sk.loop.clients[client]
		case budget.PortLimit:
			from = &sk.order
		}
		sk.front.LimitLog.Do(func() {
			sk.front.Log.WithFields(map[string]any{"service": sk.front.ID().String(), "open": b.Sessions.Load(), "limit": b.SessionLimit(), "limitPerPort": b.SessionLimitPerPort()}).
				Error("Too many UDP sessions; ending the longest idle ones (logged at most every 10 s)")
		})
		if from == nil || !evictOldest(from, nil) {
			b.Sessions.Add(1)
			return
		}
		toPort, ofClient = sk.front.Sessions.Load(), clients.Add(client, 0)
	}
}

// refresh compares the sessions with the front end's configuration if that has changed. A session that may no longer
// use its endpoint ends, moves or lingers (see compare) soon, and before its next datagram.
func (sk *socket) refresh() {
	v := sk.front.View()
	if v == sk.view || sk.closed {
		return
	}
	sk.view = v
	maps.DeleteFunc(sk.waiting, func(_ *balance.State, l *list.List) bool { return l.Len() == 0 }) // the endpoint may be gone
	sk.idle = v.Port.UDPIdleTimeout
	sk.unansweredIdle = min(sk.idle, v.Port.UnansweredTimeout)
	if sk.order.Len() == 0 {
		sk.expiry.Stop() // it may be set to a longer timeout
		sk.ticking = false
		return
	}
	before := make([]*session, 0, sk.order.Len())
	for e := sk.order.Front(); e != nil; e = e.Next() {
		s := e.Value.(*session)
		s.stale = true
		before = append(before, s)
	}
	sk.inTurns(before, func(s *session) {
		if s.stale {
			s.compare()
		}
	})
	sk.expire()
}

// abandon is called when an endpoint, whose state is refused, has refused a client. Other sessions that wait for the
// first answer of this endpoint move to other endpoints. Most of their clients get no ICMP error, since hosts limit
// these errors. (Linux sends an address six in a burst, then one per second: see icmp_ratelimit, icmp(7).)
//
// It removes these sessions from waiting, and also those that have been idle for too long to move. So a refusal costs
// no time for sessions that an earlier one has handled.
func (sk *socket) abandon(refused *balance.State) {
	waiting := sk.waiting[refused]
	if waiting == nil {
		return
	}
	delete(sk.waiting, refused)
	now := sk.loop.clock()
	var moving []*session
	for e := waiting.Back(); e != nil; e = e.Prev() {
		s := e.Value.(*session)
		s.search.inWaiting = nil
		if now.Sub(s.last) <= keptTime {
			moving = append(moving, s)
		}
	}
	sk.inTurns(moving, func(s *session) {
		if s.search != nil && s.Endpoint.State == refused { // it has not moved meanwhile
			s.tryAnother(errRefusedOther)
		}
	})
}

// expire ends the sessions that are idle for too long.
func (sk *socket) expire() {
	sk.ticking = false
	if sk.closed {
		return
	}
	now := sk.loop.clock()
	for n := 0; ; n++ {
		s, left := sk.nextIdle(now)
		if s == nil || left > 0 {
			break
		}
		if s.catchUp() {
			continue
		}
		if n >= sessionsPerTurn {
			_ = sk.loop.poller.Do(sk.expire) // the loop runs as long as there are sessions
			return
		}
		s.end(outcome.Result{Outcome: outcome.Idle})
	}
	sk.tick()
}

// tick schedules expire for the earliest time at which a session can reach its idle timeout. It waits for at most
// unansweredIdle, since a session that begins meanwhile may reach that timeout first.
func (sk *socket) tick() {
	if sk.ticking {
		return
	}
	if s, left := sk.nextIdle(sk.loop.clock()); s != nil {
		sk.ticking = true
		sk.expiry.Reset(max(min(left, sk.unansweredIdle), time.Millisecond))
	}
}

// nextIdle returns the session that reaches its idle timeout first, and the time until then; nil if there is none.
func (sk *socket) nextIdle(now time.Time) (next *session, left time.Duration) {
	if e := sk.order.Front(); e != nil {
		next = e.Value.(*session)
		left = sk.idle - now.Sub(next.last)
	}
	if e := sk.unanswered.Front(); e != nil {
		s := e.Value.(*session)
		if earlier := sk.unansweredIdle - now.Sub(s.last); earlier < left {
			next, left = s, earlier
		}
	}
	return next, left
}

// forget unregisters s.
func (sk *socket) forget(s *session) {
	if sk.sessions[s.key] == s {
		delete(sk.sessions, s.key)
	}
	sk.order.Remove(s.inSocket)
	sk.loop.sessions.Remove(s.inLoop)
	sk.loop.leave(s)
	sk.front.Sessions.Add(-1)
	sk.front.Budget.Sessions.Add(-1)
	if len(sk.sessions) == 0 && sk.peak > keepMap {
		// A Go map does not shrink.
		sk.sessions, sk.peak = map[sessionKey]*session{}, 0
	}
}

// keepMap is the largest peak size of a map that is kept when it is empty. A larger map is replaced.
const keepMap = 256
