// Package probe finds out whether addresses answer, so that no client has to.
//
// A [Prober] is told of an address, or more on what is asked there, and who wants to know, a [Target]. When the time
// comes it makes one probe, for all that want to know about that address, and tells
// them; each says when it wants the next one, if it does. However many addresses
// wait, only so many probes begin in a second, and only so many are under way; if there
// are more, those that have just failed come before those that have been dead for long, or all have their turn.
//
// The package knows nothing of Services, and imports none of our packages. It has one
// goroutine while somebody waits, and one for each probe that is under way.
package probe
