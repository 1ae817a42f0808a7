package trace

import (
	"math"
	"slices"
	"time"

	"github.com/usherproxy/usher/proxy/conn"
)

// openAtOnce is the number of open connections that part.open visits before it releases the lock for goroutines that
// begin or end one.
const openAtOnce = 2048

// open appends the open connections to list. The result may include some that begin or end meanwhile.
func (p *part) open(list []*conn.Record) []*conn.Record {
	here := &conn.Record{ID: math.MaxUint64} // marks the position in the list while mu is released
	p.mu.Lock()
	p.add(here)
	p.mu.Unlock()
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

// find returns the connection with number id if it is open, or else its Closed step if that is kept.
func (p *part) find(id uint64) (open *conn.Record, closed record) {
	for _, c := range p.open(nil) {
		if c.ID == id {
			open = c
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for place := p.steps.added; place >= p.steps.oldest(); place-- {
		if r := p.steps.at(place); r.kind == Closed && r.of.ID == id {
			return nil, *r
		}
	}
	if open != nil && (p.first == open || open.Trace.Before != nil) {
		return open, record{}
	}
	return nil, record{}
}

// record is the stored form of a step. The connection's Record has the other data of the Event.
type record struct {
	seq     uint64
	of      *conn.Record
	time    int64         // nanoseconds since 1970
	took    time.Duration // of Waiting and Queued
	ended   uint32        // number of ended connections of this part after the step; lower 32 bits
	kind    Kind
	attempt uint8 // number of attempts so far; a search makes several dozen at most
}

func (r record) number() uint64 { return r.seq }

// event returns the full Event of the step.
func (r *record) event() Event {
	e := Event{Seq: r.seq, Time: time.Unix(0, r.time), Kind: r.kind, Subject: SubjectOf(r.of), Attempt: int(r.attempt)}
	switch r.kind {
	case Attempt:
		a := r.of.Attempt(int(r.attempt))
		e.Endpoint, e.Pod, e.Reason, e.Skipped = a.Endpoint, a.Pod, a.Reason.String(), a.Skipped
		e.Result, e.SourceAddress, e.Duration, e.Err = a.Result, a.SourceAddress, a.Duration, a.Err
	case Waiting, Queued:
		e.Duration = r.took
	case Established:
		last, _ := r.of.Established()
		e.Endpoint, e.Pod = last.Endpoint, last.Pod
	case Closed:
		how := r.of.Ending()
		e.Record, e.End, e.Err, e.Duration, e.Flags = r.of, how.Result, how.Cause(), how.Duration, how.Flags
		at, _ := r.of.LastEndpoint()
		e.Endpoint, e.Pod = at.Endpoint, at.Pod
	}
	return e
}
