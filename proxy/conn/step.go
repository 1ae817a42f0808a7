package conn

import (
	"time"

	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/proxy/balance"
)

// Kind is the kind of a Step.
type Kind uint8

// The kinds, in the order of a connection's steps, except FirstByte.
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
	Duration      time.Duration // since accept; of Waiting and Queued, duration of the wait; of FirstByte, see Record.FirstByte
	Attempt       int           // number of attempts so far; of Attempted, Waiting and Queued
	Result        Result        // of Attempted, as are Reason and SourceAddress
	Reason        balance.Reason
	SourceAddress portal.SourceAddress
	Flags         Flags   // problems so far; of FirstByte, Closed and a successful attempt
	Ending        *Ending // of Closed
}

// Observer observes the steps of connections. The goroutine that serves the connection calls Observe, which must not
// block.
type Observer interface {
	Observe(r *Record, s Step)
}
