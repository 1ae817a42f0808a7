package balance

// Scheduler says which endpoint of a Set is next. It keeps nothing: what it goes by is
// the turn, and what is known of the endpoints. Each scheduler is a file.
type Scheduler struct {
	reason Reason
	// first returns the index of the endpoint that is looked at first, of n. The others
	// follow in the order of the Set. turn is one more with each choice, and with each
	// endpoint that was passed over.
	first func(turn, n uint32) uint32
	// better reports whether e is to be preferred to best, which was looked at before.
	// Nil: the first that can be used is taken.
	better func(e, best *Endpoint) bool
}
