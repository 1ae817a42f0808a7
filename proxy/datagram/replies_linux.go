package datagram

import (
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/usherproxy/usher/proxy/forward"
	"github.com/usherproxy/usher/proxy/outcome"
)

// A listener has one socket, which one loop reads. So that a listener can use more than one CPU, another loop forwards
// the replies of a busy session: it reads the session's socket and sends through the listener's. Everything else stays
// on the session's loop.

// busyAfter is the number of replies after which a session is busy.
const busyAfter = 64

// epoch is the zero of the times stored in atomics. They are monotonic, unlike Unix times.
var epoch = time.Now()

// replies forwards the replies of a busy session on another loop, the one in the field loop. That loop owns the other
// fields, except last. It also reads fields that no longer change: the session's key, control, hops, search (nil) and
// mute (false), and the socket's fd. It adds to the session's toClient and to the front end's counters, which are
// atomic.
type replies struct {
	session   *session
	loop      *loop
	fd        int
	watched   forward.Registration // if opened is set
	burstSize burstSize
	opened    bool
	closed    bool

	last atomic.Int64 // time of the last reply, in nanoseconds since epoch; 0 if there was none
}

// lend moves the session's replies to another loop, if there is one.
func (s *session) lend() {
	lp := s.socket.loop
	others := lp.others
	if len(others) == 0 {
		return
	}
	lp.lent++
	r := &replies{session: s, loop: others[lp.lent%len(others)], fd: s.fd}
	lp.flush() // earlier replies go first
	lp.poller.Remove(s.watched)
	s.lent, s.socket.lent = r, true
	if r.loop.poller.Do(r.open) != nil { // the loop has ended
		s.end(outcome.Result{Outcome: outcome.Drained})
	}
}

func (r *replies) open() {
	if r.closed {
		return
	}
	var err error
	if r.watched, err = r.loop.poller.Add(r.fd, forward.Readable, r); err != nil { // the kernel is out of memory
		r.notify(func(s *session) { s.end(outcome.Result{Outcome: outcome.Internal, Err: err}) })
		return
	}
	r.opened = true
}

// notify makes the session's loop call f, unless r no longer forwards the session's replies by then.
func (r *replies) notify(f func(*session)) {
	s := r.session
	_ = s.socket.loop.poller.Do(func() {
		if s.lent == r {
			f(s)
		}
	})
}

// Ready forwards the endpoint's datagrams.
func (r *replies) Ready(forward.Readiness) {
	n, bytes, err := r.loop.reply(r.session, r.fd, &r.burstSize)
	if err != nil {
		r.notify(func(s *session) { s.failed(err) })
		return
	}
	if n > 0 {
		r.session.toClient.Add(bytes)
		r.last.Store(int64(r.loop.clock().Sub(epoch)))
	}
}

// closeLent makes the other loop stop forwarding the session's replies, and close the session's socket to the endpoint.
// For shared, see loop.close.
func (s *session) closeLent(shared bool) {
	r := s.lent
	s.lent = nil
	if r.loop.poller.Do(func() { r.close(shared) }) != nil {
		unix.Close(r.fd)
	}
}

func (r *replies) close(shared bool) {
	r.closed = true
	if !r.opened {
		unix.Close(r.fd)
		return
	}
	r.loop.close(r.fd, r.watched, shared)
}

// lastReply returns when another loop last forwarded a reply; the zero Time if none has.
func (s *session) lastReply() time.Time {
	if s.lent == nil || s.lent.last.Load() == 0 {
		return time.Time{}
	}
	return epoch.Add(time.Duration(s.lent.last.Load()))
}

// catchUp updates s.last, and moves the session to the back of the lists, if another loop has forwarded a reply after
// s.last. It reports whether that was so.
func (s *session) catchUp() bool {
	last := s.lastReply()
	if !last.After(s.last) {
		return false
	}
	s.touch()
	s.last = last
	return true
}

// whenUnused calls f, on the socket's loop, when no other loop sends through the socket any longer. All its sessions
// must have ended.
func (sk *socket) whenUnused(f func()) {
	if !sk.lent {
		f()
		return
	}
	pass := func() { _ = sk.loop.poller.Do(f) }
	for _, lp := range sk.loop.others {
		next := pass
		pass = func() {
			flushed := func() {
				if lp.outFrom == sk {
					lp.flush()
				}
				next()
			}
			if lp.poller.Do(flushed) != nil { // the loop has ended
				next()
			}
		}
	}
	pass()
}
