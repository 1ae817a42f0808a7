package forward

import (
	"errors"
	"syscall"
	"time"

	"github.com/usherproxy/usher/proxy/outcome"
)

// Owner receives the events of a pair.
type Owner interface {
	// ClientFirstByte is called once, when the client's first byte has arrived, unless it arrived before the pair was forwarded.
	// EndpointFirstByte is called once, when the endpoint's first byte has arrived.
	ClientFirstByte(now time.Time)
	EndpointFirstByte(now time.Time)
	Ended(outcome.Result)
}

// Done is an Owner that only uses Ended.
type Done func(outcome.Result)

// ClientFirstByte implements Owner.
func (Done) ClientFirstByte(time.Time) {}

// EndpointFirstByte implements Owner.
func (Done) EndpointFirstByte(time.Time) {}

// Ended implements Owner.
func (d Done) Ended(r outcome.Result) { d(r) }

// Flow is a pair that is being forwarded. Any goroutine may call its methods, also after the pair has ended.
type Flow interface {
	// Bytes returns the bytes forwarded so far in each direction.
	Bytes() (toEndpoint, toClient int64)
	// Break ends the pair soon, as Drained: both sides get a reset.
	Break()
	// Retire sets the pair's Limits.Retire.
	Retire(by time.Time)
}

// ending is the outcome of a pair so far.
type ending struct {
	outcome outcome.Outcome // Open until an end or a failure
	err     error
}

// cause records why the pair ends.
func (e *ending) cause(o outcome.Outcome, err error) {
	if yields(e.outcome, o) {
		e.outcome, e.err = leftBehind(e.outcome, o), plain(err)
	}
}

// yields reports whether outcome o is replaced if the pair has another cause to, too. A later failure replaces an
// earlier FIN; otherwise the first cause counts.
func yields(o, to outcome.Outcome) bool {
	fin := func(o outcome.Outcome) bool { return o == outcome.ClientClosed || o == outcome.EndpointClosed }
	return o == outcome.Open || fin(o) && !fin(to)
}

// leftBehind returns o, the new outcome of a pair whose outcome was before. It returns NoResponse instead if the client
// had ended its side and the endpoint did not follow: see result.
func leftBehind(before, o outcome.Outcome) outcome.Outcome {
	if before == outcome.ClientClosed && o == outcome.HalfClosed {
		return outcome.NoResponse
	}
	return o
}

// answered reports whether the reset of an endpoint, with err, only answered the client's FIN (SO_LINGER 0 after the
// end of the stream). o is the pair's outcome so far. The endpoint must have taken every byte, which unsent shows, and
// have sent something if it got any. The client still sees the reset: more bytes may have been under way.
func answered(o outcome.Outcome, err error, toEndpoint, toClient int64, unsent int) bool {
	const fin = 1 // it counts as a byte, and its ACK may be late
	return o == outcome.ClientClosed && errors.Is(err, syscall.ECONNRESET) && unsent <= fin && (toClient > 0 || toEndpoint == 0)
}

// result returns the result of a pair that ended with outcome o and these bytes. untaken is for a client that had ended
// its side before it reset the connection, or before a limit ended the pair: the number of bytes that it did not
// acknowledge. If these are all its bytes, the client had left, and its kernel refused them.
//
// NoResponse needs evidence from the peers: the client had sent bytes and reset the connection, or ended its side while
// the endpoint kept its own open. A client that is lost (ETIMEDOUT) may not have waited for anything, and where the
// endpoint ends its side, too, the protocol may have no answers.
func result(o outcome.Outcome, err error, toEndpoint, toClient int64, untaken int) outcome.Result {
	switch none := toEndpoint > 0 && toClient <= int64(untaken); {
	case o == outcome.NoResponse && !none:
		o = outcome.HalfClosed
	case o == outcome.ClientReset && none && !errors.Is(err, syscall.ETIMEDOUT):
		o = outcome.NoResponse
	}
	return outcome.Result{Outcome: o, Err: err, ToEndpoint: toEndpoint, ToClient: toClient}
}

// plain returns the system error in err, without the addresses that net adds to it.
func plain(err error) error {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return errno
	}
	return err
}

// Limits limit the duration of a pair; 0 means no limit. They are checked from time to time, so a pair may last an
// eighth longer. A limit ends a pair with a reset of both sides, so that they do not take it for the regular end of the
// stream.
type Limits struct {
	// HalfClosed applies while nothing moves and one direction has ended, or one side has ended and the other does not
	// accept the bytes before that.
	HalfClosed time.Duration
	// Idle applies while nothing moves.
	Idle time.Duration
	// Age is the maximum duration of a pair. In its last eighth, the pair ends as soon as nothing moves.
	Age time.Duration
	// Retire, unless it is zero, is the time at which a pair ends at the latest. It ends earlier, as soon as nothing
	// has moved for a lull and its peers have accepted everything.
	Retire time.Time
}

// lull is the time without movement after which a pair may be retired.
const lull = 250 * time.Millisecond

// The time between two checks of a pair is an eighth of its shortest limit, but within these bounds.
const (
	minPeriod = 10 * time.Millisecond
	maxPeriod = 30 * time.Second
)

// period returns the time between two checks, or 0 if there are no limits.
func (l Limits) period() time.Duration {
	var shortest time.Duration
	for _, limit := range []time.Duration{l.HalfClosed, l.Idle, l.Age} {
		if limit > 0 && (shortest == 0 || limit < shortest) {
			shortest = limit
		}
	}
	switch {
	case !l.Retire.IsZero():
		return lull / 2
	case shortest == 0:
		return 0
	}
	return min(max(shortest/8, minPeriod), maxPeriod)
}

// watch is the state with which a pair is compared with its limits.
type watch struct {
	began  time.Time
	silent time.Time // start of the time without movement, as far as known
	unsent int       // see queue, at the first check since then; -1 before that
}

func newWatch(now time.Time) watch { return watch{began: now, silent: now, unsent: -1} }

// restart makes the time without movement start at now.
func (w *watch) restart(now time.Time) { w.silent, w.unsent = now, -1 }

// queue counts the bytes of a pair that are under way.
type queue interface {
	// unread returns the bytes that have arrived and that the pair has not written yet, as far as known.
	unread() int
	// unsent returns the bytes that the pair has written and the peers have not acknowledged, as far as known. With a
	// slow reader it decreases while the pair cannot write more.
	unsent() int
}

// verdict returns the outcome with which the pair must end now, or outcome.Open. moved means that bytes have moved
// since the last check, half that HalfClosed applies.
func (w *watch) verdict(l Limits, now time.Time, moved, half bool, q queue) outcome.Outcome {
	if moved {
		w.restart(now)
	}
	first := w.unsent < 0 // nothing to compare with: checks may have been late, or skipped while the pair was handed over
	if first && !moved {
		w.unsent = q.unsent()
	}
	age, silence := now.Sub(w.began), now.Sub(w.silent)
	var end outcome.Outcome
	switch {
	case !l.Retire.IsZero() && (!now.Before(l.Retire) || silence >= lull && q.unsent() == 0 && q.unread() == 0):
		return outcome.EndpointDrained
	case l.Age > 0 && (age >= l.Age || age >= l.Age-l.Age/8 && !moved):
		return outcome.MaxAge
	case l.HalfClosed > 0 && half && silence >= l.HalfClosed:
		end = outcome.HalfClosed
	case l.Idle > 0 && silence >= l.Idle:
		end = outcome.Idle
	default:
		return outcome.Open
	}
	if unsent := q.unsent(); first || unsent != w.unsent {
		w.silent, w.unsent = now, unsent
		return outcome.Open
	}
	return end
}
