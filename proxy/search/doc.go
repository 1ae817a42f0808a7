// Package search finds, for one client's connection, association or session, an endpoint that answers. It decides which
// endpoint is tried next, how long an attempt may take, when all are tried again, and when to give up.
//
// A [Search] is a state machine without sockets, goroutines or timers. Its driver calls [Search.Next], performs the
// returned step, and reports the result:
//
//	Dial     connect to that endpoint; then Connected, Failed or Left
//	Wait     all were tried, or the endpoints that the client may use have no free slot (they are at
//	         their connection limit): wait until Step.For is over, Step.Woken has a value or, unless
//	         Step.Behind is set, the endpoints are replaced; then call Next
//	GiveUp   there is no endpoint, for the given reason
//
// Type Connecting of package frontend drives it, for all protocols. [Preview] returns the order without a search.
//
// Time is divided into the time slots of the schedule, and an attempt may take as long as its time slot. After an
// attempt that fails sooner, the next one begins in the same time slot, and may take as long. After all were tried, the
// search waits for the rest of the time slot before it tries them again, since a restarting Pod is often back soon.
// After such a wait in the last time slot, it makes only one more attempt. Without a schedule, as for UDP, each
// endpoint is tried once, and the driver sets the time limit.
//
// The next endpoint comes from package affinity, if the client had one, and otherwise from package balance. An endpoint
// that fails is quarantined in balance and removed from affinity.
package search
