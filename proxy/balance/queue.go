package balance

import (
	"container/list"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/usherproxy/usher/config"
)

// line is how many connections each endpoint of a Pool may have, and who waits until one has
// room: first come, first served, as far as they may use it. Room is given to the first in line
// by whoever makes it; who comes goes behind those who wait.
type line struct {
	bound atomic.Int64 // 0 is any number

	mu      sync.Mutex
	timeout time.Duration
	all     []*Endpoint // of the Pool
	waiting list.List   // of *Place, by turn
	turns   uint64      // the last that was given
	alarm   *time.Timer // for when an endpoint's standing changes by itself; nil before the first
}

// Place is a client's place in line. Its zero value is that of one who has not come yet.
type Place struct {
	Timeout time.Duration // how long clients may wait, since Set.Take has said that none has room; 0 if too many wait

	line *line // that the client is in, or was

	// Guarded by the line's lock.
	ask   Ask
	had   netip.AddrPort // that it waits for, as long as that is worth it
	set   *Set
	turn  uint64        // less than those of all who came later; 0 before the first wait
	at    *list.Element // nil while the client is not in line
	given Choice        // that was taken for it when its turn came
	call  func()        // nil until it is known
}

// Full reports whether the endpoint has as many connections as it may.
func (e *Endpoint) Full() bool {
	bound := e.pool.line.bound.Load()
	return bound > 0 && e.Active.Load() >= bound
}

// Bound returns how many connections each endpoint may have; 0 is any number.
func (s *Set) Bound() int64 { return s.pool.line.bound.Load() }

// InLine returns how many clients wait for an endpoint of the Pool.
func (s *Set) InLine() int {
	l := &s.pool.line
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.waiting.Len()
}

// Take is Again or, if that does not choose, Pick, and Take of the endpoint. p is needed if there is a Bound. If the endpoint
// has no room (Choice.Full), p's client is in line: see Place.Called.
func (s *Set) Take(a Ask, had netip.AddrPort, p *Place) (Choice, bool) {
	if p == nil {
		c, ok := s.Again(had, a)
		if !ok {
			c, ok = s.Pick(a)
		} else if c.Full() { // it is bounded since a moment ago
			c, ok = Choice{Endpoint: s.Find(had), Reason: Affinity}, true
		}
		if ok {
			c.Endpoint.Take()
		}
		return c, ok
	}
	l := &s.pool.line
	l.mu.Lock()
	defer l.mu.Unlock()
	if c := p.given; c.Endpoint != nil {
		p.given = Choice{}
		return c, true
	}
	p.line, p.ask, p.had, p.set, p.call = l, a, had, s, nil
	if l.waiting.Len() == 0 {
		c, ok := p.pick(a.Now)
		switch {
		case ok:
			c.Endpoint.Take()
		case c.Full():
			l.join(p)
			l.watch(a.Now)
		}
		return c, ok
	}
	c, room := p.peek(a.Now)
	if !room && !c.Full() {
		return c, false
	}
	l.join(p)
	if !room {
		return c, false
	}
	l.serve(a.Now, false, p) // those before it may want the room
	c, p.given = p.given, Choice{}
	if p.at != nil {
		c.Reason = noRoomLeft
	}
	return c, c.Endpoint != nil
}

// Called sets what is called, once, when the client in line gets an endpoint, which it asks
// for by Set.Take, or when there is none for it any more. It may be called at once, by any goroutine, and must neither wait nor
// use the Pool.
func (p *Place) Called(f func()) {
	l := p.line
	l.mu.Lock()
	defer l.mu.Unlock()
	if p.call = f; p.at == nil {
		f()
	}
}

// Leave takes the client out of the line. It returns false if it was not there: it may have been given an endpoint.
func (p *Place) Leave() (left bool) {
	l := p.line
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.leave(p)
}

// InLine reports whether the client waits, and otherwise whether it has been given an endpoint.
func (p *Place) InLine() (waits, given bool) {
	l := p.line
	l.mu.Lock()
	defer l.mu.Unlock()
	return p.at != nil, p.given.Endpoint != nil
}

// Abandon is for a client that is gone: it leaves, and gives back what it was given.
func (p *Place) Abandon() {
	p.Leave()
	if given := p.given.Endpoint; given != nil { // nobody else looks at p now
		p.given = Choice{}
		given.Release()
	}
}

