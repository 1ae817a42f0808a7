// Command walk measures how far a reader walks through the code: the files, packages,
// functions and calls that one event passes, such as one TCP connection or one added
// endpoint. It writes the page docs/walk.md, with the calls of a connection and of a
// change.
//
//	make walk                      measures, and writes the page
//	go run ./test/walk -runs 20    measures twenty times, and prints what varies
//
// The working tree stays as it is. A copy of it is rewritten, so that each function
// records when it is entered and left ([recorder]), and the program test/walk/events,
// built of the copy with coverage counters, makes the events.
//
// What the recorder counts is exact: calls of functions of the data plane, between the
// first and the last. Much of the control side runs in loops that are entered at start,
// which is why coverage counters count there: a function counts if a statement of it
// ran that does not run when nothing happens.
//
// The spec of this package holds each figure to its ceiling in ceilings.go.
package main
