package forward

import (
	"bytes"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/usherproxy/usher/proxy/outcome"
)

// Pair is a client and an endpoint between which a Loop moves bytes: see [Loop.Forward]. It is a Flow. The owner embeds
// the Pair in its own state of the client, so that both need one allocation only.
type Pair struct{ pair }

// pair is the implementation of Pair. Only the loop may use its fields, except the byte counts and, for reading, loop.
// There may be very many idle pairs, so state that few pairs need is elsewhere.
type pair struct {
	loop   *Loop
	limits *Limits
	owner  Owner // nil once Ended was called, and while the pair is frozen

	client, endpoint     edge
	toEndpoint, toClient way

	ending errno
	moved  bool   // bytes have moved since the last check of the limits
	queued bool   // the loop will call turn
	half   bool   // HalfClosed applies: see becomeHalf
	probed bool   // keepalive of the endpoint's socket is set
	shared bool   // another process may have copies of the sockets: see Continue and Save
	place  int32  // index in loop.limited.pairs plus 1; 0 if not in it
	saved  *saved // nil unless another process can continue the pair after a crash: see PairHere.Save
}

// edge is one of a pair's two sockets.
type edge struct {
	fd              Socket
	watch           Registration
	readable        bool // there may be bytes to read
	urgent          bool // the next byte may be urgent: copy checks that before it reads
	writable        bool // the socket may accept bytes
	hungUp          bool // the peer has ended or failed; reading shows which
	ended           bool // the peer has ended its side, and had not failed before
	watchesWritable bool // the loop watches the socket for Writable, too
	delays          bool // TCP_NODELAY is not set: the kernel may wait for more bytes before it sends
	lost            bool // a write has returned the error of the connection; the next read returns the end of the stream instead
}

// way is one of the two directions of a pair.
type way struct {
	bytes atomic.Int64
	rest  *rest // bytes read and not written yet; nil if none
	pipe  *pipe // bytes of a stream, read and not written yet; nil if none
	full  uint8 // number of consecutive reads that filled the buffer, at most spliceAfter
	begun bool  // the first byte has arrived
	ended bool  // nothing more is read or written

	preface uint16 // number of bytes at the start that Pair.Bytes excludes
}

// unwatched is the slot of a socket that the loop does not watch.
const unwatched = -1

// The approximate number of bytes that one direction of a pair may move before other pairs are served. shortTurn
// applies when a socket has become ready, longTurn in a turn (see turner). Pairs with much to move wait for a turn.
const (
	shortTurn = spliceAfter * bufferSize
	longTurn  = 1 << 20
)

// Forward makes the loop forward bytes between client and endpoint, which the loop owns from then on. The parameter in
// must point to a zero Pair. When the pair has ended and both sockets are closed, the loop calls owner.Ended once,
// perhaps before Forward returns. Only the loop may call Forward.
//
// endpoint is from a Connect call with client.Opening(). Many pairs may share limits, which the loop does not change.
func (l *Loop) Forward(in *Pair, client *Client, endpoint *Dialed, limits *Limits, owner Owner) {
	p := &in.pair
	p.loop, p.limits, p.owner = l, limits, owner
	p.endpoint = edge{fd: endpoint.fd, watch: endpoint.watch, writable: true, watchesWritable: endpoint.sent == 0, delays: true}
	p.client = edge{fd: client.Socket, writable: true}
	p.toEndpoint.preface, p.toEndpoint.begun = uint16(len(client.Preface)), len(client.first) > 0
	opening := endpoint.opening
	client.Preface, client.first, endpoint.opening = nil, nil, nil
	p.toEndpoint.bytes.Add(int64(endpoint.sent))
	l.pairs.Add(1)
	l.Handle(p.endpoint.watch, (*endpointEdge)(p))
	if err := p.watchClient(client); err != nil {
		p.client.watch = Registration{unwatched}
		p.reset(outcome.Limit, unix.ENOMEM)
		return
	}
	if client.err != nil {
		p.reset(outcome.ClientReset, client.err)
		return
	}
	if !l.unprobed.any {
		l.probeLater()
	}
	if limits.Idle > 0 || limits.Age > 0 {
		l.limited.add(p)
	}
	p.endpoint.note(endpoint.seen &^ Writable)
	p.moved = len(opening) > 0
	if rest := opening[endpoint.sent:]; len(rest) > 0 {
		if n := p.write(&p.toEndpoint, &p.endpoint, rest, 0); n < len(rest) && !p.toEndpoint.ended {
			p.toEndpoint.keep(rest[n:], 0)
		}
	}
	p.move(shortTurn)
}

