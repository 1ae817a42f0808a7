package datagram

import (
	"container/list"
	"errors"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/proxy/balance"
	"github.com/usherproxy/usher/proxy/budget"
	"github.com/usherproxy/usher/proxy/forward"
	"github.com/usherproxy/usher/proxy/frontend"
	"github.com/usherproxy/usher/proxy/outcome"
	"github.com/usherproxy/usher/proxy/search"
)

// session is one client's session. It ends when it is idle, evicted or no longer allowed, or when it loses its
// endpoint. Until an endpoint has answered, it instead moves to another one, if there is one. It belongs to its loop.
type session struct {
	frontend.Conn
	socket  *socket
	key     sessionKey
	control []byte    // makes replies come from the address that the client sent to
	header  []byte    // prefix of each datagram to the endpoint
	last    time.Time // time of the last datagram in either direction; while lent, up to date only after catchUp

	fd                   int // connected to the endpoint; -1 if there is none
	watched              forward.Registration
	burstSize            burstSize
	search               *unanswered  // nil once an endpoint has answered, and in inherited sessions
	lent                 *replies     // reads the endpoint's replies on another loop, if not nil
	replies              int          // number that the session itself has read
	mute                 bool         // inherited, and its endpoint has never answered
	toEndpoint, toClient atomic.Int64 // bytes

	hops      int16  // hop limit for its datagrams; -1 if unknown
	handover  uint32 // number of its last handover: see Server.Sessions
	inherited bool   // from a predecessor, which may still have a copy of fd
	unreplied bool   // the client has sent a datagram since the last reply; may be stale: call waits
	lingering bool   // see linger
	stale     bool   // to be compared with the socket's view

	inSocket, inLoop, inClient *list.Element // its elements in the lists
	portInSocket, portInLoop   *list.Element // its elements in the ported lists; nil if it is in none
	siblings                   *list.List    // the client's sessions on this loop
}

// unanswered is the state of a session until an endpoint has answered.
type unanswered struct {
	frontend.Connecting
	kept
	inSocket  *list.Element // in socket.unanswered
	waiting   *list.List    // one of socket.waiting
	inWaiting *list.Element // in waiting; nil if abandon has removed it
}

// admit determines which VIP the client sent to, and whether the client is allowed.
func (s *session) admit() (outcome.Result, frontend.Drop) {
	sk := s.socket
	if sk.listener.Redirected {
		original, err := sk.loop.flows.OriginalDst(portal.UDP, s.From, s.To)
		switch {
		case errors.Is(err, portal.ErrNotRedirected):
			return frontend.BypassedPortal, frontend.DropNotAdmitted
		case err != nil:
			return outcome.Result{Outcome: outcome.Internal, Err: err}, frontend.DropUnknownDestination
		}
		s.To = original
	}
	if _, r := s.Admit(sk.view, &sk.listener.Place); r.Outcome != outcome.Open {
		return r, frontend.DropNotAdmitted
	}
	if s.hops == 0 {
		return outcome.Result{Outcome: outcome.Limit, Err: errHops}, frontend.DropHopLimit
	}
	return outcome.Result{}, 0
}

// updateHeader sets or clears the header that names the client to the endpoint, as v requires.
func (s *session) updateHeader(v *frontend.View) {
	if hasHeader := s.header != nil; hasHeader != (v.Port.ProxyProtocol != 0) {
		s.header = s.Header(v)
	}
}

// errHops is the reason why a datagram is not forwarded. usher decrements the hop limit, as a router does. Otherwise
// nodes whose endpoints are node ports of each other would forward a datagram without end.
var errHops = errors.New("hop limit exhausted: possible loop between nodes")

// Dial implements frontend.Runner: it opens a socket that is connected to the Endpoint, and sends it the kept
// datagrams. The Endpoint has answered when a datagram from it arrives.
func (s *session) Dial(_ *frontend.View, from netip.AddrPort, _ bool, _ time.Duration) {
	s.closeSocket() // to the previous endpoint
	s.register()
	lp := s.socket.loop
	err := s.open(from)
	if err != nil && search.OutOfResources(err) && evictOldest(&lp.sessions, s) {
		err = s.open(from)
	}
	if err == nil && s.search.count > 0 {
		err = s.sendAgain()
	}
	switch {
	case err == nil:
	case unreachable(err) || search.OutOfResources(err):
		s.search.Done(lp.clock(), err)
	default:
		s.search.Abandon(lp.clock(), err)
	}
}

