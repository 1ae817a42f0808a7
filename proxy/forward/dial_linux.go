package forward

import (
	"context"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// Dialed is a connection that a Loop makes, or has made, to an endpoint, and belongs to.
// Once it is made, it waits for [Loop.Forward].
type Dialed struct {
	loop  *Loop
	fd    Socket
	watch Registration
	seen  Readiness            // until somebody else watches
	sent  int                  // of what was to be sent at once
	done  func(*Dialed, error) // nil once it was called
	until time.Time
}

// Connect begins to connect to an endpoint, from the address from (see
// BindTransparent), or, if that is the zero AddrPort, from one that the kernel picks. hops is the
// hop limit of its packets; 0 is the kernel's own. Only the loop may call it.
//
// The loop calls done, once, when the connection is made, or with an error when it
// has failed: a unix.Errno, or context.DeadlineExceeded after timeout. It may do so
// before Connect returns. A timeout of 0 means none; of others there may be a few
// different ones. opening, which is not changed, is what the endpoint is to get first
// (see [Client.Opening]): with some, a packet is saved, and perhaps a round of the loop.
//
// What it returns is for Pending and Cancel.
func (l *Loop) Connect(from, to netip.AddrPort, hops int, opening []byte, timeout time.Duration, done func(*Dialed, error)) *Dialed {
	d := &Dialed{loop: l, fd: -1, done: done}
	began := time.Now()
	var err error
	d.fd, err = connectTCP(l.mark, from, to, hops, l.ports.few(began), len(opening) > 0)
	now := time.Now()
	l.ports.took(now.Sub(began), now)
	if err != nil {
		d.finish(err)
		return d
	}
	want := Readable | Writable | HungUp | Urgent | Once
	if len(opening) > 0 {
		// An endpoint on this node has answered while connect(2) ran, which does not say so.
		switch d.sent, err = d.fd.write(opening, 0); err {
		case nil:
			want &^= Writable
		case unix.EAGAIN:
		default:
			d.fd.Close()
			d.finish(err)
			return d
		}
	}
	if d.watch, err = l.Add(int(d.fd), want, d); err != nil {
		d.fd.Close()
		d.finish(unix.ENOMEM)
		return d
	}
	if d.sent > 0 {
		d.finish(nil)
		return d
	}
	if timeout > 0 {
		d.until = now.Add(timeout)
		l.timedBy(timeout).add(d)
	}
	return d
}

// Pending reports whether the connection is neither made nor failed.
func (d *Dialed) Pending() bool { return d.done != nil }

// Cancel closes a connection that is pending; done is not called. Only the loop may call it.
func (d *Dialed) Cancel() {
	d.done = nil
	d.loop.CloseFD(d.watch)
}

// CancelDials cancels all connections that the loop is making and that have a timeout, and
// all that it awaits of clients; who is told must begin no others. Only the loop may call it.
func (l *Loop) CancelDials() {
	for _, q := range l.timed {
		q.canceled = len(q.queue)
		q.turn()
	}
}

// Ready implements Handler.
func (d *Dialed) Ready(r Readiness) {
	d.seen |= r
	switch {
	case d.done == nil: // it waits to be taken over
	case r&Failed != 0:
		if err := d.fd.pending(); err != nil {
			d.fail(err)
			return
		}
		d.finish(nil) // it was made, and has ended since
	case r&Writable != 0:
		d.finish(nil)
	}
}

// These implement timed.

func (d *Dialed) over() bool          { return d.done == nil }
func (d *Dialed) deadline() time.Time { return d.until }
func (d *Dialed) fail(err error) {
	if d.done != nil {
		d.loop.CloseFD(d.watch)
		d.finish(err)
	}
}

func (d *Dialed) finish(err error) {
	done := d.done
	d.done = nil
	done(d, err)
}

// timed is what a Loop gives up when its time is over: a connection that it makes, or what
// it awaits of a client.
type timed interface {
	over() bool
	deadline() time.Time
	fail(error) // does nothing if it is over
}

// timedQueue are those that have the same time limit, first come first. One timer serves
// them all, and runs on while there are any; one that is over in time is found out to be
// when its time is, which costs less than to take it out.
type timedQueue struct {
	loop  *Loop
	limit time.Duration
	queue []timed
	alarm alarm

	canceled int // so many of the first are over now
}

// timedBy returns the queue for a limit.
func (l *Loop) timedBy(limit time.Duration) *timedQueue {
	for _, q := range l.timed {
		if q.limit == limit {
			return q
		}
	}
	q := &timedQueue{loop: l, limit: limit}
	l.timed = append(l.timed, q)
	return q
}

func (q *timedQueue) add(t timed) {
	q.queue = append(q.queue, t)
	if len(q.queue) == 1 {
		q.alarm.set(q.loop, time.Until(t.deadline()), q.turn)
	}
}

// turn gives up those whose time is over, some now and the others in the next turns. It implements turner.
func (q *timedQueue) turn() {
	now := time.Now()
	for failed := 0; len(q.queue) > 0; {
		t, why := q.queue[0], context.DeadlineExceeded
		switch {
		case q.canceled > 0:
			why = context.Canceled
		case !t.over() && t.deadline().After(now):
			q.alarm.set(q.loop, time.Until(t.deadline()), q.turn)
			return
		}
		if !t.over() {
			if failed == perTurn {
				q.loop.Later(q)
				return
			}
			failed++
		}
		q.queue[0], q.queue = nil, q.queue[1:]
		q.canceled = max(0, q.canceled-1)
		t.fail(why) // may add others, and does nothing if it is over
	}
	q.queue = nil // a burst shall not keep its memory
}
