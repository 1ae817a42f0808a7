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

// Client is an accepted client, with the bytes that it sent before it had an endpoint.
type Client struct {
	Socket
	// Preface is sent to the endpoint before the client's first byte. The byte counts exclude it. It must not change
	// between Loop.Connect and Loop.Forward.
	Preface []byte

	first []byte
	err   error // returned by a read

	watcher *Loop // set by WatchClient
	watch   Registration
	seen    Readiness // events since WatchClient
	changed func()
}

// clientEvents are the events for which the loop watches a client's socket after WatchClient or Forward, and both
// sockets of a pair after Continue.
const clientEvents = Readable | HungUp | Urgent | Once

// WatchClient makes the loop call the function changed when c has sent bytes, ended its side or reset the connection.
// The loop watches c until c is closed or passed to Forward, which reuses the registration. WatchClient does nothing if
// c is already watched. Only the loop may call it.
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

// Reset reports whether a read or the watch has shown that c has failed, for example by a reset.
func (c *Client) Reset() bool { return c.err != nil || c.seen&Failed != 0 }

// Close closes the socket. If the loop watches c, only the loop may call Close.
func (c *Client) Close() error {
	if c.watcher == nil {
		return c.Socket.Close()
	}
	c.watcher.CloseFD(c.watch)
	return nil
}

// Opening returns the first bytes for the endpoint: the preface, and the bytes read from the client. The caller must
// not change them.
func (c *Client) Opening() []byte {
	if len(c.Preface) == 0 {
		return c.first
	}
	return slices.Concat(c.Preface, c.first)
}

// First returns the bytes read from the client. The caller must not change them.
func (c *Client) First() []byte { return c.first }

// Skip removes the first n bytes read from the client: they are not for the endpoint.
func (c *Client) Skip(n int) {
	if c.first = c.first[n:]; len(c.first) == 0 {
		c.first = nil
	}
}

// readAhead is the maximum number of bytes read from a client that has no endpoint yet. Most requests are smaller, and
// there may be many such clients. It must not be less than proxyproto.MaxHeader.
const readAhead = 4 << 10

// ReadAhead reads the bytes that c has sent so far. The endpoint can then get them as soon as it has accepted, or even
// with the last packet of the handshake. If c has failed, such as by a reset, ReadAhead returns the error. Only the
// loop may call it, and only once.
func (l *Loop) ReadAhead(c *Client) error {
	if c.first != nil {
		return nil // AwaitHeader has read bytes; later ones can wait
	}
	n, err := c.read(l.buffer[:readAhead], 0)
	switch {
	case n > 0:
		c.first = bytes.Clone(l.buffer[:n:n])
		c.seen |= Urgent // the next byte may be urgent: if c is watched, Forward checks that before it reads
	case err != nil && err != unix.EAGAIN:
		c.err = err // the kernel returns it only once
	}
	return c.err
}

// AwaitHeader reads from c until enough returns true, or until readAhead bytes have arrived. Whenever bytes have
// arrived, it passes all bytes so far to enough. Only the loop may call AwaitHeader.
//
// The loop calls done once, perhaps before AwaitHeader returns; then the caller owns c again. The error is nil or:
//
//   - a unix.Errno if c has failed or cannot be watched
//   - io.ErrUnexpectedEOF if c has ended its side
//   - context.DeadlineExceeded after timeout
//   - context.Canceled after CancelDials
//
// Use only a few different timeouts: the loop has a queue for each.
func (l *Loop) AwaitHeader(c *Client, timeout time.Duration, enough func(first []byte) bool, done func(error)) {
	a := &awaiting{loop: l, client: c, enough: enough, done: done, until: time.Now().Add(timeout)}
	if a.read(); a.done == nil {
		return // finish was called
	}
	var err error
	if a.watch, err = l.Add(int(c.Socket), Readable|HungUp|Once, a); err != nil {
		a.finish(unix.ENOMEM)
		return
	}
	a.watched = true
	l.timedBy(timeout).add(a)
}

// awaiting is the state of an AwaitHeader call.
type awaiting struct {
	loop    *Loop
	client  *Client
	enough  func([]byte) bool
	done    func(error) // nil once called
	until   time.Time
	watch   Registration
	watched bool
}

// Ready implements Handler.
func (a *awaiting) Ready(Readiness) { a.read() }

// read reads the available bytes until enough have arrived.
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
	a.client, a.enough, a.done = nil, nil, nil // its timedQueue holds *a, at most until the deadline
	done(err)
}

// The methods of timed.

func (a *awaiting) over() bool          { return a.done == nil }
func (a *awaiting) deadline() time.Time { return a.until }
func (a *awaiting) fail(err error) {
	if a.done != nil {
		a.finish(err)
	}
}

// Dialed is a connection from a Loop to an endpoint, established or pending. The Loop owns it. When it is established,
// pass it to [Loop.Forward].
type Dialed struct {
	loop  *Loop
	fd    Socket
	watch Registration
	seen  Readiness            // events until Forward sets another handler
	done  func(*Dialed, error) // nil once called
	until time.Time

	opening []byte // as passed to Connect
	sent    int    // the number of these bytes that were sent
}

