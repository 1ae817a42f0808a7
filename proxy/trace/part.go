package trace

import (
	"math"
	"slices"
	"sync"
	"time"

	"github.com/usherproxy/usher/proxy/conn"
)

// part is what a Log knows of some of the connections: those that have not ended, and the
// last steps. A Log is divided, so that who reports a step waits for few others, and
// whoever looks through those that are open holds up few.
type part struct {
	mu    sync.Mutex
	first *conn.Record // of those that have not ended
	steps ring[record] // their numbers become larger
	ended uint64       // connections
}

// add makes life one of those that are open.
func (p *part) add(life *conn.Record) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if life.Trace.After = p.first; life.Trace.After != nil {
		life.Trace.After.Trace.Before = life
	}
	p.first = life
}

// remove is its opposite. mu is held.
func (p *part) remove(life *conn.Record) {
	switch {
	case life.Trace.Before != nil:
		life.Trace.Before.Trace.After = life.Trace.After
	case p.first == life:
		p.first = life.Trace.After
	default:
		return // it was removed already
	}
	if life.Trace.After != nil {
		life.Trace.After.Trace.Before = life.Trace.Before
	}
	life.Trace.Before, life.Trace.After = nil, nil
}

// openAtOnce is at how many connections that are open a part looks before who begins or ends one
// gets its lock.
const openAtOnce = 2048

// open appends those that have not ended. Those that begin or end meanwhile may be among them.
func (p *part) open(list []*conn.Record) []*conn.Record {
	here := &conn.Record{ID: math.MaxUint64} // keeps the place between two looks
	p.add(here)
	for more := true; more; {
		list = slices.Grow(list, openAtOnce)
		p.mu.Lock()
		at := here
		for n := 0; at.Trace.After != nil && n < openAtOnce; n++ {
			if at = at.Trace.After; at.ID != here.ID {
				list = append(list, at)
			}
		}
		p.remove(here)
		if more = at.Trace.After != nil; more {
			here.Trace.Before, here.Trace.After = at, at.Trace.After
			here.Trace.Before.Trace.After, here.Trace.After.Trace.Before = here, here
		}
		p.mu.Unlock()
	}
	return list
}

// find returns the connection with that number that is open, or else the step with which
// it ended, if that is kept.
func (p *part) find(id uint64) (open *conn.Record, closed record) {
	for _, life := range p.open(nil) {
		if life.ID == id {
			open = life
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for place := p.steps.added; place >= p.steps.oldest(); place-- {
		if r := p.steps.at(place); r.kind == Closed && r.life.ID == id {
			return nil, *r
		}
	}
	if open != nil && (p.first == open || open.Trace.Before != nil) {
		return open, record{}
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
	life    *conn.Record
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
	about := SubjectOf(r.life)
	e := Event{Seq: r.seq, Time: time.Unix(0, r.time), Kind: r.kind, Subject: &about, Attempt: int(r.attempt)}
	switch r.kind {
	case Attempt:
		a := r.life.Attempt(int(r.tried))
		e.Endpoint, e.Pod, e.Reason, e.PassedOver = a.Endpoint, a.Pod, a.Reason, a.PassedOver
		e.Result, e.Seen, e.Queued, e.Took, e.Err = a.Result, a.Seen, a.Queued, a.Took, a.Err
	case Waiting, Queued:
		e.Took = r.took
	case Established:
		last, _ := r.life.Last()
		e.Endpoint, e.Pod = last.Endpoint, last.Pod
	case Closed:
		how := r.life.Ending()
		e.Record, e.End, e.Err, e.Took, e.Flags = r.life, how.Result, how.Cause(), how.Took, how.Flags
		at, _ := r.life.EndedAt()
		e.Endpoint, e.Pod = at.Endpoint, at.Pod
	}
	return e
}
