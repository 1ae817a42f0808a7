package forward

import (
	"math/rand/v2"
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

// localPorts bounds how long a Loop looks for a port to connect from. When most of those are in use
// towards an endpoint, as they are for a minute after connections to it have been closed, connect(2)
// looks at one after the other: some milliseconds, in which all others on the loop wait. Once that
// was seen, it may look at a few only, which are others each time.
type localPorts struct {
	first, last uint16    // that there are; see Options
	until       time.Time // they are few
}

const (
	// slowConnect is how long connect(2) may take; a tenth of that is usual.
	slowConnect = 250 * time.Microsecond
	// fewPorts is how many are looked at. Of so many one is free in 99 cases of 100 while a hundredth
	// of all is.
	fewPorts = 512
	// fewFor is for how long.
	fewFor = 10 * time.Second
)

// took notes how long it took to connect.
func (p *localPorts) took(d time.Duration, now time.Time) {
	if d >= slowConnect && !now.Before(p.until) {
		p.until = now.Add(fewFor)
	}
}

// few returns the value of IP_LOCAL_PORT_RANGE (ip(7), Linux 6.3) by which connect(2) looks at a
// few ports, or 0 if it may look at all.
func (p *localPorts) few(now time.Time) int {
	others := int(p.last) - int(p.first) + 1 - fewPorts
	if !now.Before(p.until) || others <= 0 {
		return 0
	}
	first := int(p.first) + rand.N(others+1)
	return (first+fewPorts-1)<<16 | first
}