// Connect starts a connection to an endpoint. The parameter to is the endpoint's address; from is the source address
// (see BindTransparent). If from is the zero AddrPort, the kernel picks the address. hops is the hop limit of the
// packets; 0 means the kernel's default. Only the loop may call Connect.
//
// The loop calls done once, perhaps before Connect returns. The error is nil when the connection is established.
// Otherwise it is context.DeadlineExceeded after timeout, context.Canceled after CancelDials, or it is or wraps a
// unix.Errno. A timeout of 0 means none; use only a few different ones. The first bytes for the endpoint (see
// [Client.Opening]) are in opening, and must not change. Sending them here saves a packet, and perhaps a round of the
// loop.
//
// Connect returns nil if it has called done. Otherwise only Pending and Cancel of the returned Dialed may be used until
// the loop calls done.
func (l *Loop) Connect(from, to netip.AddrPort, hops int, opening []byte, timeout time.Duration, done func(*Dialed, error)) *Dialed {
	d := &Dialed{loop: l, fd: -1, opening: opening, done: done}
	began := time.Now()
	few := l.ports.few(began)
	var err error
	d.fd, err = l.connectTCP(from, to, hops, few, len(opening) > 0)
	if err == unix.EADDRNOTAVAIL && few != 0 && l.ports.maySearchAll(began) {
		d.fd, err = l.connectTCP(from, to, hops, 0, len(opening) > 0)
	}
	now := time.Now()
	l.ports.took(now.Sub(began), now)
	if err != nil {
		d.finish(err)
		return nil
	}
	want := Readable | Writable | HungUp | Urgent | Once
	if len(opening) > 0 {
		// If the endpoint is on this node, connect(2) has already established the connection, but does not report it.
		switch d.sent, err = d.fd.write(opening, 0); err {
		case nil:
			want &^= Writable
		case unix.EAGAIN:
		default:
			d.fd.Close()
			d.finish(err)
			return nil
		}
	}
	if d.watch, err = l.Add(int(d.fd), want, d); err != nil {
		d.fd.Close()
		d.finish(unix.ENOMEM)
		return nil
	}
	if d.sent > 0 {
		d.finish(nil)
		return nil
	}
	if timeout > 0 {
		d.until = now.Add(timeout)
		l.timedBy(timeout).add(d)
	}
	return d
}

// Pending reports whether the connection is neither established nor failed.
func (d *Dialed) Pending() bool { return d.done != nil }

// Cancel closes a pending connection; done is not called. Only the loop may call it.
func (d *Dialed) Cancel() {
	d.done = nil
	d.loop.CloseFD(d.watch)
}

// CancelDials cancels all pending connections of the loop that have a timeout, and all AwaitHeader calls. Their done
// functions must not start new ones. Only the loop may call it.
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
	case d.done == nil: // established; waits for Forward
	case r&Failed != 0:
		if err := d.fd.pending(); err != nil {
			d.fail(err)
			return
		}
		d.finish(nil) // it was established, and has ended since
	case r&Writable != 0:
		d.finish(nil)
	}
}

// The methods of timed.

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

// localPorts limits the time that connect(2) searches for a local port, since all other connections of the loop wait
// meanwhile. If most ports are in use for connections to an endpoint, connect(2) tries one after the other, which takes
// some milliseconds. (A closed connection keeps its port for a minute.) After slow searches in succession, connect(2)
// may try only few ports for some time, different ones in each call.
type localPorts struct {
	first, last uint16    // the kernel's range; see Options
	slow        int       // number of slow calls of connect(2) since the last fast one
	until       time.Time // connect(2) may try only few ports before this time
	searchedAll time.Time // when connect(2) last tried all ports because none of a few was free
}

const (
	// slowConnect is the duration from which connect(2) counts as slow. A tenth of it is usual.
	slowConnect = 250 * time.Microsecond
	// slowConnects is the number of slow calls in succession after which few ports are tried. A single call may also be
	// slow because the kernel ran another thread meanwhile.
	slowConnects = 3
	// fewPorts is the number of ports to try. If 1% of all ports are free, one of these is free in 99% of cases.
	fewPorts = 512
	// fewFor is the time for which the limit applies.
	fewFor = 10 * time.Second
	// searchAllAfter limits an exception: if none of the few ports is free, connect(2) may try all ports, but only once
	// in this time. Such a search takes longest if no port is free.
	searchAllAfter = time.Second
)

// maySearchAll reports whether connect(2), which found none of a few ports free, may try all.
func (p *localPorts) maySearchAll(now time.Time) bool {
	if now.Sub(p.searchedAll) < searchAllAfter {
		return false
	}
	p.searchedAll = now
	return true
}

// took records how long an attempt to begin a connection took; connect(2) may take most of that.
func (p *localPorts) took(d time.Duration, now time.Time) {
	if d < slowConnect {
		p.slow = 0
	} else if p.slow++; p.slow >= slowConnects && !now.Before(p.until) {
		p.until = now.Add(fewFor)
	}
}

// few returns the value of IP_LOCAL_PORT_RANGE (ip(7), Linux 6.3) that limits connect(2) to a few ports, or 0 for no
// limit.
func (p *localPorts) few(now time.Time) int {
	others := int(p.last) - int(p.first) + 1 - fewPorts
	if !now.Before(p.until) || others <= 0 {
		return 0
	}
	first := int(p.first) + rand.N(others+1)
	return (first+fewPorts-1)<<16 | first
}
