package proxy

import (
	"container/list"
	"errors"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/proxy/balance"
	"github.com/usherproxy/usher/proxy/forward"
	"github.com/usherproxy/usher/proxy/trace"
)

// udpSession is one client's session, from its first datagram until it is idle
// or its endpoint is not to be used any more. It belongs to its loop.
type udpSession struct {
	id      uint64
	socket  *udpSocket
	key     sessionKey
	control []byte         // makes replies come from where the client sent to
	from    netip.AddrPort // the client
	to      netip.AddrPort // what it sent to
	vip     *config.VIP
	hops    int // that its datagrams may go on; -1 if that is not known
	began   time.Time
	life    *trace.Life // from the first event on
	last    time.Time   // a datagram, either way

	endpoint             *balance.Endpoint
	fd                   int // connected to the endpoint; -1 if none is
	watched              forward.Registration
	search               *udpSearch // nil once an endpoint has answered
	toEndpoint, toClient int64      // bytes

	asked   bool // the client has sent something since the last reply
	leaving bool // see linger

	inSocket, inLoop, inClient *list.Element // where it stands among the others
	siblings                   *list.List    // the client's sessions on this loop
}

// admit finds out which VIP the client sent to, and whether it may. It is the
// same as for a connection.
func (s *udpSession) admit() (trace.End, Drop, error) {
	l := s.socket
	if l.listener.redirected {
		original, err := l.loop.flows.OriginalDst(portal.UDP, s.from, s.to)
		switch {
		case errors.Is(err, portal.ErrNotRedirected):
			return trace.NotAdmitted, DropNotAdmitted, errDirect
		case err != nil:
			return trace.Internal, DropUnknownOrigin, err
		}
		s.to = original
	}
	var ok bool
	if s.vip, ok = l.listener.vipOf(l.view, s.to); !ok {
		return trace.NotAdmitted, DropNotAdmitted, errDirect
	}
	if s.hops == 0 {
		return trace.Limit, DropHopLimit, errHops
	}
	if !s.admitted(s.vip) {
		return trace.SourceRefused, DropNotAdmitted, errSource
	}
	return "", 0, nil
}

// admitted reports whether vip lets the client in.
func (s *udpSession) admitted(vip *config.VIP) bool {
	return s.socket.front.proxy.locality.admits(vip, s.from.Addr(), s.to.Addr())
}

// endpoints returns those that the client may have, with view v.
func (s *udpSession) endpoints(v *view) *balance.Set {
	local := s.vip.External() && s.socket.front.proxy.locality.ofThisNode(s.from.Addr(), s.to.Addr())
	return v.endpoints(s.vip, local)
}

// connect opens a socket to the endpoint that is next. If there is none, the
// session is over and it returns false.
func (s *udpSession) connect() bool {
	l := s.socket
	now := l.loop.clock()
	for {
		t, err := s.search.begin(s.endpoints(l.view), now)
		if err != nil {
			if s.search.attempts.count > 0 {
				err = errAllFailed
			}
			s.end(endOf(err), err)
			return false
		}
		s.search.now = t
		fd, err := s.dial(t.Endpoint.Addr)
		if err != nil && outOfResources(err) && evictOldest(&l.loop.sessions, s) {
			fd, err = s.dial(t.Endpoint.Addr)
		}
		if err == nil {
			if s.watched, err = l.loop.poller.Add(fd, forward.Readable, s); err == nil {
				s.fd, s.endpoint = fd, t.Endpoint
				s.endpoint.Active.Add(1)
				return true
			}
			unix.Close(fd)
			err = unix.ENOMEM // see epoll_ctl(2)
		}
		s.search.end(t, now, attemptError(err), unreachable(err) || errors.Is(err, errLeadsBack))
		if outOfResources(err) {
			s.end(trace.Limit, err)
			return false
		}
	}
}

// dial opens a socket that is connected to an endpoint.
func (s *udpSession) dial(to netip.AddrPort) (int, error) {
	p := s.socket.front.proxy
	if p.leadsBack(config.UDP, to) {
		return -1, errLeadsBack
	}
	fd, err := forward.ConnectUDP(p.Portal.Mark(), netip.Addr{}, to)
	if err == nil && s.hops > 0 {
		_ = forward.SetHops(fd, to.Addr(), s.hops) // or what comes back here has the whole limit again
	}
	return fd, err
}