// open opens a socket that is connected to the Endpoint. If from is valid, it is the socket's source address.
func (s *session) open(from netip.AddrPort) error {
	if !from.IsValid() {
		s.takePort()
	}
	to := s.Endpoint.Addr
	fd, err := forward.ConnectUDP(s.Front.Portal.Mark(), from, to)
	if err == nil {
		if s.hops > 0 {
			_ = forward.SetHops(fd, to.Addr(), int(s.hops)) // on error, a looping datagram gets the full limit again
		}
		if s.watched, err = s.socket.loop.poller.Add(fd, forward.Readable, s); err == nil {
			s.fd = fd
			return nil
		}
		unix.Close(fd)
		err = unix.ENOMEM // memory or the user's limit of watches is used up, see epoll_ctl(2): Dial evicts a session
	}
	s.givePort()
	return err
}

// Wait implements frontend.Runner. It is never called: a search for UDP has no time slots, and UDP endpoints have no
// connection limit.
func (s *session) Wait(*frontend.View, search.Step) {
	s.Refuse(outcome.Result{Outcome: outcome.Internal, Err: errors.ErrUnsupported})
}

// Connected implements frontend.Runner: from now on the session stays with its endpoint.
func (s *session) Connected() {
	s.EndpointFirstByte(s.socket.loop.clock())
	s.stopSearching()
}

// Refuse implements frontend.Runner.
func (s *session) Refuse(r outcome.Result) {
	s.Endpoint = nil // the last one has failed
	s.end(r)
}

// takePort counts one more session that occupies a port of this node. If a limit is reached, it evicts the longest idle
// session that occupies one. It looks in this socket if the limit is the service port's, otherwise in this loop. If
// there is none, it exceeds the limit.
func (s *session) takePort() {
	b, sk := s.Front.Budget, s.socket
	for toPort := s.Front.SessionPorts.Add(1); ; toPort = s.Front.SessionPorts.Load() {
		limit, from := b.TakePort(toPort), &sk.loop.ported
		if limit == budget.NoLimit {
			break
		}
		if limit == budget.PortLimit {
			from = &sk.ported
		}
		if !evictOldest(from, s) {
			b.Ports.Add(1)
			break
		}
	}
	s.portInSocket, s.portInLoop = sk.ported.PushBack(s), sk.loop.ported.PushBack(s)
}

// givePort undoes takePort, if the session occupies a port.
func (s *session) givePort() {
	if s.portInSocket != nil {
		s.socket.ported.Remove(s.portInSocket)
		s.socket.loop.ported.Remove(s.portInLoop)
		s.portInSocket, s.portInLoop = nil, nil
		s.Front.SessionPorts.Add(-1)
		s.Front.Budget.Ports.Add(-1)
	}
}

// closeSocket closes the socket to the endpoint, if there is one.
func (s *session) closeSocket() {
	if s.fd < 0 {
		return
	}
	s.givePort()
	if shared := s.handover != 0 || s.inherited; s.lent != nil {
		s.closeLent(shared)
	} else {
		s.socket.loop.close(s.fd, s.watched, shared)
	}
	s.fd = -1
}

// close closes a watched socket. A shared one, of which another process may have a copy, is removed from epoll first:
// closing alone would leave it there.
func (lp *loop) close(fd int, watched forward.Registration, shared bool) {
	if !shared {
		lp.poller.CloseFD(watched)
		return
	}
	lp.poller.Remove(watched)
	unix.Close(fd)
}

