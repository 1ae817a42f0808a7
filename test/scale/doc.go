// Package scale holds what must be true of usher with ten thousand service ports,
// in each portal mode: how long it takes to start, how soon a Service that is
// added can be reached, what a connection costs, how much memory it takes, and
// that neither a handover, nor being killed, nor somebody who flushes its rules
// does more harm than it must.
//
//	go test ./test/scale -v -ginkgo.focus=.
//
// tests the program as it is released, in about 3 minutes.
// Each spec prints what it measured in one line that begins with "figure:", and
// fails beyond the target that is written there. Targets hold for a machine that
// does nothing else; a spec allows more (see slack) where other programs compete
// for two cores.
package scale
