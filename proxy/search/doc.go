// Package search finds an endpoint that answers for one client's connection, association or session. It decides which
// endpoint is tried next, how long an attempt may take, when all are tried again, and when to give up.
//
// A [Search] is a state machine without sockets, goroutines or timers. Its driver calls [Search.Next], performs the
// returned step, and reports the result:
//
//	Dial     connect to that endpoint; then EndpointFirstByte, Failed or Left
//	Wait     for that time, or until the endpoints are replaced by others, or the Step's channel has a
//	         value: all were tried, or no endpoint has a free slot; then Next
//	GiveUp   there is no endpoint, for the given reason
//
// Type Connecting of package frontend drives it, for all protocols. [Preview] returns the order without a search.
//
// Time is divided into the slots of the schedule, and an attempt may take as long as its slot. An attempt that fails
// sooner leaves the rest of the slot to the next endpoint. When all were tried, the rest of the slot is waited before
// they are tried again, since a restarting Pod is often back soon. This includes the last slot. Without a schedule, as
// for UDP, each endpoint is tried once, and the driver sets the time limit.
//
// The next endpoint comes from package affinity, if the client had one, and otherwise from package balance. An endpoint
// that fails is quarantined in balance and removed from affinity.
package search
