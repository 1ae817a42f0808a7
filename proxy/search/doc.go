// Package search finds, for one client's TCP connection, SCTP association or UDP session, an endpoint that answers. It
// decides which endpoint is tried next, how long an attempt may take, when all endpoints are tried again, and when to
// give up.
//
// A [Search] is a state machine without sockets, goroutines or timers. Its driver calls [Search.Next], performs the
// returned step, and reports the result:
//
//	Dial     connect to Step.Endpoint; then call Connected, Failed, or Abandoned (given up
//	         through no fault of the endpoint)
//	Wait     all endpoints were tried, or the client is queued until an endpoint is below its
//	         connection limit (has a free slot). Call Next when Step.For has passed, Step.Woken
//	         has a value, or the Service's endpoints change. If Step.Behind is set, other clients are
//	         ahead in the queue: ignore changes of the endpoints
//	GiveUp   the client gets no endpoint; Step.Result has the reason
//
// Type Connecting of package frontend drives it, for all protocols. [Preview] returns the order in which a search would
// try the endpoints.
//
// The schedule is a list of time slots. The time limit of an attempt is the length of the time slot in which it begins.
// If it fails, the next attempt begins at once. An attempt that begins late in a time slot has the same limit, and may
// therefore end after the time slot. When all endpoints have been tried, the search waits for the end of the time slot.
// Then it tries them again, since a restarting Pod is often back soon. After such a wait in the last time slot, only
// one attempt follows; its limit is the length of the first time slot. Without a schedule, as for UDP, attempts have no
// time limit, and each endpoint is tried once. But after an attempt of 5 s or more, all other endpoints may be tried
// again. A search makes at most 32 attempts.
//
// The next endpoint is that of the client's affinity, if it is usable and untried; otherwise package balance selects
// it. [Search.Failed] describes how a failure affects the affinity and the endpoint. An endpoint's free slot is
// unrelated to time slots.
package search
