package forward

import (
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/usherproxy/usher/proxy/outcome"
)

// Conn is a connection that Copy forwards. It must support half-close and reset, as *net.TCPConn does.
type Conn interface {
	net.Conn
	// CloseWrite sends FIN and leaves the other direction open.
	CloseWrite() error
	// SetLinger(0) makes Close send a reset.
	SetLinger(sec int) error
}

// A Conn may have a method
//
//	HungUp() (ended bool, err error)
//
// that returns at once. ended reports whether the peer has ended its side; err is the error if the connection has
// failed. Both are detected even if earlier bytes from the peer are unread. On Linux, a syscall.Conn needs no such
// method. Without it, any other Conn whose peer has ended or failed stays open as long as the other side of the pair
// does not read.

// Copy forwards bytes between client and endpoint, which it owns from then on. It returns at once. When the pair has
// ended and both connections are closed, another goroutine calls owner.Ended once.
//
// Copy uses two goroutines per pair, and works on every system. On Linux, a [Loop] does the same at a much lower cost.
func Copy(client, endpoint Conn, limits Limits, owner Owner) Flow {
	return CopyRest(client, endpoint, 0, limits, owner)
}

// CopyRest is Copy for a client whose first bytes were already sent to the endpoint; sent is their number. The Flow and
// the Result include these bytes. If sent is not 0, owner.ClientFirstByte is not called.
func CopyRest(client, endpoint Conn, sent int64, limits Limits, owner Owner) Flow {
	fl := newCopying(client, endpoint, limits, owner)
	fl.toEndpoint.bytes.Store(sent)
	fl.toEndpoint.begun = sent > 0
	fl.start(func() { fl.copy(&fl.toEndpoint, client, endpoint) }, func() { fl.copy(&fl.toClient, endpoint, client) })
	return fl
}

// copying is a pair with a goroutine for each direction.
type copying struct {
	limits Limits
	owner  Owner

	toEndpoint, toClient direction
	running              atomic.Int32 // directions that have not ended
	moved                atomic.Bool  // bytes have moved since the last check of the limits
	reporting            sync.Mutex   // held while the owner's ClientFirstByte or EndpointFirstByte is called

	mu      sync.Mutex
	ending  ending
	untaken int         // as in result
	half    bool        // HalfClosed applies: see becomeHalf
	watch   watch       // started by newCopying
	timer   *time.Timer // for the next check; nil if there are no limits
}

// side is the common part of all kinds of connections.
type side interface {
	// CloseWrite ends the sending direction.
	CloseWrite() error
	// SetLinger(0) makes Close reset the connection.
	SetLinger(sec int) error
	Close() error
}

// direction is one of the two directions of a pair.
type direction struct {
	from, to side
	bytes    atomic.Int64
	begun    bool // the first byte has arrived

	busy    sync.Mutex  // held by copying.write, which may set failed
	failed  error       // the error of a failed write to d.to, except EPIPE; a read of d.to then returns io.EOF instead; guarded by copying.mu
	writing atomic.Bool // a write to d.to is under way; d.from is not read meanwhile
	slow    *time.Timer // calls heldUp when a write takes long

	// The pair's outcome if the source ends, if the source fails, and if the destination fails.
	fromEnd, fromReset, toReset outcome.Outcome
}

func newCopying(client, endpoint side, limits Limits, owner Owner) *copying {
	now := time.Now()
	fl := &copying{limits: limits, owner: owner, watch: watch{began: now, silent: now, unsent: -1}}
	fl.toEndpoint = direction{from: client, to: endpoint, fromEnd: outcome.ClientClosed, fromReset: outcome.ClientReset, toReset: outcome.EndpointReset}
	fl.toClient = direction{from: endpoint, to: client, fromEnd: outcome.EndpointClosed, fromReset: outcome.EndpointReset, toReset: outcome.ClientReset}
	for _, d := range []*direction{&fl.toEndpoint, &fl.toClient} {
		if raw := rawOf(d.from); raw != nil {
			socketInline(raw)
		}
		d.slow = time.AfterFunc(time.Hour, func() { fl.heldUp(d) })
		d.slow.Stop()
	}
	return fl
}

// slowAfter is the duration after which a write counts as slow. From then on, heldUp checks d.from at this interval.
const slowAfter = time.Second

// write calls f, which writes in direction d, and records errors other than EPIPE in d.failed. EPIPE means that the
// peer of d.to had sent FIN before its reset (tcp_reset in the kernel). Any other error means that it had sent no FIN.
func (fl *copying) write(d *direction, f func() error) error {
	d.busy.Lock()
	defer d.busy.Unlock()
	d.writing.Store(true)
	d.slow.Reset(slowAfter)
	err := f()
	d.writing.Store(false)
	d.slow.Stop()
	if err != nil && !errors.Is(err, syscall.EPIPE) {
		fl.mu.Lock()
		d.failed = err
		fl.mu.Unlock()
	}
	return err
}

