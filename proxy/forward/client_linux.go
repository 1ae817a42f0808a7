package forward

import (
	"bytes"
	"io"
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
