package forward

import (
	"bytes"
	"io"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// Client is a client that was accepted, with what it has sent before it had an
// endpoint.
type Client struct {
	Socket
	// Preface is what the endpoint gets before the first byte of the client's. It does not
	// count. Between Loop.Connect and Loop.Forward it is not changed.
	Preface []byte

	first []byte
	err   error // that reading has met

	watcher *Loop // set by WatchClient
	watch   Registration
	seen    Readiness // since WatchClient
	changed func()
}

// clientEvents are what a client is watched for, from WatchClient or Forward on.
const clientEvents = Readable | HungUp | Urgent | Once

// WatchClient makes the loop call changed when c has sent something, ended its side or reset the
// connection, until c is closed or handed to Forward, which needs no second registration. If c
// is watched already, it does nothing. Only the loop may call it.
func (l *Loop) WatchClient(c *Client, changed func()) (err error) {
	if c.watcher != nil {
		return nil
	}
	if c.watch, err = l.Add(int(c.Socket), clientEvents, c); err == nil {
		c.watcher, c.changed = l, changed
	}
	return err
}

// Ready implements Handler.
func (c *Client) Ready(r Readiness) {
	c.seen |= r
	c.changed()
}

// Reset reports whether c is known to have reset the connection: reading or its watch said so.
func (c *Client) Reset() bool { return c.err != nil || c.seen&Failed != 0 }

// Close closes the socket. If it is watched, only the loop may call it.
func (c *Client) Close() error {
	if c.watcher == nil {
		return c.Socket.Close()
	}
	c.watcher.CloseFD(c.watch)
	return nil
}

// Opening returns what the endpoint is to get first: the preface, and what was read of
// the client. It is not to be changed.
func (c *Client) Opening() []byte {
	if len(c.Preface) == 0 {
		return c.first
	}
	return slices.Concat(c.Preface, c.first)
}

// First returns what was read of the client. It is not to be changed.
func (c *Client) First() []byte { return c.first }

// Skip takes the first n bytes away from that: they are not for the endpoint.
func (c *Client) Skip(n int) {
	if c.first = c.first[n:]; len(c.first) == 0 {
		c.first = nil
	}
}

// readAhead bounds what is read of a client that has no endpoint yet: requests are
// smaller, and there may be many such clients.
const readAhead = 4 << 10

// ReadAhead takes what c has sent so far. So an endpoint gets it at once when it has
// accepted, and even with the last packet of the handshake. Only the loop may call it, once.
func (l *Loop) ReadAhead(c *Client) {
	if c.first != nil {
		return // and what comes behind that may wait
	}
	n, err := c.read(l.buffer[:readAhead], 0)
	switch {
	case n > 0:
		c.first = bytes.Clone(l.buffer[:n:n])
		c.seen |= Urgent // the next byte may be; earlier events do not say
	case err != nil && err != unix.EAGAIN:
		c.err = err // the kernel tells it once
	}
}

// Await reads what c sends until enough is satisfied with all that has come, which it is
// asked whenever there is more, or until 4 KiB have come. Only the loop may call it.
//
// The loop calls done, once, perhaps before Await returns: with a unix.Errno if c has
// failed, io.ErrUnexpectedEOF if it sends no more, context.DeadlineExceeded after timeout,
// context.Canceled after CancelDials; c is the caller's again. Of timeouts there may be a
// few different ones.
func (l *Loop) Await(c *Client, timeout time.Duration, enough func(first []byte) bool, done func(error)) {
	a := &awaiting{loop: l, client: c, enough: enough, done: done, until: time.Now().Add(timeout)}
	if a.read(); a.done == nil {
		return // it was there already
	}
	var err error
	if a.watch, err = l.Add(int(c.Socket), Readable|HungUp|Once, a); err != nil {
		a.finish(unix.ENOMEM)
		return
	}
	a.watched = true
	l.timedBy(timeout).add(a)
}

// awaiting is a client of whom more is awaited.
type awaiting struct {
	loop    *Loop
	client  *Client
	enough  func([]byte) bool
	done    func(error) // nil once it was called
	until   time.Time
	watch   Registration
	watched bool
}

// Ready implements Handler.
func (a *awaiting) Ready(Readiness) { a.read() }

// read takes all there is, but no more than is wanted.
func (a *awaiting) read() {
	c, buf := a.client, a.loop.buffer[:readAhead]
	for {
		n, err := c.read(buf[len(c.first):], 0)
		switch {
		case err == unix.EAGAIN:
			return
		case err != nil:
			a.finish(err)
			return
		case n == 0:
			a.finish(io.ErrUnexpectedEOF)
			return
		}
		c.first = append(c.first, buf[len(c.first):][:n]...)
		if a.enough(c.first) || len(c.first) == readAhead {
			a.finish(nil)
			return
		}
	}
}

func (a *awaiting) finish(err error) {
	if a.watched {
		a.loop.Remove(a.watch)
	}
	done := a.done
	a.client, a.enough, a.done = nil, nil, nil // it stays in its queue for some time
	done(err)
}

// These implement timed.

func (a *awaiting) over() bool          { return a.done == nil }
func (a *awaiting) deadline() time.Time { return a.until }
func (a *awaiting) fail(err error) {
	if a.done != nil {
		a.finish(err)
	}
}

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