// watchClient watches the client's socket, or reuses the registration of [Loop.WatchClient].
func (p *pair) watchClient(client *Client) (err error) {
	if client.watcher == nil {
		p.client.watch, err = p.loop.Add(int(client.Socket), clientEvents, (*clientEdge)(p))
		return err
	}
	p.client.watch = client.watch
	p.loop.Handle(client.watch, (*clientEdge)(p))
	p.client.note(client.seen)
	return nil
}

// minDifference accounts for the wake-up that a transfer to another loop costs: see LessLoaded.
const minDifference = 16

// LessLoaded returns a random loop of list if it has clearly fewer pairs than l: fewer than 3/4 of them, minus
// minDifference. Otherwise it returns l. It reads two counts, however many loops there are. Any goroutine may call it.
func (l *Loop) LessLoaded(list []*Loop) *Loop {
	if other := list[rand.N(len(list))]; other.pairs.Load() < l.pairs.Load()*3/4-minDifference {
		return other
	}
	return l
}

// clientEdge and endpointEdge make a pair the Handler of its client's and its endpoint's socket.
type (
	clientEdge   pair
	endpointEdge pair
)

func (e *clientEdge) Ready(r Readiness) {
	p := (*pair)(e)
	p.ready(r, &p.toEndpoint, &p.client, &p.endpoint, outcome.ClientReset)
}

func (e *endpointEdge) Ready(r Readiness) {
	p := (*pair)(e)
	p.ready(r, &p.toClient, &p.endpoint, &p.client, outcome.EndpointReset)
}

// ready handles events of the socket from, the source of w. It moves the bytes of w, and also those of the other
// direction if the socket was full until now. If w has ended, the socket is no longer read, so its error ends the pair
// here; end is then the outcome.
func (p *pair) ready(r Readiness, w *way, from, to *edge, end outcome.Outcome) {
	wasFull := !from.writable
	from.note(r)
	if r&unix.EPOLLERR != 0 && w.ended {
		p.failed(from, end)
	}
	switch {
	case p.queued:
	case w.full == spliceAfter || p.toEndpoint.pipe != nil || p.toClient.pipe != nil:
		p.later()
	case wasFull && from.writable:
		p.move(shortTurn)
	case p.carry(w, from, to, shortTurn):
		p.later()
	case to.lost: // a write has failed: the other direction may be waiting for from to be writable, and would not detect that
		p.move(shortTurn)
	}
}

// note records events of a socket. The kernel reports each change only once.
func (e *edge) note(r Readiness) {
	e.readable = e.readable || r&(Readable|HungUp|Urgent|Failed) != 0
	e.urgent = e.urgent || r&Urgent != 0
	e.writable = e.writable || r&(Writable|Failed) != 0
	e.hungUp = e.hungUp || r&(HungUp|Failed) != 0
	e.ended = e.ended || r&HungUp != 0 && r&Failed == 0
}

// failed ends the pair if e, which is no longer read, has an error.
func (p *pair) failed(e *edge, end outcome.Outcome) {
	if p.owner == nil {
		return
	}
	if err := e.fd.pending(); err != nil {
		p.reset(end, err)
	}
}

// Bytes implements Flow.
func (p *pair) Bytes() (toEndpoint, toClient int64) {
	return max(0, p.toEndpoint.bytes.Load()-int64(p.toEndpoint.preface)), p.toClient.bytes.Load()
}

// Break implements Flow. It ignores the error of Do: if the loop has ended, so has the pair.
func (p *pair) Break() { _ = p.loop.Do((*PairHere)(p).Break) }

// Retire implements Flow.
func (p *pair) Retire(by time.Time) { _ = p.loop.Do(func() { (*PairHere)(p).Retire(by) }) }

// PairHere is a Pair with methods that only its loop may call.
type PairHere pair

// Break is Flow.Break, but ends the pair before it returns.
func (h *PairHere) Break() { (*pair)(h).reset(outcome.Drained, nil) }

// Retire is Flow.Retire, but sets the limit before it returns.
func (h *PairHere) Retire(by time.Time) {
	p := (*pair)(h)
	if p.owner == nil {
		return
	}
	limits := *p.limits
	limits.Retire = by
	p.limits = &limits
	p.loop.limited.add(p)
}

// move moves the bytes that can be moved, up to about limit in each direction.
func (p *pair) move(limit int) {
	more := p.carry(&p.toEndpoint, &p.client, &p.endpoint, limit)
	more = p.carry(&p.toClient, &p.endpoint, &p.client, limit) || more
	if more && !p.queued {
		p.later()
	}
}