// send forwards count datagrams of the loop's batch to the endpoint, and returns how many it has handled. That is less
// than count only if the endpoint refuses, and the session has ended because it cannot move to another one: see broken.
func (s *session) send(at, count int) int {
	b, c := s.socket.loop.in, &s.Front.Counters
	s.touch()
	s.unreplied = true
	if s.search != nil {
		s.search.keep(s.socket.loop, s.last, at, count)
	}
	for i := at; i < at+count; i++ {
		b.Unaddress(i)
		if s.header != nil {
			b.Prepend(i, s.header)
		}
	}
	done, passed, again := 0, 0, false
	defer func() { c.DatagramsToEndpoint.Add(int64(passed)) }()
	for done < count {
		n, err := b.Send(s.fd, at+done, count-done)
		for i := range n {
			s.toEndpoint.Add(int64(len(b.Data(at+done+i)) - len(s.header)))
		}
		done += n
		passed += n
		if err != nil {
			err = s.icmpError(s.fd, err, again)
		}
		switch {
		case err == nil:
		case unreachable(err):
			if s.search == nil {
				for i := at + done; i < at+count; i++ {
					b.Strip(i, len(s.header))
				}
				s.broken(err)
				return done
			}
			s.failed(err)
			if unsent := count - done; s.fd < 0 {
				c.Drop(frontend.DropNoEndpoint, unsent-1) // s.failed has counted one of them
			} else {
				// The last maxKept were kept, if maxKeptBytes allowed it, and sent to the next endpoint.
				c.Drop(frontend.DropNoEndpoint, max(0, unsent-maxKept))
			}
			return count
		case err == unix.ENOBUFS: // of the network interface
			c.Drop(frontend.DropSendBuffer, 1)
			done++
		case err == unix.EAGAIN:
			c.Drop(frontend.DropSendBuffer, count-done)
			return count
		case !again:
			again = true // the error may result from an earlier datagram: see udp(7)
		default:
			c.Drop(notSent(err), 1)
			done++
			again = false
		}
	}
	return done
}

// icmpError returns the error to act on after err, from a read or a send on fd, the session's socket. It empties the
// socket's error queue. If the queue holds an ICMP error, it returns that one: an earlier call may have consumed the
// pending error. It replaces ICMP errors that do not prove a fault of the endpoint by ETIME. The client may have sent a
// datagram with a low hop limit, or in fragments of which some were lost. An endpoint that has answered may be
// reachable again soon. If the queue does not show the sender of an error, because another loop emptied it or it was
// full, only an error that occurs again counts.
func (s *session) icmpError(fd int, err error, again bool) error {
	last, kind := forward.TakeErrors(fd)
	if kind != forward.ICMPNone {
		err = last
	}
	responded := s.search == nil && !s.mute
	switch {
	case kind == forward.ICMPNone && responded && !again && unreachable(err),
		kind == forward.ICMPFragments,
		kind == forward.ICMPHops && (responded || s.hops > 0 && s.hops < ampleHops),
		kind == forward.ICMPSoft && responded:
		return unix.ETIME
	}
	return err
}

// ampleHops is a hop limit that reaches any endpoint, unless packets loop. A lower one may be the client's fault.
const ampleHops = 32

// unreachable reports whether err, an ICMP error or one of connect(2), means that the endpoint is unreachable (see
// icmp_err_convert in the kernel's net/ipv4/icmp.c). No other error is the endpoint's fault. A datagram may be too big
// for a link (EMSGSIZE), or a firewall or full conntrack table of this node may block it (EPERM).
func unreachable(err error) bool {
	switch err {
	case unix.ECONNREFUSED, unix.EHOSTUNREACH, unix.ENETUNREACH, unix.EHOSTDOWN, unix.ENONET, unix.ENOPROTOOPT, unix.EACCES:
		return true
	}
	return false
}

// notSent returns the Drop to count for a datagram lost because of err, which is not an unreachable error.
func notSent(err error) frontend.Drop {
	if err == unix.EMSGSIZE {
		return frontend.DropTooBig
	}
	return frontend.DropNotSent
}

// Ready receives the endpoint's datagrams or an ICMP error. Replies are sent at the end of the round, so that those to
// many clients go out together.
func (s *session) Ready(forward.Readiness) {
	sk := s.socket
	if sk.refresh(); s.stale && s.fd >= 0 {
		s.compare()
	}
	if s.fd < 0 {
		return // the session has ended
	}
	n, bytes, err := sk.loop.reply(s, s.fd, &s.burstSize)
	if err != nil {
		s.failed(err)
		return
	}
	if n == 0 {
		return
	}
	switch {
	case s.search != nil:
		s.search.Done(sk.loop.clock(), nil)
	case s.mute:
		s.mute = false
		s.inheritedAnswered()
	}
	s.touch()
	if s.unreplied {
		s.unreplied = false
		sk.replied()
	}
	s.toClient.Add(bytes)
	if s.replies += n; s.replies >= busyAfter && s.replies-n < busyAfter {
		s.lend()
	}
}

