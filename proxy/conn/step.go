package conn

import (
	"time"

	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/proxy/balance"
)

// Kind is the kind of a Step.
type Kind uint8

// The kinds. Attempted, Waiting and Queued may repeat, in any order.
const (
	Accepted    Kind = iota + 1
	Attempted        // an attempt has ended; if it succeeded, the connection is established
	Waiting          // every endpoint was tried; the client waits for the end of the time slot
	Queued           // the client no longer waits in the queue, with or without an endpoint
	Established      // the connection was inherited with its endpoint; other connections have Attempted instead
	Closed
	FirstByte // from the endpoint, for the client
)

// Step is a step of a connection. All other data is already in the Record.
type Step struct {
	Kind          Kind
	Time          time.Time
	Duration      time.Duration // since accept; Waiting and Queued: of the wait; FirstByte: see Record.FirstByte
	Attempt       int           // number of attempts so far; set for Attempted, Waiting and Queued
	Result        Result        // set for Attempted, as are Reason and SourceAddress
	Reason        balance.Reason
	SourceAddress portal.SourceAddress
	Flags         Flags   // problems so far; set for FirstByte, Closed and a successful attempt
	Ending        *Ending // set for Closed
}

// Observer observes the steps of connections. The goroutine that serves the connection calls Observe, which must not
// block.
type Observer interface {
	Observe(r *Record, s Step)
}