// heldUp is called while d.to accepts no bytes, a state that may never end. Meanwhile d.from is not read, so reading
// does not detect its end or failure. If d.from has failed, heldUp ends the pair. If d.from has ended, HalfClosed
// applies from now on.
func (fl *copying) heldUp(d *direction) {
	if !d.writing.Load() {
		return
	}
	ended, err := hungUp(d.from)
	fl.mu.Lock()
	if failed := fl.opposite(d).failed; failed != nil {
		err = failed
	}
	if ended && !fl.half {
		fl.becomeHalf()
	}
	fl.mu.Unlock()
	if err != nil {
		fl.reset(d.fromReset, err)
		return
	}
	d.slow.Reset(slowAfter)
}

// gone reports whether c has failed, or both sides have ended it: a write to c then returns at once.
func gone(c side) bool {
	raw := rawOf(c)
	return raw != nil && socketGone(raw)
}

// rawOf returns the socket of c, or nil if it has none.
func rawOf(c side) syscall.RawConn {
	if c, ok := c.(syscall.Conn); ok {
		if raw, err := c.SyscallConn(); err == nil {
			return raw
		}
	}
	return nil
}

// hungUp reports whether c's peer has ended its side, and returns the error if c has failed, even if earlier bytes are
// unread. If neither can be detected, hungUp returns zero values.
func hungUp(c side) (ended bool, err error) {
	if c, ok := c.(interface{ HungUp() (bool, error) }); ok {
		return c.HungUp()
	}
	if raw := rawOf(c); raw != nil {
		return socketHungUp(raw)
	}
	return false, nil
}

// start starts the timer, and a goroutine each for toEndpoint and toClient, which return when their direction ends.
func (fl *copying) start(toEndpoint, toClient func()) {
	if period := fl.limits.period(); period > 0 {
		fl.mu.Lock()
		fl.timer = time.AfterFunc(period, fl.look)
		fl.mu.Unlock()
	}
	fl.running.Store(2)
	go fl.run(toEndpoint)
	go fl.run(toClient)
}

// Bytes implements Flow.
func (fl *copying) Bytes() (toEndpoint, toClient int64) {
	return fl.toEndpoint.bytes.Load(), fl.toClient.bytes.Load()
}

// Break implements Flow.
func (fl *copying) Break() { fl.reset(outcome.Drained, nil) }

// Retire implements Flow.
func (fl *copying) Retire(by time.Time) {
	fl.mu.Lock()
	defer fl.mu.Unlock()
	if fl.running.Load() == 0 {
		return
	}
	fl.limits.Retire = by
	fl.watch.restart(time.Now())
	if fl.timer == nil {
		fl.timer = time.AfterFunc(fl.limits.period(), fl.look)
	} else {
		fl.timer.Reset(fl.limits.period())
	}
}

// look checks the limits of the pair, and ends it if one has been reached.
func (fl *copying) look() {
	fl.mu.Lock()
	end := fl.watch.verdict(fl.limits, time.Now(), fl.moved.Swap(false), fl.half, fl)
	if end == outcome.Open && fl.timer != nil {
		fl.timer.Reset(fl.limits.period())
	}
	fl.mu.Unlock()
	if end != outcome.Open {
		fl.reset(end, nil)
	}
}

// unsent implements queue.
func (fl *copying) unsent() int { return fl.sum(socketUnsent) }

// unread implements queue. It excludes bytes that a goroutine has read and not yet written.
func (fl *copying) unread() int { return fl.sum(socketUnread) }

// sum returns the sum of count(socket) for both sockets.
func (fl *copying) sum(count func(syscall.RawConn) int) (n int) {
	for _, c := range []side{fl.toEndpoint.from, fl.toEndpoint.to} {
		if raw := rawOf(c); raw != nil {
			n += count(raw)
		}
	}
	return n
}

// run calls move, which moves bytes in one direction until that ends. The direction that ends last closes the pair.
func (fl *copying) run(move func()) {
	move()
	if fl.running.Add(-1) > 0 {
		return
	}
	fl.toEndpoint.from.Close()
	fl.toEndpoint.to.Close()
	fl.mu.Lock()
	if fl.timer != nil {
		fl.timer.Stop()
		fl.timer = nil
	}
	end, untaken := fl.ending, fl.untaken
	fl.mu.Unlock()
	toEndpoint, toClient := fl.Bytes()
	fl.owner.Ended(result(end.outcome, end.err, toEndpoint, toClient, untaken))
}

// reader reads from a Conn. Most pairs are idle most of the time, so a reader should have a large buffer only while
// there are bytes.
type reader interface {
	// next waits for bytes, and returns them, or the error that ends the stream, or both.
	next() ([]byte, error)
	// release releases the bytes that next has returned.
	release()
}

