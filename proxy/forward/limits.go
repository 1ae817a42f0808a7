package forward

import (
	"time"

	"github.com/usherproxy/usher/proxy/outcome"
)

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
		return outcome.Aged
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
