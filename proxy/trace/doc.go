// Package trace keeps what happened to each connection, and what changed
// meanwhile, for people: every step leaves an [Event] in a [Log].
//
// What is known of a connection is in one place, its [conn.Record], with the attempts that were
// made for it and how it ended. A Log knows the connections that have not ended, and the order
// of the last steps: a ring in memory of small records, which are told in full when they
// are read. Connections are divided among some parts of the Log, each with a lock and a
// ring of its own, so that those who report steps at the same time rarely wait for each
// other, and for one reader at the most. Another ring has changes, which connections
// would soon have pushed out.
//
// A reader has a place of its own in the rings and takes events in the order of their
// numbers, at its own pace; one that is too slow misses events and is told how many. A
// reader that never reads costs its places, a few bytes.
package trace