// latest returns the client's endpoints as they are now.
func (p *Place) latest() *Set {
	for p.set.newer != nil {
		p.set = p.set.newer
	}
	return p.set
}

// pick chooses for the client: the endpoint that it had, or one by Set.Pick.
func (p *Place) pick(now time.Time) (Choice, bool) {
	p.ask.Now = now
	if c, ok := p.latest().Again(p.had, p.ask); ok {
		return c, !c.Full()
	}
	return p.set.Pick(p.ask)
}

// peek is pick, without using up a turn or claiming a probe.
func (p *Place) peek(now time.Time) (Choice, bool) {
	p.ask.Now = now
	if c, ok := p.latest().Again(p.had, p.ask); ok {
		return c, !c.Full()
	}
	c, _, ok := p.set.Peek(0, p.ask)
	return c, ok
}

// LineLimit bounds how many clients wait for the endpoints of a Pool: some of what makes room
// looks at all of them, under a lock.
const LineLimit = 1024

// join puts p in line. If LineLimit clients wait already, a client that comes may not.
func (l *line) join(p *Place) {
	p.Timeout = l.timeout
	if p.turn == 0 && l.waiting.Len() >= LineLimit {
		p.Timeout = 0
	}
	if p.turn == 0 {
		l.turns++
		p.turn = l.turns
	}
	before := l.waiting.Back()
	for before != nil && before.Value.(*Place).turn > p.turn { // p has waited before
		before = before.Prev()
	}
	if before == nil {
		p.at = l.waiting.PushFront(p)
	} else {
		p.at = l.waiting.InsertAfter(p, before)
	}
}

func (l *line) leave(p *Place) bool {
	if p.at == nil {
		return false
	}
	l.waiting.Remove(p.at)
	p.at = nil
	return true
}

// serve gives endpoints to those in line, the first first; if one is set, to one. comes, if
// not nil, has just come. mu is held.
func (l *line) serve(now time.Time, one bool, comes *Place) {
	var full *Set // for those who may use all of it
	var next *list.Element
	for at := l.waiting.Front(); at != nil; at = next {
		next = at.Next()
		p := at.Value.(*Place)
		any := len(p.ask.Tried) == 0 && !p.had.IsValid()
		if any && p.latest() == full {
			continue
		}
		c, ok := p.pick(now)
		if c.Full() {
			if any {
				full = p.set
			}
			continue
		}
		l.leave(p)
		if ok {
			c.Endpoint.Take()
			if p.given = c; p != comes {
				p.given.Reason = FirstInLine
			}
		}
		if p.call != nil {
			p.call()
		}
		if c.Reason == Probe {
			one = false // others pass over that endpoint now, and may have to make do with any
		}
		if ok && one {
			break
		}
	}
	l.watch(now)
}

// look looks through the whole line, of whom some may go on after what has happened.
func (l *line) look(now time.Time) {
	if l.bound.Load() == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.serve(now, false, nil)
}

// freed lets the first in line have the room that there is at an endpoint.
func (l *line) freed() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.waiting.Len() > 0 {
		l.serve(time.Now(), true, nil)
	}
}

// watch sees to it that the line is looked at when the next endpoint may be chosen again of
// which nobody tells. mu is held.
func (l *line) watch(now time.Time) {
	if l.waiting.Len() == 0 {
		return
	}
	var next time.Time
	for _, e := range l.all {
		if t := e.changes(now); !t.IsZero() && (next.IsZero() || t.Before(next)) {
			next = t
		}
	}
	switch {
	case next.IsZero():
	case l.alarm == nil:
		l.alarm = time.AfterFunc(next.Sub(now), func() { l.look(time.Now()) })
	default:
		l.alarm.Reset(next.Sub(now))
	}
}

// renew is for new endpoints, and for another bound; the Sets are asked by those in line from now on.
func (l *line) renew(port *config.ServicePort, now time.Time, all []*Endpoint, was, sets []*Set) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.timeout, l.all = port.QueueTimeout, all
	for i, s := range was {
		if s != nil {
			s.newer = sets[i]
		}
	}
	if l.waiting.Len() > 0 {
		l.serve(now, false, nil)
	}
}
