package trace

import (
	"context"
	"time"
)

const (
	// gathering is the time that Run lets ends accumulate before it reads again, so that it does not disturb the proxy
	// for each connection.
	gathering = 20 * time.Millisecond
	// batch is the maximum number of events read at once.
	batch = 256
)

// Follower passes on the ends of connections, for example to the access log.
type Follower struct {
	reader *Reader
	ended  uint64 // Event.Ended of the last one passed on
}

// Follow returns a Follower of the connections that end from now on.
func (l *Log) Follow() *Follower {
	r := l.Reader(true)
	r.onlyEnds = true
	return &Follower{reader: r}
}

// Run calls each for the Closed event of each connection. missed is the number of ends just before that one which the
// Log no longer had. each must not keep the event. Run calls paused when there are no more events for now. It returns
// when ctx is done and all events are passed on.
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
		if n == 0 {
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
	clear(events) // they would keep the records of connections
}