// copySize is the buffer size of io.Copy.
const copySize = 32 << 10

var copyBuffers = sync.Pool{New: func() any { return new([copySize]byte) }}

// plainReader reads from any Conn. It waits in Read, which needs a buffer, so it uses a small one. After a read that
// fills the buffer, the next read uses a large one.
type plainReader struct {
	from  io.Reader
	small [1 << 10]byte
	large *[copySize]byte
	full  bool // the last read has filled its buffer
}

func (r *plainReader) next() ([]byte, error) {
	buf := r.small[:]
	if r.full {
		r.large = copyBuffers.Get().(*[copySize]byte)
		buf = r.large[:]
	}
	n, err := r.from.Read(buf)
	r.full = n == len(buf)
	return buf[:n], err
}

func (r *plainReader) release() {
	if r.large != nil {
		copyBuffers.Put(r.large)
		r.large = nil
	}
}

func (fl *copying) copy(d *direction, from, to Conn) {
	reader := readerOf(from)
	for {
		b, err := reader.next()
		var failed error
		if len(b) > 0 {
			fl.comes(d)
			failed = fl.write(d, func() error {
				w, err := to.Write(b)
				d.bytes.Add(int64(w))
				return err
			})
		}
		reader.release()
		switch {
		case failed != nil:
			// The destination may have sent bytes before it closed, such as a response to an incomplete request. So the
			// opposite direction continues until these are delivered.
			fl.ended(d.toReset, failed)
			return
		case err != nil:
			fl.readEnded(d, err)
			return
		}
	}
}

// comes is called when bytes for direction d have arrived.
func (fl *copying) comes(d *direction) {
	fl.moved.Store(true)
	if d.begun {
		return
	}
	d.begun = true
	fl.reporting.Lock()
	defer fl.reporting.Unlock()
	if now := time.Now(); d == &fl.toClient {
		fl.owner.EndpointFirstByte(now)
	} else {
		fl.owner.ClientFirstByte(now)
	}
}

// readEnded is called when d.from has no more bytes, since it has ended (io.EOF) or failed.
func (fl *copying) readEnded(d *direction, err error) {
	if errors.Is(err, io.EOF) {
		err = fl.writeError(fl.opposite(d))
	}
	if err != nil {
		end := d.fromReset
		fl.mu.Lock()
		if raw := rawOf(d.from); d == &fl.toClient && raw != nil && answered(fl.ending.outcome, err, fl.toEndpoint.bytes.Load(), d.bytes.Load(), socketUnsent(raw)) {
			end, err = outcome.ClientClosed, nil
		}
		fl.mu.Unlock()
		fl.reset(end, err) // the bytes from d.from may be incomplete
		return
	}
	fl.ended(d.fromEnd, nil)
	// An error means that d.to is closed or has failed; a read of d.to reports it.
	_ = d.to.CloseWrite()
}

// writeError returns the error of an earlier write to d.to. It is called when a read of d.to has returned io.EOF: after
// a failed write, a read returns io.EOF instead of the error. A write may still be about to record its error, so
// writeError waits for it.
func (fl *copying) writeError(d *direction) error {
	if gone(d.to) { // then a write returns at once; otherwise it may take forever
		d.busy.Lock()
		defer d.busy.Unlock()
	}
	fl.mu.Lock()
	defer fl.mu.Unlock()
	return d.failed
}

// opposite returns the other direction.
func (fl *copying) opposite(d *direction) *direction {
	if d == &fl.toClient {
		return &fl.toEndpoint
	}
	return &fl.toClient
}

// ended is called when one direction has ended and the opposite one may continue.
func (fl *copying) ended(end outcome.Outcome, err error) {
	fl.mu.Lock()
	defer fl.mu.Unlock()
	fl.cause(end, err)
	fl.becomeHalf()
}

// cause records why the pair ends. The caller holds mu.
func (fl *copying) cause(end outcome.Outcome, err error) {
	if raw := rawOf(fl.toEndpoint.from); fl.ending.outcome == outcome.ClientClosed && end != outcome.EndpointClosed && raw != nil {
		fl.untaken = socketUnsent(raw)
	}
	fl.ending.cause(end, err)
}

// becomeHalf makes Limits.HalfClosed apply from now on: one direction has ended, or is held up before its end. The
// caller holds mu.
func (fl *copying) becomeHalf() {
	fl.half = true
	fl.watch.restart(time.Now())
}

// reset ends both directions at once, with a reset for both sides.
func (fl *copying) reset(end outcome.Outcome, err error) {
	fl.mu.Lock()
	fl.cause(end, err)
	fl.mu.Unlock()
	for _, c := range []side{fl.toEndpoint.from, fl.toEndpoint.to} {
		_ = c.SetLinger(0)
		c.Close()
	}
}