// later makes the pair wait for a turn, so that pairs with little to move come first.
func (p *pair) later() {
	p.queued = true
	p.loop.Later(p)
}

// turn implements turner.
func (p *pair) turn() {
	p.queued = false
	p.move(longTurn)
}

// carry moves bytes in one direction, up to limit. It stops earlier if the source has no more bytes, the destination
// accepts none, or the direction has ended. At limit it returns true, since there may be more bytes.
func (p *pair) carry(w *way, from, to *edge, limit int) (more bool) {
	for moved := 0; moved < limit; {
		if w.ended || p.owner == nil {
			return false
		}
		var n int
		switch {
		case w.rest != nil:
			n = p.writeRest(w, to)
		case w.pipe != nil || w.full == spliceAfter:
			n = p.splice(w, from, to)
		case from.readable && to.writable:
			n = p.copy(w, from, to)
		}
		if p.saved != nil {
			p.noteHeld(w)
		}
		if n == 0 {
			if from.hungUp && !to.writable && !w.ended && p.owner != nil {
				p.heldUp(w, from, to)
			}
			return false
		}
		moved += n
		p.moved = true
	}
	return true
}

// copy moves the bytes of one read from a socket that may be readable, and returns their number. With 0, there is
// nothing to do until the kernel reports a change.
func (p *pair) copy(w *way, from, to *edge) int {
	if p.saved != nil {
		p.noteMoving(w)
	}
	buf, flags, look := p.loop.buffer, 0, 0
	if kept.Load() >= maxKept {
		look = unix.MSG_PEEK
	}
	n, err := 1, error(nil) // 1, so that the read below takes place, unless the peek finds nothing and sets n to 0
	if from.urgent {
		// Once a byte has arrived, the kernel knows whether it is urgent. A read stops before an urgent byte, unless
		// that byte is the first to be read.
		if n, err = from.fd.read(buf[:1], unix.MSG_PEEK); n > 0 && from.fd.atMark() {
			buf, flags = buf[:1], unix.MSG_OOB
		}
	}
	if n > 0 {
		n, err = from.fd.read(buf, look)
	}
	switch {
	case err == unix.EAGAIN && from.urgent && from.fd.unread() > 0:
		return p.copy(w, from, to) // at an urgent byte, EAGAIN can also mean that a signal has arrived
	case err == unix.EAGAIN:
		from.readable, from.urgent = false, false
		return 0
	case err != nil:
		p.readFailed(w, err)
		return 0
	case n == 0:
		p.readEnded(w, from, to)
		return 0
	case n == len(p.loop.buffer):
		// An urgent byte may have arrived since the last event.
		w.full, from.urgent = min(w.full+1, spliceAfter), true
	case flags != 0:
		w.full = 0
	default:
		w.full = 0
		// A short read means that the socket is empty (see epoll(7)), unless the end or an urgent byte follows.
		from.readable = from.hungUp || from.urgent
	}
	if !w.begun {
		w.begun = true
		if now := time.Now(); w == &p.toClient {
			p.owner.EndpointFirstByte(now)
		} else {
			p.owner.ClientFirstByte(now)
		}
	}
	wrote := p.write(w, to, buf[:n], flags)
	switch {
	case p.owner == nil:
		return 0
	case look != 0:
		from.readable = from.readable || wrote < n
		if w.ended { // writing has failed; closing with unread bytes would send a reset
			wrote = n
		}
		from.fd.discard(buf[:wrote])
		return wrote
	case wrote < n && !w.ended:
		w.keep(buf[wrote:n], flags)
	}
	return n
}

// rest holds bytes that were read and not written yet.
type rest struct {
	bytes []byte
	size  int // initial length, counted in kept
	flags int // for writing the bytes, as in send(2)
}

// kept is the total size of all rests of this process. Once it reaches maxKept, bytes that a pair cannot write stay in
// the kernel's buffers. copy then peeks at bytes, and discards those that it has written.
var kept atomic.Int64

const maxKept = 64 << 20

// keep stores b, which could not be written.
func (w *way) keep(b []byte, flags int) {
	w.rest = &rest{bytes.Clone(b), len(b), flags}
	kept.Add(int64(len(b)))
}

// written drops w.rest.
func (w *way) written() {
	kept.Add(-int64(w.rest.size))
	w.rest = nil
}

