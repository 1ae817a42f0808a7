// Package trace records the steps of each connection and each change as an [Event] in a [Log], for users to
// read.
//
// A connection's data is in one place, its [conn.Record], with its attempts and how it ended. A Log holds the
// open connections and the order of the last steps: an in-memory ring of small records, which are expanded
// into Events when they are read. A Log has several parts, each with its own lock and ring, and connections
// are divided among them. Concurrent writers therefore rarely wait for each other, and for at most one
// reader. Another ring holds changes, which connections would soon displace.
//
// A reader has its own position in the rings and takes events in the order of their numbers, at its own pace.
// A reader that is too slow misses events, and receives the number missed. A reader that never reads costs
// only its positions, a few bytes.
package trace
