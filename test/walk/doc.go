// Command walk measures how much code a reader passes in one event, such as a TCP
// connection or an added endpoint: files, packages, functions and calls. It writes the
// page docs/walk.md, with the calls of a connection and of a change.
//
//	make walk                      measures and writes the page
//	go run ./test/walk -runs 20    measures 20 times and prints the variation
//
// The working tree is not changed. walk rewrites a copy of it, so that each function
// records its entry and return ([recorder]). The program test/walk/events, built from
// the copy with coverage counters, makes the events.
//
// The recorder's counts are exact: calls of data plane functions between the first and
// the last. Much of the control side runs in loops that start with the process. So
// coverage counters count there: a function counts if one of its statements ran that
// does not run when nothing happens.
//
// The spec of this package checks each figure against its ceiling in ceilings.go.
package main
