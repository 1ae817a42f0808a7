package conn

import (
	"time"

	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/proxy/balance"
)

// Kind says which step of a connection is reported.
type Kind uint8

// The steps, in the order in which a connection meets them, but for FirstByte.
const (
	Accepted    Kind = iota + 1
	Attempted        // an attempt has ended; if it succeeded, the connection is established
	Waiting          // every endpoint was tried and refused at once; the client waits for the rest of the attempt's slot
	Queued           // the client waited in the queue for an endpoint that had room, and no longer does
	Established      // the connection was inherited with its endpoint; otherwise a step Attempted says so
	Closed
	FirstByte // of the endpoint, for the client
)

// Step is a step of a connection. What is not in it is in the Record, which has it already.
type Step struct {
	Kind    Kind
	Time    time.Time
	Took    time.Duration // since the connection was accepted; of Waiting and Queued, how long the wait is; of FirstByte, see Record.FirstByte
	Attempt int           // how many attempts were made so far; of Attempted, Waiting and Queued
	Result  Result        // of Attempted, as are Reason and Seen
	Reason  balance.Reason
	Seen    portal.Seen
	Flags   Flags   // what is amiss so far; of FirstByte, Closed and an attempt that succeeded
	Ending  *Ending // of Closed
}

// Observer sees the steps of connections. Observe is called by the goroutine that serves the connection, and
// must not wait.
type Observer interface {
	Observe(r *Record, s Step)
}
