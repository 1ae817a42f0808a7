// Package trace records the steps of each connection and each change as an [Event] in a [Log], for users to read.
//
// All data of a connection is in its [conn.Record]: its attempts and its outcome. A Log holds the open connections and
// the last steps in memory. A step is a small record that is expanded into an Event when it is read. A Log has several
// parts, each with its own lock and ring buffer of steps, and each connection belongs to one part. So concurrent
// writers rarely wait for each other, and for at most one reader. A separate ring holds changes, since steps would soon
// displace them.
//
// A reader has its own position in each ring, and takes events in the order of their numbers, at its own pace. A reader
// that is too slow misses events, and receives the number missed. A reader that never reads costs only the memory of
// its positions.
package trace