// write writes as much of b as the destination accepts, and returns the number of bytes written.
func (p *pair) write(w *way, to *edge, b []byte, flags int) int {
	to.undelay(w)
	n, err := to.fd.write(b, flags)
	if err != nil && err != unix.EAGAIN {
		p.writeFailed(w, to, err)
		return 0
	}
	w.bytes.Add(int64(n))
	if n < len(b) {
		p.awaitWritable(to)
	}
	return n
}

// writeRest writes kept bytes, and returns the number written.
func (p *pair) writeRest(w *way, to *edge) int {
	if !to.writable {
		return 0
	}
	to.undelay(w)
	n, err := to.fd.write(w.rest.bytes, w.rest.flags)
	switch {
	case err == unix.EAGAIN:
		p.awaitWritable(to)
		return 0
	case err != nil:
		p.writeFailed(w, to, err)
		return 0
	}
	w.bytes.Add(int64(n))
	if w.rest.bytes = w.rest.bytes[n:]; len(w.rest.bytes) == 0 {
		w.written()
	}
	return n
}

// undelay is called before each write to e. It sets TCP_NODELAY before the second one: the kernel never delays the
// first bytes (see its tcp_minshall_check), and most connections have no others.
func (e *edge) undelay(w *way) {
	if e.delays && w.bytes.Load() > 0 {
		e.delays = false
		_ = setOptions(int(e.fd), noDelay)
	}
}

// awaitWritable is called when e accepts no more bytes for now. Only then does the loop watch e for Writable: most
// sockets never need that, and watching from the start would cost each an extra event.
func (p *pair) awaitWritable(e *edge) {
	e.writable = false
	if !e.watchesWritable {
		e.watchesWritable = true
		p.loop.Watch(e.watch, Readable|Writable|HungUp|Urgent|Once)
	}
}

// heldUp is called when the source has ended or failed, and the destination does not accept earlier bytes. This state
// may never end. Meanwhile the source is not read, so reading does not detect its end or failure. If the source has
// failed, heldUp ends the pair. If it has ended, HalfClosed applies from now on.
func (p *pair) heldUp(w *way, from, to *edge) {
	if !from.ended && !from.lost {
		// EPIPE means that the peer sent FIN first: see writeFailed.
		switch err := from.fd.pending(); err {
		case nil:
			p.noticeReset(w, from)
		case unix.EPIPE:
		default:
			p.readFailed(w, err)
			return
		}
	}
	if from.lost {
		p.reset(p.ending.outcome, p.ending.err())
		return
	}
	from.ended = true
	if !p.half {
		p.becomeHalf()
	}
}

// readEnded is called when a read of the source has returned the end, and all earlier bytes have been passed on.
// Usually the peer has sent FIN. But if from.lost is set, the end may be that of a failed socket, and the stream may be
// incomplete.
func (p *pair) readEnded(w *way, from, to *edge) {
	if p.toEndpoint.pipe != nil || p.toClient.pipe != nil {
		p.noticeReset(w, from)
	}
	if from.lost {
		p.reset(p.ending.outcome, p.ending.err())
		return
	}
	switch {
	case p.ending.outcome != outcome.Open: // an end replaces nothing: see replaced
	case w == &p.toClient:
		p.ending.outcome = outcome.EndpointClosed
	default:
		p.ending.outcome = outcome.ClientClosed
	}
	p.end(w, to)
}

// noticeReset sets from.lost if from, the source of w, was reset, but a read returns the end: a splice(2) to from that
// moved some bytes has cleared the error without returning it. The next one returns EPIPE: see writeFailed.
func (p *pair) noticeReset(w *way, from *edge) {
	back := &p.toEndpoint
	if w == back {
		back = &p.toClient
	}
	// A pending error was not cleared. It is EPIPE, since a read would have returned any other: the peer sent FIN
	// first.
	if back.pipe != nil && back.pipe.held > 0 && !back.ended && !from.ended && from.fd.pending() == nil {
		p.drain(back, from)
	}
}

// readFailed is called when reading the source of w has failed: it was reset or lost.
func (p *pair) readFailed(w *way, err error) {
	end := outcome.ClientReset
	if w == &p.toClient {
		end = outcome.EndpointReset
		toEndpoint, toClient := p.Bytes()
		if w.rest == nil && (w.pipe == nil || w.pipe.held == 0) && answered(p.ending.outcome, err, toEndpoint, toClient, p.endpoint.fd.unsent()) {
			end, err = outcome.ClientClosed, nil
		}
	}
	p.reset(end, err)
}