// errHops is why a datagram is not sent on. usher takes one off the hop limit, as a
// router does: nodes whose endpoints are node ports of each other would send it round
// for ever.
var errHops = errors.New("its hop limit is used up: perhaps it goes round between nodes")

// disconnect closes the socket to the endpoint.
func (s *udpSession) disconnect() {
	if s.fd >= 0 {
		s.socket.loop.poller.CloseFD(s.watched)
		s.endpoint.Active.Add(-1)
		s.fd = -1
	}
}

// send passes on count datagrams of the loop's batch to the endpoint. It
// returns how many it is done with: not all if the endpoint had answered and
// now refuses. The session is over then.
func (s *udpSession) send(at, count int) int {
	b, c := s.socket.loop.in, &s.socket.front.proxy.counters
	s.touch()
	s.asked = true
	if s.search != nil {
		s.search.keep(s, at, count)
	}
	for i := at; i < at+count; i++ {
		b.Unaddress(i)
	}
	done, passed, again := 0, 0, false
	defer func() { c.datagramsToEndpoint.Add(int64(passed)) }()
	for done < count {
		n, err := b.Send(s.fd, at+done, count-done)
		for i := range n {
			s.toEndpoint += int64(len(b.Data(at + done + i)))
		}
		done += n
		passed += n
		switch {
		case err == nil:
		case unreachable(err):
			if s.search == nil {
				s.broken(err)
				return done
			}
			s.failed(err)
			return count
		case bufferFull(err):
			c.drop(DropSendBuffer, count-done)
			return count
		case !again:
			again = true // it may be what an earlier datagram has met: see udp(7)
		default:
			c.drop(notSent(err), 1)
			done++
			again = false
		}
	}
	return done
}

// unreachable reports whether err, an ICMP error, says that the endpoint cannot be
// reached (icmp_err_convert in the kernel's net/ipv4/icmp.c has those that a
// connected socket gets to see). Nothing else is the endpoint's fault: a datagram may
// be too big for a link (EMSGSIZE), and a firewall or a full conntrack table of this
// node may not let it out (EPERM).
func unreachable(err error) bool {
	switch err {
	case unix.ECONNREFUSED, unix.EHOSTUNREACH, unix.ENETUNREACH, unix.EHOSTDOWN, unix.ENONET, unix.ENOPROTOOPT, unix.EACCES:
		return true
	}
	return false
}

// notSent returns why a datagram is lost that met err, which does not say that the
// endpoint is unreachable.
func notSent(err error) Drop {
	if err == unix.EMSGSIZE {
		return DropTooBig
	}
	return DropNotSent
}

// Ready receives what the endpoint has sent, or the ICMP error that it was
// told. Replies wait for the end of the round, so that those to many clients
// are sent together.
func (s *udpSession) Ready(forward.Readiness) {
	l := s.socket
	loop := l.loop
	if l.refresh(); s.fd < 0 {
		return // its endpoint is not to be used any more
	}
	if loop.outFrom != l || loop.outCount == batchSize {
		loop.flush()
		loop.outFrom = l
	}
	room := min(batchSize-loop.outCount, repliesPerTurn)
	n, err := loop.out.ReceiveConnected(s.fd, loop.outCount, room)
	if err != nil && err != unix.EAGAIN {
		// The error comes first, what was received before it second.
		var none error
		n, none = loop.out.ReceiveConnected(s.fd, loop.outCount, room)
		switch {
		case !unreachable(err):
			l.front.proxy.counters.drop(notSent(err), 1)
		case none != nil:
			s.failed(err)
			return
		}
	}
	if n == 0 {
		return
	}
	if s.search != nil {
		s.answered()
	}
	s.touch()
	if s.asked {
		s.asked = false
		l.replied()
	}
	for i := loop.outCount; i < loop.outCount+n; i++ {
		loop.out.Address(i, &s.key.peer, s.control)
		s.toClient += int64(len(loop.out.Data(i)))
	}
	loop.outCount += n
}

// repliesPerTurn bounds how many replies one session sends before it is
// another's turn.
const repliesPerTurn = 8

