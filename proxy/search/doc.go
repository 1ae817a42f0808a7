// Package search decides how one client's connection, association or session finds
// an endpoint that answers: which one is tried next, how long an attempt may take,
// when all are asked again, and when to give up.
//
// A [Search] is a state machine without sockets, goroutines or timers. Whoever drives
// it asks [Search.Next] what to do, does it, and tells how it ended:
//
//	Dial     connect to that endpoint; then Answered, Failed or Left
//	Wait     for so long, or until the endpoints are replaced by others, or the Step's channel has a
//	         value: all were tried, or no endpoint has a free slot; then Next
//	GiveUp   there is none, and why
//
// Type Connecting of package frontend drives it, for all protocols. [Preview] tells the order without a search.
//
// Time is divided into the slots of the schedule, and an attempt may take as long as
// its slot. One that fails sooner leaves the rest of the slot to the next endpoint.
// When all were tried, the rest of the slot is waited before they are asked again,
// since a Pod that is restarting is often back soon; that goes for the last slot too.
// Without a schedule, as for UDP, each endpoint is tried once, for as long as its
// driver sees fit.
//
// Which endpoint is next is asked of package affinity, for the one that the client
// had, and of package balance, for whose turn it is. An endpoint that fails is
// quarantined there and forgotten here.
package search
