// Package trace keeps what happened to each connection, for people: every step
// leaves an [Event] in a [Log].
//
// A Log is a ring in memory. Writing to it takes a lock for as long as copying
// one event takes, and waits for nobody. A reader has a place of its own in the
// ring and takes events at its own pace; one that is too slow misses events and
// is told how many. A reader that never reads costs its place, a few bytes.
package trace
