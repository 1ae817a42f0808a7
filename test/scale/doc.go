// Package scale tests usher with 10,000 service ports in each portal mode. It measures
// the time to start, the time until an added Service is reachable, the cost of a
// connection, and the memory. It also counts the connections lost in a handover, in a
// crash, and when another program flushes usher's rules.
//
//	go test ./test/scale -v -ginkgo.focus=.
//
// tests the release build in about 3 minutes.
// Each spec prints its measurement in a line that starts with "figure:", and fails if
// the result misses the target in that line. Targets apply to an otherwise idle
// machine; a spec allows more (see slack) if other programs compete for two CPUs.
package scale
