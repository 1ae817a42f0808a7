package trace

import (
	"math"
	"slices"
	"sync"
	"time"
)

// part is what a Log knows of some of the connections: those that have not ended, and the
// last steps. A Log is divided, so that who reports a step waits for few others, and
// whoever looks through those that are open holds up few.
type part struct {
	mu    sync.Mutex
	first *Life        // of those that have not ended
	steps ring[record] // their numbers become larger
	ended uint64       // connections
}

// add makes life one of those that are open.
func (p *part) add(life *Life) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if life.after = p.first; life.after != nil {
		life.after.before = life
	}
	p.first = life
}

// remove is its opposite. mu is held.
func (p *part) remove(life *Life) {
	switch {
	case life.before != nil:
		life.before.after = life.after
	case p.first == life:
		p.first = life.after
	default:
		return // it was removed already
	}
	if life.after != nil {
		life.after.before = life.before
	}
	life.before, life.after = nil, nil
}

// openAtOnce is at how many connections that are open a part looks before who begins or ends one
// gets its lock.
const openAtOnce = 2048

// open appends those that have not ended. Those that begin or end meanwhile may be among them.
func (p *part) open(list []*Life) []*Life {
	here := &Life{ID: math.MaxUint64} // keeps the place between two looks
	p.add(here)
	for more := true; more; {
		list = slices.Grow(list, openAtOnce)
		p.mu.Lock()
		at := here
		for n := 0; at.after != nil && n < openAtOnce; n++ {
			if at = at.after; at.ID != here.ID {
				list = append(list, at)
			}
		}
		p.remove(here)
		if more = at.after != nil; more {
			here.before, here.after = at, at.after
			here.before.after, here.after.before = here, here
		}
		p.mu.Unlock()
	}
	return list
}

// find returns the connection with that number that is open, or else the step with which
// it ended, if that is kept.
func (p *part) find(id uint64) (open *Life, closed record) {
	for _, life := range p.open(nil) {
		if life.ID == id {
			open = life
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if open != nil && open.ending == nil {
		return open, record{}
	}
	for place := p.steps.added; place >= p.steps.oldest(); place-- {
		if r := p.steps.at(place); r.kind == Closed && r.life.ID == id {
			return nil, *r
		}
	}
	return nil, record{}
}

// endedBefore returns how many had ended before the step at a place, the lower half of it.
// mu is held.
func (p *part) endedBefore(place uint64) uint32 {
	if place > p.steps.added {
		return uint32(p.ended)
	}
	r := p.steps.at(place)
	if r.kind == Closed {
		return r.ended - 1
	}
	return r.ended
}

// record is a step as it is kept: what else there is to be told is known of the
// connection.
type record struct {
	seq     uint64
	life    *Life
	time    int64         // nanoseconds since 1970
	took    time.Duration // of Waiting and Queued
	ended   uint32        // connections of this part, this one included: the lower half
	attempt uint16
	kind    Kind
	tried   uint8 // which attempt of life's it is, from 1 on; a search makes some tens
}

func (r record) number() uint64 { return r.seq }

// event tells the step in full.
func (r *record) event() Event {
	about := r.life.Subject()
	e := Event{Seq: r.seq, Time: time.Unix(0, r.time), Kind: r.kind, Subject: &about, Attempt: int(r.attempt)}
	switch r.kind {
	case Attempt:
		t := r.life.attempt(int(r.tried))
		e.Endpoint, e.Pod, e.Reason, e.PassedOver = t.Endpoint, t.Pod, t.Reason, t.PassedOver
		e.Result, e.Seen, e.Queued, e.Took, e.Err = t.Result, t.Seen, t.Queued, t.Took, t.Err
	case Waiting, Queued:
		e.Took = r.took
	case Established:
		last, _ := r.life.last()
		e.Endpoint, e.Pod = last.Endpoint, last.Pod
	case Closed:
		how := r.life.ending
		e.Life, e.End, e.Err, e.Took, e.Flags = r.life, how.Result, how.Cause(), how.took, how.flags
		if how.to > 0 {
			t := r.life.attempt(int(how.to))
			e.Endpoint, e.Pod = t.Endpoint, t.Pod
		}
	}
	return e
}
