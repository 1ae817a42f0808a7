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
		e.outcome, e.err = o, plain(err)
	}
}

// yields reports whether o is not how a pair ends if it has another cause, too. A later
// failure says more than an earlier FIN; otherwise the first cause counts.
func yields(o, to outcome.Outcome) bool {
	fin := func(o outcome.Outcome) bool { return o == outcome.ClientClosed || o == outcome.EndpointClosed }
	return o == outcome.Open || fin(o) && !fin(to)
}

// answered reports whether an endpoint that was reset with err has only answered the client's FIN
// (SO_LINGER 0 after the end of the stream), if the pair ended with o until then: the endpoint has
// taken every byte, of which unsent tells, and has sent something if it was asked.
// The client still sees the reset: more may have been under way.
func answered(o outcome.Outcome, err error, toEndpoint, toClient int64, unsent int) bool {
	const fin = 1 // counts as a byte, and its ACK may be late
	return o == outcome.ClientClosed && errors.Is(err, syscall.ECONNRESET) && unsent <= fin && (toClient > 0 || toEndpoint == 0)
}

// result returns the result of a pair that ended with o and has moved so many bytes.
func result(o outcome.Outcome, err error, toEndpoint, toClient int64) outcome.Result {
	if o == outcome.EndpointClosed && toEndpoint > 0 && toClient == 0 {
		o = outcome.Unanswered
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