// reply receives replies to s from fd, and queues them for the end of the round. It returns their number and bytes, or
// an error if that means that the endpoint is unreachable.
func (lp *loop) reply(s *session, fd int, c *burstSize) (n int, bytes int64, err error) {
	if lp.outFrom != s.socket || lp.outCount == batchSize {
		lp.flush()
		lp.outFrom = s.socket
	}
	room := c.expect(lp, min(batchSize-lp.outCount, repliesPerTurn))
	n, err = lp.out.ReceiveConnected(fd, lp.outCount, room)
	if err != nil {
		err = s.icmpError(fd, err, false)
	}
	if err != nil && err != unix.EAGAIN {
		// The kernel returns the error first, then the datagrams that it received before. If there are any, the
		// endpoint is not treated as unreachable.
		var second error
		n, second = lp.out.ReceiveConnected(fd, lp.outCount, room)
		switch {
		case !unreachable(err):
			s.Front.Counters.Drop(notSent(err), 1)
		case second != nil:
			return 0, 0, err
		}
	}
	c.record(lp, n)
	for i := lp.outCount; i < lp.outCount+n; i++ {
		lp.out.Address(i, &s.key.peer, s.control)
		bytes += int64(len(lp.out.Data(i)))
	}
	lp.outCount += n
	return n, bytes, nil
}

// repliesPerTurn limits the replies that one session forwards before other sessions get a turn.
const repliesPerTurn = 8

// touch records that the session is not idle.
func (s *session) touch() {
	sk := s.socket
	s.last = sk.loop.clock()
	sk.order.MoveToBack(s.inSocket)
	if s.search != nil {
		sk.unanswered.MoveToBack(s.search.inSocket)
		if s.search.inWaiting == nil {
			s.register()
		}
	}
	sk.loop.sessions.MoveToBack(s.inLoop)
	if s.portInSocket != nil {
		sk.ported.MoveToBack(s.portInSocket)
		sk.loop.ported.MoveToBack(s.portInLoop)
	}
	s.siblings.MoveToBack(s.inClient)
}

// register moves s to the sessions that wait for its present endpoint.
func (s *session) register() {
	u, lists := s.search, s.socket.waiting
	if u.inWaiting != nil {
		u.waiting.Remove(u.inWaiting)
	}
	u.waiting = lists[s.Endpoint.State]
	if u.waiting == nil {
		u.waiting = new(list.List)
		lists[s.Endpoint.State] = u.waiting
	}
	u.inWaiting = u.waiting.PushBack(s)
}

// stopSearching drops the state that is needed until an endpoint has answered.
func (s *session) stopSearching() {
	if u := s.search; u.inWaiting != nil {
		u.waiting.Remove(u.inWaiting)
	}
	s.search.drop(s.socket.loop)
	s.socket.unanswered.Remove(s.search.inSocket)
	s.search = nil
}

// broken ends a session that cannot move to another endpoint: its endpoint had answered, or it is inherited. The
// client's next datagram starts a new session.
func (s *session) broken(err error) {
	now := s.socket.loop.clock()
	err = search.Plain(err)
	s.Endpoint.Report(balance.Report{Kind: balance.ConnectFailed, Start: now, Now: now, Err: err}, s.Front.Policy(portal.Origin{}, s.Endpoint.Endpoint))
	s.Front.Affinity.Forget(s.From.Addr(), s.Endpoint.Addr)
	s.end(outcome.Result{Outcome: outcome.EndpointReset, Err: err})
}

// failed is called when the endpoint refuses.
func (s *session) failed(err error) {
	if s.search == nil {
		s.broken(err)
		return
	}
	refused := s.Endpoint.State
	s.search.Done(s.socket.loop.clock(), err)
	s.countIfUnsent()
	s.socket.abandon(refused)
}

// Reasons why a session moves to another endpoint although its endpoint has not refused it.
var (
	errRefusedOther = errors.New("the endpoint refused another client")
	errLeft         = errors.New("the endpoint was removed or became not ready before it answered")
)

// tryAnother moves the session away from an endpoint that has not answered, without reporting a failure. The endpoint
// was removed or is not ready, or its refusal of another client has been reported.
func (s *session) tryAnother(why error) {
	s.search.Abandon(s.socket.loop.clock(), why)
	s.countIfUnsent()
}

