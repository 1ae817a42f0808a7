package trace

import (
	"context"
	"time"
)

const (
	// gathering is how long ends are gathered before they are told, so that the proxy
	// is not bothered for each connection.
	gathering = 20 * time.Millisecond
	// batch is how many events are taken at once.
	batch = 256
)

// Follower tells of connections that end, to what keeps up with them for others.
type Follower struct {
	reader *Reader
	ended  uint64 // connections, until and with the last one that was told or missed
}

// Follow returns a Follower of the connections that end from now on.
func (l *Log) Follow() *Follower {
	reader, ended := l.ReaderOfEnds()
	reader.onlyEnds = true
	return &Follower{reader, ended}
}

// Run calls each with the step Closed of each connection, and with how many are missing just
// before it, since the Log no longer had them, until ctx ends and all are told. The event is
// not to be kept. paused is called when there are no more for now.
func (f *Follower) Run(ctx context.Context, each func(e *Event, missed int64), paused func()) {
	events := make([]Event, batch)
	for {
		n, _, err := f.reader.Next(ctx, events)
		if err != nil {
			break
		}
		if f.tell(events[:n], each); n == batch || f.reader.looked == mostLooked {
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
		f.tell(events[:n], each)
	}
	paused()
}

func (f *Follower) tell(events []Event, each func(e *Event, missed int64)) {
	for i := range events {
		e := &events[i]
		missed := int64(e.Ended - f.ended - 1)
		f.ended = e.Ended
		each(e, missed)
	}
	clear(events) // they hold on to connections
}
