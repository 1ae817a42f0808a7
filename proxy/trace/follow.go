package trace

import (
	"context"
	"time"
)

const (
	// gathering is how long ends are collected before they are passed on, so that Run does not disturb the
	// proxy for each connection.
	gathering = 20 * time.Millisecond
	// batch is the number of events taken at once.
	batch = 256
)

// Follower passes on the connections that end, for example to a log.
type Follower struct {
	reader *Reader
	ended  uint64 // connections, up to the last one passed on or missed
}

// Follow returns a Follower of the connections that end from now on.
func (l *Log) Follow() *Follower {
	reader, ended := l.ReaderOfEnds()
	reader.onlyEnds = true
	return &Follower{reader, ended}
}

// Run calls each with the step Closed of each connection, and with the number of ends missing just before it
// because the Log no longer had them. It returns once ctx is done and all are passed on. each must not keep
// the event. Run calls paused when there are no more for now.
func (f *Follower) Run(ctx context.Context, each func(e *Event, missed int64), paused func()) {
	events := make([]Event, batch)
	for {
		n, _, err := f.reader.Next(ctx, events)
		if err != nil {
			break
		}
		if f.notify(events[:n], each); n == batch || f.reader.looked == mostLooked {
			continue
		}
		paused()
		select {
		case <-time.After(gathering):
		case <-ctx.Done():
		}
	}
	for {
		n, _ := f.reader.Poll(events)
		if n == 0 && f.reader.looked == 0 {
			break
		}
		f.notify(events[:n], each)
	}
	paused()
}

func (f *Follower) notify(events []Event, each func(e *Event, missed int64)) {
	for i := range events {
		e := &events[i]
		missed := int64(e.Ended - f.ended - 1)
		f.ended = e.Ended
		each(e, missed)
	}
	clear(events) // they refer to connections
}
