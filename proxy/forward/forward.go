package forward

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Conn is what can be forwarded: a TCP connection, or anything else that can
// be half-closed and reset. *net.TCPConn is one.
type Conn interface {
	net.Conn
	// CloseWrite sends FIN and leaves the other direction open.
	CloseWrite() error
	// SetLinger(0) makes Close send a reset.
	SetLinger(sec int) error
}

// Options say how pairs are forwarded.
type Options struct {
	// HalfClosed is how long a pair lasts in which one direction has ended
	// and the other is silent; 0 means forever.
	HalfClosed time.Duration
}

// End says how a pair ended.
type End uint8

// The ends of a pair.
const (
	ClientClosed      End = iota + 1 // both directions ended, the client's first
	EndpointClosed                   // both directions ended, the endpoint's first
	ClientReset                      // the client's connection failed
	EndpointReset                    // the endpoint's connection failed
	HalfClosedTimeout                // see Options.HalfClosed
	Broken                           // Flow.Break was called
)

// Result is what became of a pair.
type Result struct {
	End                  End
	Err                  error // for ClientReset and EndpointReset, why
	ToEndpoint, ToClient int64 // bytes
}

// Forwarder forwards pairs. It is safe for concurrent use.
type Forwarder struct {
	options Options
}

// New returns a Forwarder.
func New(options Options) *Forwarder { return &Forwarder{options: options} }

// Forward takes over client and endpoint, and returns at once. When the pair
// has ended and both connections are closed, it calls done, once, from a
// goroutine of its own.
func (f *Forwarder) Forward(client, endpoint Conn, done func(Result)) *Flow {
	fl := f.newFlow(client, endpoint, done)
	fl.start(func() { fl.copy(&fl.toEndpoint, client, endpoint) }, func() { fl.copy(&fl.toClient, endpoint, client) })
	return fl
}

func (f *Forwarder) newFlow(client, endpoint side, done func(Result)) *Flow {
	fl := &Flow{halfClosed: f.options.HalfClosed, done: done}
	fl.toEndpoint = direction{from: client, to: endpoint, fromEnd: ClientClosed, fromReset: ClientReset, toReset: EndpointReset, opposite: &fl.toClient}
	fl.toClient = direction{from: endpoint, to: client, fromEnd: EndpointClosed, fromReset: EndpointReset, toReset: ClientReset, opposite: &fl.toEndpoint}
	return fl
}

// start runs the two directions, each by a function that returns when it has
// ended.
func (fl *Flow) start(toEndpoint, toClient func()) {
	fl.running.Store(2)
	go fl.run(toEndpoint)
	go fl.run(toClient)
}

// Flow is a pair that is being forwarded.
type Flow struct {
	halfClosed time.Duration
	done       func(Result)

	toEndpoint, toClient direction
	running              atomic.Int32 // directions that have not ended
	half                 atomic.Bool  // one direction has ended

	mu  sync.Mutex
	end End // how it ended: the first cause counts
	err error
}

// side is what a Flow needs of a connection, whatever it carries.
type side interface {
	// CloseWrite says that nothing more will be sent.
	CloseWrite() error
	// SetLinger(0) makes Close break the connection off.
	SetLinger(sec int) error
	Close() error
	SetReadDeadline(t time.Time) error
	SetWriteDeadline(t time.Time) error
}

// direction is one of the two ways that bytes take.
type direction struct {
	from, to side
	bytes    atomic.Int64
	opposite *direction

	// What it means for the pair if from ends, from fails, to fails.
	fromEnd, fromReset, toReset End
}

// Bytes returns how many bytes went each way so far.
func (fl *Flow) Bytes() (toEndpoint, toClient int64) {
	return fl.toEndpoint.bytes.Load(), fl.toClient.bytes.Load()
}

// Break ends the pair now: both sides get a reset.
func (fl *Flow) Break() { fl.reset(Broken, nil) }

// run moves bytes in one direction until it ends. The last of the two to end
// closes the pair.
func (fl *Flow) run(move func()) {
	move()
	if fl.running.Add(-1) > 0 {
		return
	}
	fl.toEndpoint.from.Close()
	fl.toEndpoint.to.Close()
	fl.mu.Lock()
	r := Result{End: fl.end, Err: fl.err}
	fl.mu.Unlock()
	r.ToEndpoint, r.ToClient = fl.Bytes()
	fl.done(r)
}

// bufferSize is that of Go's own io.Copy.
const bufferSize = 32 << 10

var buffers = sync.Pool{New: func() any { return new([bufferSize]byte) }}

func (fl *Flow) copy(d *direction, from, to Conn) {
	buf := buffers.Get().(*[bufferSize]byte)
	defer buffers.Put(buf)
	for {
		if fl.half.Load() {
			fl.limit(d)
		}
		n, err := from.Read(buf[:])
		if n > 0 {
			w, err := to.Write(buf[:n])
			d.bytes.Add(int64(w))
			if err != nil {
				fl.writeFailed(d, err)
				return
			}
		}
		if err != nil {
			fl.readEnded(d, err)
			return
		}
	}
}

// readEnded is called when from has no more bytes: it has ended, has failed, or
// was silent for too long.
func (fl *Flow) readEnded(d *direction, err error) {
	switch {
	case errors.Is(err, io.EOF):
		fl.cause(d.fromEnd, nil)
		// An error means that to is dead already; reading from it tells.
		_ = d.to.CloseWrite()
		fl.becomeHalf(d)
	case errors.Is(err, os.ErrDeadlineExceeded):
		fl.reset(HalfClosedTimeout, nil)
	default:
		fl.reset(d.fromReset, err)
	}
}

// writeFailed is called when to takes no more bytes. It may have sent some
// before it went away (an answer that did not wait for the whole question), so
// the opposite direction goes on until it has delivered those.
func (fl *Flow) writeFailed(d *direction, err error) {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		fl.reset(HalfClosedTimeout, nil)
		return
	}
	fl.cause(d.toReset, err)
	fl.becomeHalf(d)
}

// becomeHalf is called when d has ended and the opposite direction may go on.
func (fl *Flow) becomeHalf(d *direction) {
	fl.half.Store(true)
	fl.limit(d.opposite)
}

// limit gives d the half-closed time, from now on, to move something.
func (fl *Flow) limit(d *direction) {
	if fl.halfClosed > 0 {
		deadline := time.Now().Add(fl.halfClosed)
		_ = d.from.SetReadDeadline(deadline)
		_ = d.to.SetWriteDeadline(deadline)
	}
}

// reset ends both directions at once and makes both sides see a reset.
func (fl *Flow) reset(end End, err error) {
	fl.cause(end, err)
	for _, c := range []side{fl.toEndpoint.from, fl.toEndpoint.to} {
		_ = c.SetLinger(0)
		c.Close()
	}
}

// cause notes why the pair ends. A later failure says more than an earlier FIN;
// otherwise the first cause counts.
func (fl *Flow) cause(end End, err error) {
	fl.mu.Lock()
	defer fl.mu.Unlock()
	first := fl.end == 0
	afterFIN := fl.end == ClientClosed || fl.end == EndpointClosed
	failure := end != ClientClosed && end != EndpointClosed
	if first || afterFIN && failure {
		fl.end, fl.err = end, plain(err)
	}
}

// plain returns the system error in err, without the addresses that net wraps
// around it.
func plain(err error) error {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return errno
	}
	return err
}
