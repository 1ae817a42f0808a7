package balance

import "time"

// Filter makes choices skip endpoints that could be used. A Set has those that its service port
// asks for, most have none. It may be used from any goroutine.
type Filter interface {
	// Skip reports whether a choice at now skips e. turn is another one for each choice and, in
	// one choice, for each endpoint that was skipped before.
	Skip(e *Endpoint, now time.Time, turn uint32) bool
	// Waits reports whether clients wait for an endpoint that is skipped. Otherwise they use it if no
	// other is left.
	Waits() bool
}

// limit skips endpoints that are full. The bound is the Pool's, so that it holds for a Set from before it changed.
type limit struct{}

func (limit) Skip(e *Endpoint, _ time.Time, _ uint32) bool { return e.Full() }

func (limit) Waits() bool { return true }

// Full reports whether the endpoint has as many connections as it may.
func (e *Endpoint) Full() bool {
	bound := e.pool.bound.Load()
	return bound > 0 && e.Active.Load() >= bound
}
