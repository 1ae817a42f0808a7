package trace

import (
	"context"
	"math"
)

// Reader reads the events of a Log, from a position on. It is not safe for concurrent use.
type Reader struct {
	log    *Log
	steps  []position // one for each part of the Log
	change uint64     // place of the next change in Log.changes
	owed   uint64     // number of events that were already removed when the Reader was created
	ended  uint64     // number of connections that have ended since a fresh Reader was created; meaningless for others
	taken  []taken    // not yet expanded into Events: that happens after the locks are released
	looked int        // number of events visited by the last read
	// onlyEnds skips every event except the ends of connections, and onlyChanges all steps, which then do not count
	// as missed.
	onlyEnds, onlyChanges bool
}

// position is a Reader's position in a part.
type position struct {
	next  uint64 // place of the next step
	ended uint32 // part.ended at the last step read, or when the Reader was created
}

// taken is a step, or a change.
type taken struct {
	step   record
	change *Event // nil for a step
	ended  uint64 // Event.Ended, if the step is Closed
}

// Reader returns a reader that begins with the oldest kept event or, if fresh is set, with the next one added.
func (l *Log) Reader(fresh bool) *Reader {
	if fresh {
		return l.ReaderBehind(math.MaxUint64)
	}
	r := l.ReaderBehind(0)
	r.owed = 0
	return r
}

// ReaderBehind returns a reader that begins with the first kept event whose number is above seq. Events above seq that
// are no longer kept count as missed.
func (l *Log) ReaderBehind(seq uint64) *Reader {
	l.lockForReading()
	defer l.unlockForReading()
	newest := l.seq.Load()
	seq = min(seq, newest)
	r := &Reader{log: l, steps: make([]position, len(l.parts)), change: l.changes.behind(seq)}
	kept := l.changes.added + 1 - r.change
	for i := range l.parts {
		p := &l.parts[i]
		r.steps[i] = position{p.steps.behind(seq), p.ended}
		kept += p.steps.added + 1 - r.steps[i].next
	}
	r.owed = newest - seq - kept
	return r
}

// OnlyChanges makes the Reader skip the steps of connections, and not count the missed ones.
func (r *Reader) OnlyChanges() {
	r.log.lockForReading()
	defer r.log.unlockForReading()
	r.onlyChanges = true
	if oldest := r.log.changes.oldest(); oldest == 1 || r.change > oldest {
		r.owed = 0 // all changes since its position are kept
	}
	r.owed = min(r.owed, 1) // at least one, of an unknown number
}

// Next puts events into buf, oldest first, and returns their number n. missed is the number of events missed just
// before them because the reader was too slow. Next waits until there is an event. If the Reader skips all available
// events, n is 0. If ctx ends before there is an event, Next returns its error.
func (r *Reader) Next(ctx context.Context, buf []Event) (n int, missed uint64, err error) {
	for {
		n, missed, more := r.read(buf, true)
		if n > 0 || missed > 0 || r.looked > 0 {
			return n, missed, nil
		}
		select {
		case <-more:
		case <-ctx.Done():
			return 0, 0, ctx.Err()
		}
	}
}

// Poll is Next without waiting. If n is 0, there are no more events.
func (r *Reader) Poll(buf []Event) (n int, missed uint64) {
	for {
		n, more, _ := r.read(buf, false)
		if missed += more; n > 0 || r.looked == 0 {
			return n, missed
		}
	}
}

// read reads events into buf. If there are none and wait is set, more is a channel that is closed when an event is
// added.
func (r *Reader) read(buf []Event, wait bool) (n int, missed uint64, more <-chan struct{}) {
	missed, more = r.take(len(buf), wait)
	for i := range r.taken {
		t := &r.taken[i]
		if t.change != nil {
			buf[i] = *t.change
			continue
		}
		if buf[i] = t.step.event(); t.step.kind == Closed {
			buf[i].Ended = t.ended
		}
	}
	n = len(r.taken)
	clear(r.taken) // they would keep the records of connections
	r.taken = r.taken[:0]
	return n, missed, more
}

// mostLooked is the maximum number of events that a Reader visits while it blocks writers and other readers.
const mostLooked = 1024

// take appends up to max events to r.taken, in the order of their numbers. See read for wait and more.
func (r *Reader) take(max int, wait bool) (missed uint64, more <-chan struct{}) {
	l := r.log
	l.lockForReading()
	defer l.unlockForReading()
	skip := func(place *uint64, oldest uint64) {
		if *place < oldest {
			missed += oldest - *place
			*place = oldest
		}
	}
	for i := range l.parts {
		skip(&r.steps[i].next, l.parts[i].steps.oldest())
	}
	if r.onlyChanges {
		missed = 0
	}
	skip(&r.change, l.changes.oldest())
	missed += r.owed
	r.owed = 0
	for r.looked = 0; len(r.taken) < max && r.looked < mostLooked && r.takeNext(); r.looked++ {
	}
	if r.looked > 0 || missed > 0 || !wait {
		return missed, nil
	}
	waiting := l.more.Load()
	if waiting == nil {
		waiting = new(chan struct{})
		*waiting = make(chan struct{})
		l.more.Store(waiting)
	}
	return 0, *waiting
}

// takeNext moves past the unread event with the smallest number, and reports whether there was one. It adds the event
// to r.taken, unless onlyEnds or onlyChanges excludes it.
func (r *Reader) takeNext() bool {
	l := r.log
	first, at := uint64(math.MaxUint64), -1
	for i := range l.parts {
		if p, next := &l.parts[i].steps, r.steps[i].next; next <= p.added {
			if seq := p.at(next).seq; seq < first {
				first, at = seq, i
			}
		}
	}
	if r.change <= l.changes.added {
		if change := *l.changes.at(r.change); change.Seq < first {
			r.change++
			if !r.onlyEnds {
				r.taken = append(r.taken, taken{change: change})
			}
			return true
		}
	}
	if at < 0 {
		return false
	}
	place := &r.steps[at]
	step := *l.parts[at].steps.at(place.next)
	r.ended += uint64(step.ended - place.ended) // includes ends that were missed
	place.next, place.ended = place.next+1, step.ended
	if !r.onlyChanges && (!r.onlyEnds || step.kind == Closed) {
		r.taken = append(r.taken, taken{step: step, ended: r.ended})
	}
	return true
}
