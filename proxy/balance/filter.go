package balance

import "time"

// Filter makes choices skip usable endpoints. A Set has the Filters that its service port asks for; most have
// none. It is safe for concurrent use.
type Filter interface {
	// Skip reports whether a choice at now skips e. turn differs between choices. Within a choice, it grows with each
	// endpoint that was skipped, but not while a scheduler in least.go compares endpoints.
	Skip(e *Endpoint, now time.Time, turn uint32) bool
	// Waits reports whether clients wait for a skipped endpoint. Otherwise they use it if no other is left.
	Waits() bool
}

// limit skips full endpoints. It reads the Pool's limit, so that older Sets that have this Filter use a changed limit,
// too.
type limit struct{}

func (limit) Skip(e *Endpoint, _ time.Time, _ uint32) bool { return e.Full() }

func (limit) Waits() bool { return true }

// Full reports whether the endpoint has reached its limit of connections.
func (e *Endpoint) Full() bool {
	bound := e.pool.bound.Load()
	return bound > 0 && e.Active.Load() >= bound
}