// countIfUnsent counts one dropped datagram if the session has found no other endpoint.
func (s *session) countIfUnsent() {
	if s.fd < 0 {
		s.Front.Counters.Drop(frontend.DropNoEndpoint, 1)
	}
}

// sendAgain sends the kept datagrams to the session's new endpoint.
func (s *session) sendAgain() error {
	c := &s.Front.Counters
	for data := range s.search.all(s.socket.loop.clock()) {
		sent := data
		if s.header != nil {
			sent = slices.Concat(s.header, data)
		}
		err := unix.Send(s.fd, sent, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		if err != nil {
			err = s.icmpError(s.fd, err, false)
		}
		switch {
		case err == nil:
			s.toEndpoint.Add(int64(len(data)))
			c.DatagramsToEndpoint.Add(1)
		case unreachable(err):
			return err
		case bufferFull(err):
			c.Drop(frontend.DropSendBuffer, 1)
		default:
			c.Drop(notSent(err), 1)
		}
	}
	return nil
}

// stays reports whether a session may stay with e: it is ready, or terminating and still serves. New sessions use the
// latter only if none is ready. A session does not move because of traffic policies or hints. e is nil if the endpoint
// was removed.
func stays(e *balance.Endpoint) bool {
	return e != nil && (e.Ready || e.Terminating && e.Serving)
}

// compare ends or moves the session if the socket's view no longer allows it.
func (s *session) compare() {
	v := s.socket.view
	if s.stale = false; s.lingering {
		return
	}
	vip, ok := v.VIPAt(s.VIP.AddrPort())
	switch {
	case !ok:
		s.end(outcome.Result{Outcome: outcome.VIPRemoved})
		return
	case !s.Allowed(vip):
		s.end(frontend.SourceDenied)
		return
	}
	s.VIP = vip
	s.updateHeader(v)
	if stays(v.Endpoint(s.Endpoint.State)) {
		s.Endpoint = s.Endpoint.Own()
		return
	}
	if s.search != nil && s.Endpoints(v).Len() > 0 {
		s.tryAnother(errLeft) // another endpoint may answer the client's datagrams
		return
	}
	if s.waits() && s.search == nil {
		s.linger()
		return
	}
	s.end(outcome.Result{Outcome: outcome.EndpointRemoved})
}

// waits reports whether the client waits for a reply.
func (s *session) waits() bool {
	if !s.lastReply().Before(s.last) {
		s.unreplied = false
	}
	return s.unreplied
}

// lingerTime is how long a removed endpoint may still answer earlier datagrams.
const lingerTime = 500 * time.Millisecond

// linger detaches the session from its client, whose next datagram starts a new session, but still forwards the replies
// that are under way.
func (s *session) linger() {
	sk := s.socket
	delete(sk.sessions, s.key)
	s.lingering = true
	end := func() {
		if s.fd >= 0 {
			s.end(outcome.Result{Outcome: outcome.EndpointRemoved})
		}
	}
	time.AfterFunc(lingerTime, func() { _ = sk.loop.poller.Do(end) })
}

// Bytes implements conn.Mover.
func (s *session) Bytes() (toEndpoint, toClient int64) { return s.toEndpoint.Load(), s.toClient.Load() }

// end ends the session with result r, in which it sets the byte counts. The client's next datagram starts a new
// session.
func (s *session) end(r outcome.Result) {
	now := s.socket.loop.clock()
	if s.search != nil {
		// Some protocols have no answers, so silence neither begins nor ends a quarantine.
		s.search.End(now, search.ErrNoAnswer)
		s.stopSearching()
	} else {
		s.Endpoint.Release()
	}
	r.ToEndpoint, r.ToClient = s.Bytes()
	var at netip.AddrPort
	if s.Endpoint != nil {
		at = s.Endpoint.Addr
		s.Endpoint.Moved(r.ToEndpoint, r.ToClient)
	}
	over := s.handover == 0 || s.socket.retired == nil // otherwise the successor continues the session
	if over {
		s.Front.Counters.Drop(frontend.DropReceiveBuffer, forward.Lost(s.fd)) // none without a socket
	}
	s.closeSocket()
	s.socket.forget(s)
	if s.unreplied {
		s.socket.replied()
	}
	if over {
		s.Closed(now, r, at)
	}
}