// writeFailed is called when a write to the destination has failed. The peer may have sent bytes before it closed, such
// as a response to an incomplete request. So the other direction continues until these are delivered. EPIPE means that
// the peer sent FIN before the reset (tcp_reset in the kernel); any other error means that it sent no FIN. If some of
// the bytes in a pipe have been moved, EPIPE proves a FIN only if to.ended is set. Otherwise an earlier splice(2) may
// have cleared another error without returning it.
func (p *pair) writeFailed(w *way, to *edge, err error) {
	to.lost = to.lost || err != unix.EPIPE || w.pipe != nil && w.pipe.moved > 0 && !to.ended
	end := outcome.EndpointReset
	if w == &p.toClient {
		end = outcome.ClientReset
	}
	p.ending.cause(end, err)
	p.end(w, nil)
}

// end ends one direction, and sends FIN to the destination to, unless it is nil. If the other direction has ended as
// well, end closes the pair instead, which sends the FIN.
func (p *pair) end(w *way, to *edge) {
	w.ended = true
	if p.toEndpoint.ended && p.toClient.ended {
		p.close(p.untaken())
		return
	}
	if to != nil {
		to.fd.closeWrite()
	}
	p.becomeHalf()
}

// becomeHalf makes Limits.HalfClosed apply from now on: one direction has ended, or is held up before its end.
func (p *pair) becomeHalf() {
	p.half = true
	if p.limits.HalfClosed > 0 {
		p.loop.limited.add(p)
	}
}

// reset ends the pair at once, and resets both connections.
func (p *pair) reset(end outcome.Outcome, err error) {
	if p.owner == nil {
		return
	}
	p.ending.cause(end, err)
	untaken := p.untaken() // before the reset: a disconnected socket does not know it
	_ = p.client.fd.SetLinger(0)
	_ = p.endpoint.fd.SetLinger(0)
	if p.shared {
		p.client.fd.disconnect()
		p.endpoint.fd.disconnect()
	}
	p.close(untaken)
}

// untaken returns the number of bytes that the client has not acknowledged, or 0 if result does not need it.
func (p *pair) untaken() int {
	if o := p.ending.outcome; (o == outcome.ClientReset || o == outcome.NoResponse) && p.toEndpoint.ended {
		return p.client.fd.unsent()
	}
	return 0
}

// close closes both sockets, and calls the owner's Ended.
func (p *pair) close(untaken int) {
	l := p.loop
	if p.saved != nil {
		p.forget()
	}
	for _, e := range [...]*edge{&p.client, &p.endpoint} {
		switch {
		case e.watch.slot == unwatched:
			e.fd.Close()
		case p.shared:
			e.fd.closeWrite()
			l.Remove(e.watch)
			e.fd.Close()
		default:
			l.CloseFD(e.watch)
		}
	}
	for _, w := range [...]*way{&p.toEndpoint, &p.toClient} {
		if w.pipe != nil {
			l.pipes.put(w.pipe)
			w.pipe = nil
		}
		if w.rest != nil {
			w.written()
		}
	}
	l.limited.remove(p)
	if l.pairs.Add(-1) == 0 && len(l.pipes.kept) > 0 {
		l.pipes.close()
	}
	done := p.owner
	p.owner = nil
	toEndpoint, toClient := p.Bytes()
	done.Ended(result(p.ending.outcome, p.ending.err(), toEndpoint, toClient, untaken))
}

// EachPair calls f with each pair of the loop and the pair's owner. It visits perTurn slots in one turn, so some calls
// may follow after EachPair has returned. It may miss pairs that start meanwhile. Only the loop may call it.
func (l *Loop) EachPair(f func(*PairHere, Owner)) { (&round{loop: l, f: f}).turn() }

// round is an EachPair call that is under way.
type round struct {
	loop *Loop
	f    func(*PairHere, Owner)
	next int // slot
}

// turn implements turner.
func (r *round) turn() {
	for end := min(r.next+perTurn, len(r.loop.slots)); r.next < end; r.next++ {
		if e, is := r.loop.slots[r.next].handler.(*endpointEdge); is {
			r.f((*PairHere)(e), e.owner)
		}
	}
	if r.next < len(r.loop.slots) {
		r.loop.Later(r)
	}
}

// errno is an ending whose error is from the kernel. It takes less memory than the type ending.
type errno struct {
	outcome outcome.Outcome
	number  uint16
}

func (e *errno) cause(o outcome.Outcome, err error) {
	if next := replaced(e.outcome, o); next != e.outcome {
		number, _ := err.(unix.Errno)
		e.outcome, e.number = next, uint16(number)
	}
}

func (e errno) err() error {
	if e.number == 0 {
		return nil
	}
	return unix.Errno(e.number)
}
