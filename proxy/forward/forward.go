package forward

import (
	"errors"
	"syscall"
	"time"
)

// End says how a pair ended.
type End uint8

// The ends of a pair.
const (
	ClientClosed      End = iota + 1 // both directions ended, the client's first
	EndpointClosed                   // both directions ended, the endpoint's first
	ClientReset                      // the client's connection failed
	EndpointReset                    // the endpoint's connection failed
	HalfClosedTimeout                // see Limits.HalfClosed
	IdleTimeout                      // see Limits.Idle
	Aged                             // see Limits.Age
	Broken                           // Flow.Break was called
	Retired                          // see Limits.Retire
)

// Result is what became of a pair.
type Result struct {
	End                  End
	Err                  error // for ClientReset and EndpointReset, why
	ToEndpoint, ToClient int64 // bytes
}

// Owner is told what becomes of a pair.
type Owner interface {
	// Asked is told, once, when the client's first byte has come, unless that had come before
	// the pair was forwarded; Answered, when the endpoint's has.
	Asked(now time.Time)
	Answered(now time.Time)
	Ended(Result)
}

// Done is an Owner who wants to know only when the pair has ended.
type Done func(Result)

// Asked implements Owner.
func (Done) Asked(time.Time) {}

// Answered implements Owner.
func (Done) Answered(time.Time) {}

// Ended implements Owner.
func (d Done) Ended(r Result) { d(r) }

// Flow is a pair that is being forwarded. Its methods may be called from any
// goroutine, also after it has ended.
type Flow interface {
	// Bytes returns how many bytes went each way so far.
	Bytes() (toEndpoint, toClient int64)
	// Break ends the pair soon: both sides get a reset.
	Break()
	// Retire sets the pair's Limits.Retire.
	Retire(by time.Time)
}

// outcome is how a pair ends.
type outcome struct {
	end End // 0 while nothing has happened
	err error
}

// cause notes why the pair ends.
func (o *outcome) cause(end End, err error) {
	if o.end.yields(end) {
		o.end, o.err = end, plain(err)
	}
}

// yields reports whether e is not how a pair ends if it has another cause, too. A later
// failure says more than an earlier FIN; otherwise the first cause counts.
func (e End) yields(to End) bool {
	fin := func(e End) bool { return e == ClientClosed || e == EndpointClosed }
	return e == 0 || fin(e) && !fin(to)
}

// answeredBy reports whether an endpoint that was reset with err has only answered the client's FIN
// (SO_LINGER 0 after the end of the stream), if the pair ended with e until then: the endpoint has
// taken every byte, of which unsent tells, and has sent something if it was asked.
// The client still sees the reset: more may have been under way.
func (e End) answeredBy(err error, toEndpoint, toClient int64, unsent int) bool {
	const fin = 1 // counts as a byte, and its ACK may be late
	return e == ClientClosed && errors.Is(err, syscall.ECONNRESET) && unsent <= fin && (toClient > 0 || toEndpoint == 0)
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
