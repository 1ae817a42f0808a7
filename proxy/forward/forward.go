package forward

import (
	"errors"
	"syscall"
	"time"

	"github.com/usherproxy/usher/proxy/outcome"
)

// Owner is told what becomes of a pair.
type Owner interface {
	// Asked is told, once, when the client's first byte has come, unless that had come before
	// the pair was forwarded; Answered, when the endpoint's has.
	Asked(now time.Time)
	Answered(now time.Time)
	Ended(outcome.Result)
}

// Done is an Owner who wants to know only when the pair has ended.
type Done func(outcome.Result)

// Asked implements Owner.
func (Done) Asked(time.Time) {}

// Answered implements Owner.
func (Done) Answered(time.Time) {}

// Ended implements Owner.
func (d Done) Ended(r outcome.Result) { d(r) }

// Flow is a pair that is being forwarded. Its methods may be called from any
// goroutine, also after it has ended.
type Flow interface {
	// Bytes returns how many bytes went each way so far.
	Bytes() (toEndpoint, toClient int64)
	// Break ends the pair soon, as Drained: both sides get a reset.
	Break()
	// Retire sets the pair's Limits.Retire.
	Retire(by time.Time)
}

// ending is how a pair ends.
type ending struct {
	outcome outcome.Outcome // Open while nothing has happened
	err     error
}

// cause notes why the pair ends.
func (e *ending) cause(o outcome.Outcome, err error) {
	if yields(e.outcome, o) {
		e.outcome, e.err = leftBehind(e.outcome, o), plain(err)
	}
}

// yields reports whether o is not how a pair ends if it has another cause, too. A later
// failure says more than an earlier FIN; otherwise the first cause counts.
func yields(o, to outcome.Outcome) bool {
	fin := func(o outcome.Outcome) bool { return o == outcome.ClientClosed || o == outcome.EndpointClosed }
	return o == outcome.Open || fin(o) && !fin(to)
}

// leftBehind returns o, how a pair ends that ended with before until then, or NoResponse if the client had ended
// its side and the endpoint did not follow: see result.
func leftBehind(before, o outcome.Outcome) outcome.Outcome {
	if before == outcome.ClientClosed && o == outcome.HalfClosed {
		return outcome.NoResponse
	}
	return o
}

// answered reports whether an endpoint that was reset with err has only answered the client's FIN
// (SO_LINGER 0 after the end of the stream), if the pair ended with o until then: the endpoint has
// taken every byte, of which unsent tells, and has sent something if it was asked.
// The client still sees the reset: more may have been under way.
func answered(o outcome.Outcome, err error, toEndpoint, toClient int64, unsent int) bool {
	const fin = 1 // counts as a byte, and its ACK may be late
	return o == outcome.ClientClosed && errors.Is(err, syscall.ECONNRESET) && unsent <= fin && (toClient > 0 || toEndpoint == 0)
}

// result returns the result of a pair that ended with o and has moved so many bytes. Of those to a client that had ended
// its side before it reset the connection, or before the pair ended for its limits, untaken were not acknowledged: if
// that is all, it had left, and its kernel refused them.
//
// NoResponse is what the peers have shown: the client had sent some and reset the connection, or ended its side
// while the endpoint kept its own open. A client that is lost (ETIMEDOUT) may not have waited for anything, and where
// the endpoint ends its side, too, the protocol may have no answers.
func result(o outcome.Outcome, err error, toEndpoint, toClient int64, untaken int) outcome.Result {
	switch none := toEndpoint > 0 && toClient <= int64(untaken); {
	case o == outcome.NoResponse && !none:
		o = outcome.HalfClosed
	case o == outcome.ClientReset && none && !errors.Is(err, syscall.ETIMEDOUT):
		o = outcome.NoResponse
	}
	return outcome.Result{Outcome: o, Err: err, ToEndpoint: toEndpoint, ToClient: toClient}
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

// Limits bound how long a pair lasts; 0 means that there is no such bound. They
// are looked at from time to time, so that a pair may last an eighth longer. What
// ends for its limits ends with a reset of both sides: they shall not take it for
// the regular end of what was sent.
type Limits struct {
	// HalfClosed is how long a pair lasts in which one direction has ended, or one
	// side has ended and the other does not take what came before that, and nothing
	// moves.
	HalfClosed time.Duration
	// Idle is how long a pair lasts in which nothing moves.
	Idle time.Duration
	// Age is how long a pair lasts at the most. In the last eighth of it, it ends
	// as soon as nothing moves.
	Age time.Duration
	// Retire, unless it is zero, is when a pair ends: from now on as soon as nothing has
	// moved for a lull and its peers have taken everything, at that time in any case.
	Retire time.Time
}

// lull is how long nothing moves in a moment in which a pair may be retired.
const lull = 250 * time.Millisecond

// The time between two looks at a pair is an eighth of its shortest limit, but
// within these bounds.
const (
	minPeriod = 10 * time.Millisecond
	maxPeriod = 30 * time.Second
)

// period returns the time between two looks, or 0 if there are no limits.
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

// watch is what has to be known of a pair to compare it with its limits.
type watch struct {
	began  time.Time
	silent time.Time // since then, as far as the last look could tell
	unsent int       // see queue, at the first look since then; -1 before that
}

func newWatch(now time.Time) watch { return watch{began: now, silent: now, unsent: -1} }

// restart makes the silence begin now.
func (w *watch) restart(now time.Time) { w.silent, w.unsent = now, -1 }

// queue is what a pair has on its way.
type queue interface {
	// unread returns how many bytes have come that the pair has not written yet, as far as that can be told.
	unread() int
	// unsent returns how many bytes that it has written the peers have not taken yet, as far as
	// that can be told. For a reader that is slow, it becomes less while there is no
	// room for more.
	unsent() int
}

// verdict returns how the pair is to end, or outcome.Open. moved says whether anything has
// moved since the last look, half whether HalfClosed counts.
func (w *watch) verdict(l Limits, now time.Time, moved, half bool, q queue) outcome.Outcome {
	if moved {
		w.restart(now)
	} else if w.unsent < 0 {
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
	if unsent := q.unsent(); unsent != w.unsent {
		w.silent, w.unsent = now, unsent
		return outcome.Open
	}
	return end
}
