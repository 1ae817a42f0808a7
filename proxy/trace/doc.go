// Package trace keeps what happened to each connection, and what changed
// meanwhile, for people: every step leaves an [Event] in a [Log].
//
// A Log is a ring in memory, and another one for changes, which connections would
// soon have pushed out. Writing to it takes a lock for as long as copying one
// event takes, and waits for one reader at the most. A reader has a place of its own in the rings
// and takes events at its own pace; one that is too slow misses events and is
// told how many. A reader that never reads costs its place, a few bytes.
//
// What is the same for all events of a connection is in one place, its [Life],
// with the attempts that were made for it. A Log knows the lives that have not
// ended.
package trace
