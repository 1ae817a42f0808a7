package trace

import (
	"context"
	"sync"
	"time"
)

// keptChanges is how many changes a Log keeps besides the steps of connections.
const keptChanges = 1024

// Log keeps the last events, and knows the connections that have not ended. It is
// safe for concurrent use.
type Log struct {
	open register

	// reading is held by whoever reads, before mu: however many read, those who
	// write wait for one of them at the most.
	reading sync.Mutex

	mu      sync.Mutex
	more    chan struct{} // closed when an event is added; nil if nobody waits
	seq     uint64        // of the newest event
	ended   uint64        // connections
	steps   ring
	changes ring
}

// NewLog returns a Log that keeps the last steps of connections, so many (at least 1),
// each of about 220 bytes, and the last thousand changes. It takes memory as
// events come.
func NewLog(steps int) *Log {
	return &Log{steps: newRing(max(steps, 1)), changes: newRing(keptChanges)}
}

// Begin returns the Life of a connection that was accepted at the time given. It
// counts as open until its step Closed.
func (l *Log) Begin(s Subject, accepted time.Time) *Life {
	life := &Life{Subject: s, Accepted: accepted}
	l.open.add(life)
	return life
}

// Step appends a step of a connection. It fills in e's number and what it is
// about.
func (l *Log) Step(life *Life, e *Event) {
	e.Subject = &life.Subject
	switch e.Kind {
	case Attempt:
		life.attempted(e)
	case Closed:
		e.Life = life
		life.over.Store(true)
		life.moving.Store(nil) // what moved its bytes need not be kept for as long as the event
		l.open.remove(life)
	}
	l.add(&l.steps, e)
}

// Change appends a change. What it is about may be nil.
func (l *Log) Change(e *Event) {
	if e.Subject == nil {
		e.Subject = &nobody
	}
	l.add(&l.changes, e)
}

var nobody Subject

func (l *Log) add(r *ring, e *Event) {
	l.mu.Lock()
	l.seq++
	e.Seq = l.seq
	if e.Kind == Closed {
		l.ended++
		e.Ended = l.ended
	}
	r.add(e)
	waiting := l.more
	l.more = nil
	l.mu.Unlock()
	if waiting != nil {
		close(waiting)
	}
}

// lockForReading keeps events from being added until unlockForReading.
func (l *Log) lockForReading() {
	l.reading.Lock()
	l.mu.Lock()
}

func (l *Log) unlockForReading() {
	l.mu.Unlock()
	l.reading.Unlock()
}

// Open returns the connections that have not ended and for which match returns
// true, in no order. match must return quickly.
func (l *Log) Open(match func(*Life) bool) []*Life { return l.open.all(match) }

// Find returns the connection with that number: the Life of one that is open, or
// else the event of its end, if that is kept.
func (l *Log) Find(conn uint64) (open *Life, ended *Event) {
	if life := l.open.find(conn); life != nil {
		return life, nil
	}
	found := l.Ended(1, func(e *Event) bool { return e.Conn == conn })
	if len(found) == 0 {
		return nil, nil
	}
	return nil, &found[0]
}

// Ended returns the ends that are kept and for which match returns true, the
// newest first, at most max. match must return quickly.
func (l *Log) Ended(max int, match func(*Event) bool) (list []Event) {
	l.lockForReading()
	defer l.unlockForReading()
	for place := l.steps.added; place >= l.steps.oldest() && len(list) < max; place-- {
		if e := l.steps.at(place); e.Kind == Closed && match(e) {
			list = append(list, *e)
		}
	}
	return list
}

// Reader reads a Log from some place on. It is for one goroutine.
type Reader struct {
	log           *Log
	steps, change uint64 // the next places
	owed          uint64 // events that were gone before it began
}

// Reader returns a reader that begins with the oldest event that is kept, or,
// if fresh is set, with the next one that is added.
func (l *Log) Reader(fresh bool) *Reader {
	l.lockForReading()
	defer l.unlockForReading()
	if fresh {
		return &Reader{log: l, steps: l.steps.added + 1, change: l.changes.added + 1}
	}
	return &Reader{log: l, steps: l.steps.oldest(), change: l.changes.oldest()}
}

// ReaderOfEnds returns a fresh reader, and how many connections had ended before
// it: the next end has Event.Ended one above that.
func (l *Log) ReaderOfEnds() (*Reader, uint64) {
	l.lockForReading()
	defer l.unlockForReading()
	return &Reader{log: l, steps: l.steps.added + 1, change: l.changes.added + 1}, l.ended
}

// ReaderBehind returns a reader that begins with the first event whose number is
// above seq. Those that are gone count as missed.
func (l *Log) ReaderBehind(seq uint64) *Reader {
	l.lockForReading()
	defer l.unlockForReading()
	seq = min(seq, l.seq)
	r := &Reader{log: l, steps: l.steps.behind(seq), change: l.changes.behind(seq)}
	kept := (l.steps.added + 1 - r.steps) + (l.changes.added + 1 - r.change)
	r.owed = l.seq - seq - kept
	return r
}

// Next copies events into buf, oldest first, and waits until there is at least
// one. It returns how many it copied and how many were missed just before them
// because the reader was too slow. The error is ctx's, when that has ended.
func (r *Reader) Next(ctx context.Context, buf []Event) (n int, missed uint64, err error) {
	for {
		n, missed, more := r.read(buf, true)
		if n > 0 || missed > 0 {
			return n, missed, nil
		}
		select {
		case <-more:
		case <-ctx.Done():
			return 0, 0, ctx.Err()
		}
	}
}

// Poll is Next without the waiting: it returns 0 events if there are none.
func (r *Reader) Poll(buf []Event) (n int, missed uint64) {
	n, missed, _ = r.read(buf, false)
	return n, missed
}

// read copies events. If there is nothing to read, and wait is set, it returns a
// channel that is closed when there is.
func (r *Reader) read(buf []Event, wait bool) (n int, missed uint64, more <-chan struct{}) {
	l := r.log
	l.lockForReading()
	defer l.unlockForReading()
	n, missed = r.copy(buf)
	if n > 0 || missed > 0 || !wait {
		return n, missed, nil
	}
	if l.more == nil {
		l.more = make(chan struct{})
	}
	return 0, 0, l.more
}

// copy takes events from both rings in the order of their numbers.
func (r *Reader) copy(buf []Event) (n int, missed uint64) {
	l := r.log
	missed, r.owed = r.owed, 0
	skip := func(place *uint64, oldest uint64) {
		if *place < oldest {
			missed += oldest - *place
			*place = oldest
		}
	}
	skip(&r.steps, l.steps.oldest())
	skip(&r.change, l.changes.oldest())
	for n < len(buf) {
		step, change := r.steps <= l.steps.added, r.change <= l.changes.added
		switch {
		case step && (!change || l.steps.at(r.steps).Seq < l.changes.at(r.change).Seq):
			buf[n] = *l.steps.at(r.steps)
			r.steps++
		case change:
			buf[n] = *l.changes.at(r.change)
			r.change++
		default:
			return n, missed
		}
		n++
	}
	return n, missed
}
