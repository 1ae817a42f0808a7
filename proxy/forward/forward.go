package forward

import (
	"errors"
	"syscall"
	"time"

	"github.com/usherproxy/usher/proxy/outcome"
)

// Owner receives the events of a pair.
type Owner interface {
	// ClientFirstByte is called when the client's first byte has arrived, unless that was before the pair was
	// forwarded. EndpointFirstByte is called when the endpoint's first byte has arrived. Ended is called last. Each is
	// called at most once.
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

// Flow is a pair that is being forwarded. Any goroutine may call its methods, even after the pair has ended.
type Flow interface {
	// Bytes returns the bytes forwarded so far in each direction.
	Bytes() (toEndpoint, toClient int64)
	// Break makes the pair end soon with outcome Drained, and resets both sides.
	Break()
	// Retire sets the pair's Limits.Retire.
	Retire(by time.Time)
}

// ending is the outcome of a pair so far.
type ending struct {
	outcome outcome.Outcome // Open until one side has ended or failed
	err     error
}

// cause records o and err as the reason why the pair ends, unless the earlier outcome stays (see replaced).
func (e *ending) cause(o outcome.Outcome, err error) {
	if next := replaced(e.outcome, o); next != e.outcome {
		e.outcome, e.err = next, plain(err)
	}
}

// replaced returns the new outcome of a pair. The parameter before is its outcome so far, and o is that of the latest
// event. A failure or limit replaces an earlier FIN; otherwise the first outcome stays. HalfClosed becomes NoResponse
// if the client had ended its side and the endpoint did not end its own. See result.
func replaced(before, o outcome.Outcome) outcome.Outcome {
	fin := func(o outcome.Outcome) bool { return o == outcome.ClientClosed || o == outcome.EndpointClosed }
	switch {
	case before != outcome.Open && !(fin(before) && !fin(o)):
		return before
	case before == outcome.ClientClosed && o == outcome.HalfClosed:
		return outcome.NoResponse
	}
	return o
}

// answered reports whether err, an endpoint's reset, was only its reply to the client's FIN, and so no failure. Some
// servers close with SO_LINGER 0 after the end of the stream. o is the pair's outcome so far, and unsent the number of
// bytes that the endpoint has not acknowledged. There must be none, and the endpoint must have sent something if it
// received any. The client still gets the reset, since bytes from the endpoint may be lost.
func answered(o outcome.Outcome, err error, toEndpoint, toClient int64, unsent int) bool {
	const fin = 1 // FIN counts as a byte, and its ACK may be late
	return o == outcome.ClientClosed && errors.Is(err, syscall.ECONNRESET) && unsent <= fin && (toClient > 0 || toEndpoint == 0)
}

// result returns the result of a pair that ended with outcome o and these numbers of bytes. untaken is the number of
// bytes that the client did not acknowledge. It matters only in two cases: after the client had ended its side, it
// reset the connection, or the pair reached a limit. If untaken includes all bytes for the client, the client had left
// before the response, and its kernel refused the bytes.
//
// NoResponse also needs evidence that the client expected a response. The client must have sent bytes. It must also
// have reset the connection, or have ended its side while the endpoint kept its own side open. A lost client
// (ETIMEDOUT) may not have waited for anything. If the endpoint ended its side, too, the protocol may have no
// responses.
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
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		return errno
	}
	return err
}

// Limits limit the duration of a pair; 0 means no limit. Pairs are checked at intervals, so a pair may stay open for up
// to an eighth longer. A pair that reaches a limit ends with a reset of both sides, so that neither mistakes this for
// the regular end of the stream.
type Limits struct {
	// HalfClosed is the maximum time without movement once one side has ended its direction, even if the other side has
	// not accepted all bytes of that direction yet.
	HalfClosed time.Duration
	// Idle is the maximum time without movement.
	Idle time.Duration
	// Age is the maximum duration of a pair. In its last eighth, the pair ends as soon as nothing moves.
	Age time.Duration
	// Retire, unless it is zero, is the latest time at which the pair ends. The pair ends earlier if nothing has moved
	// for the duration lull, no bytes are unread, and both peers have acknowledged all bytes.
	Retire time.Time
}

// lull is the minimum time without movement before a pair with Limits.Retire ends.
const lull = 250 * time.Millisecond

// The time between two checks of a pair is at most an eighth of its shortest limit, but within these bounds. With
// Retire, it is at most half of lull.
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

// watch is the state of a pair that verdict needs to check the limits.
type watch struct {
	began  time.Time
	silent time.Time // start of the time without movement
	unsent int       // queue.unsent at the first check of the silence; -1 before it
}

// restart makes the time without movement start at now.
func (w *watch) restart(now time.Time) { w.silent, w.unsent = now, -1 }

// queue counts the bytes of a pair that have not reached their peer.
type queue interface {
	// unread returns the number of bytes that have arrived and that the pair has not written yet, as far as known.
	unread() int
	// unsent returns the number of bytes that the pair has written and the peers have not acknowledged, as far as
	// known. If a peer reads slowly, this number decreases even while the pair cannot write more.
	unsent() int
}

// verdict returns the outcome with which the pair must end now, or outcome.Open. moved means that bytes have moved
// since the last check; half means that HalfClosed applies.
func (w *watch) verdict(l Limits, now time.Time, moved, half bool, q queue) outcome.Outcome {
	if moved {
		w.restart(now)
	}
	// If unsent bytes become fewer, the pair is not silent. first means that this is the first check since the silence
	// began, so no earlier number is known. Usually no limit is reached that early. If one is, because checks were late
	// or were skipped during a handover, the silence starts again.
	first := w.unsent < 0
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