// touch notes that the session is not idle.
func (s *udpSession) touch() {
	l := s.socket
	s.last = l.loop.clock()
	l.order.MoveToBack(s.inSocket)
	l.loop.sessions.MoveToBack(s.inLoop)
	s.siblings.MoveToBack(s.inClient)
}

// answered notes the first reply: from now on the session stays with its
// endpoint.
func (s *udpSession) answered() {
	now := s.socket.loop.clock()
	s.search.end(s.search.now, now, nil, false)
	s.event(trace.Event{Kind: trace.Established, Time: now, Endpoint: s.endpoint.Addr, Pod: s.endpoint.Pod})
	s.dropSearch()
}

// broken ends a session whose endpoint had answered and now refuses. The
// client's next datagram begins another.
func (s *udpSession) broken(err error) {
	f := s.socket.front
	now := s.socket.loop.clock()
	err = attemptError(err)
	s.endpoint.Fail(now, now, err, f.quarantine())
	f.affinity.Forget(s.from.Addr(), s.endpoint.Addr)
	s.end(trace.EndpointReset, err)
}

// usable returns the endpoints that a session may stay with: those that are
// ready, and those that are terminating but serve, which new sessions go to only
// where none is ready. A session does not move because of traffic policies or hints.
func (v *view) usable() map[*balance.State]bool {
	usable := make(map[*balance.State]bool, len(v.all))
	for _, e := range v.all {
		if e.Ready || e.Terminating && e.Serving {
			usable[e.State] = true
		}
	}
	return usable
}

// compare ends the session if, with v, it could not be as it is.
func (s *udpSession) compare(v *view, usable map[*balance.State]bool) {
	if s.leaving {
		return
	}
	vip, ok := v.vipAt(s.vip.AddrPort())
	switch {
	case !ok:
		s.end(trace.Withdrawn, nil)
		return
	case !s.admitted(vip):
		s.end(trace.SourceRefused, errSource)
		return
	}
	s.vip = vip
	if usable[s.endpoint.State] {
		return
	}
	if s.search != nil && s.endpoints(v).Len() > 0 {
		s.moveOn(errLeft, false) // what the client asked, another one may answer
		return
	}
	if s.asked && s.search == nil {
		s.linger()
		return
	}
	s.end(trace.EndpointLeft, nil)
}

// lingerTime is how long an endpoint that left may take to answer what it had
// been asked before.
const lingerTime = 500 * time.Millisecond

// linger takes the session away from its client, whose next datagram begins
// another, but lets the replies through that are under way.
func (s *udpSession) linger() {
	l := s.socket
	delete(l.sessions, s.key)
	s.leaving = true
	end := func() {
		if s.fd >= 0 {
			s.end(trace.EndpointLeft, nil)
		}
	}
	time.AfterFunc(lingerTime, func() { _ = l.loop.poller.Do(end) })
}

// end ends the session. Its client's next datagram begins another.
func (s *udpSession) end(end trace.End, err error) {
	now := s.socket.loop.clock()
	if s.search != nil {
		if s.fd >= 0 {
			// Silence may be the way of the protocol: it neither begins nor ends a
			// quarantine.
			s.search.end(s.search.now, now, errNoAnswer, false)
		}
		s.dropSearch()
	}
	e := trace.Event{End: end, ToEndpoint: s.toEndpoint, ToClient: s.toClient}
	if s.endpoint != nil {
		e.Endpoint, e.Pod = s.endpoint.Addr, s.endpoint.Pod
		s.endpoint.Moved(s.toEndpoint, s.toClient)
	}
	if err != nil {
		e.Err = err.Error()
	}
	s.disconnect()
	s.socket.forget(s)
	if s.asked {
		s.socket.replied()
	}
	s.closed(e)
}

func (s *udpSession) closed(e trace.Event) {
	e.Kind, e.Time = trace.Closed, s.socket.loop.clock()
	e.Took = e.Time.Sub(s.began)
	s.event(e)
}

// event puts e into the trace.
func (s *udpSession) event(e trace.Event) {
	f := s.socket.front
	if s.life == nil {
		s.life = f.begin(s.id, s.from, s.to, s.began)
	}
	f.step(s.life, &e)
}
