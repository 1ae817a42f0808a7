package forward

import (
	"context"
	"time"

	"github.com/usherproxy/usher/proxy/outcome"
)

// What a Loop does after some time is here: it gives up what takes too long (timedQueue), compares pairs
// with their limits (limited), and sets the keepalive of those that last (unprobed). For each there is one
// timer, whatever the number of pairs, and none while there is nothing to do.

// alarm is a timer that lets a Loop do something. It is made when it is first
// needed, and then used again.
type alarm struct{ timer *time.Timer }

// set makes loop call f after d, instead of what was set before and has not come
// about. f is the same each time.
func (a *alarm) set(loop *Loop, d time.Duration, f func()) {
	if a.timer == nil {
		a.timer = time.AfterFunc(d, func() { _ = loop.Do(f) })
		return
	}
	a.timer.Reset(d)
}

func (a *alarm) stop() {
	if a.timer != nil {
		a.timer.Stop()
	}
}

// stopTimers stops all timers of a loop that ends.
func (l *Loop) stopTimers() {
	for _, q := range l.timed {
		q.alarm.stop()
	}
	l.limited.alarm.stop()
	l.unprobed.alarm.stop()
}

// timed is what a Loop gives up when its time is over: a connection that it makes, or what
// it awaits of a client.
type timed interface {
	over() bool
	deadline() time.Time
	fail(error) // does nothing if it is over
}

// timedQueue are those that have the same time limit, first come first. One timer serves
// them all, and runs on while there are any; one that is over in time is found out to be
// when its time is, which costs less than to take it out.
type timedQueue struct {
	loop  *Loop
	limit time.Duration
	queue []timed
	alarm alarm

	canceled int // so many of the first are over now
}

// timedBy returns the queue for a limit.
func (l *Loop) timedBy(limit time.Duration) *timedQueue {
	for _, q := range l.timed {
		if q.limit == limit {
			return q
		}
	}
	q := &timedQueue{loop: l, limit: limit}
	l.timed = append(l.timed, q)
	return q
}

func (q *timedQueue) add(t timed) {
	q.queue = append(q.queue, t)
	if len(q.queue) == 1 {
		q.alarm.set(q.loop, time.Until(t.deadline()), q.turn)
	}
}

// turn gives up those whose time is over, some now and the others in the next turns. It implements turner.
func (q *timedQueue) turn() {
	now := time.Now()
	for failed := 0; len(q.queue) > 0; {
		t, why := q.queue[0], context.DeadlineExceeded
		switch {
		case q.canceled > 0:
			why = context.Canceled
		case !t.over() && t.deadline().After(now):
			q.alarm.set(q.loop, time.Until(t.deadline()), q.turn)
			return
		}
		if !t.over() {
			if failed == perTurn {
				q.loop.Later(q)
				return
			}
			failed++
		}
		q.queue[0], q.queue = nil, q.queue[1:]
		q.canceled = max(0, q.canceled-1)
		t.fail(why) // may add others, and does nothing if it is over
	}
	q.queue = nil // a burst shall not keep its memory
}

// limited are the pairs of a Loop that have limits to be looked at: those that are
// half closed, and those that may be idle, or live, for some time only. One timer
// serves them all.
type limited struct {
	loop   *Loop
	pairs  []limitedPair
	alarm  alarm
	period time.Duration // between two looks; 0 without any

	looking bool // just now
	next    int  // of pairs, then
}

type limitedPair struct {
	*pair
	watch watch
}

// add makes p's limits be looked at; if others of its are already, its silence counts from
// now on.
func (ls *limited) add(p *pair) {
	now := time.Now()
	if p.place > 0 {
		ls.pairs[p.place-1].watch.restart(now)
	} else {
		ls.pairs = append(ls.pairs, limitedPair{p, newWatch(now)})
		p.place = int32(len(ls.pairs))
	}
	if period := p.limits.period(); ls.period == 0 || period < ls.period {
		ls.period = period
		ls.alarm.set(ls.loop, period, ls.look)
	}
}

func (ls *limited) remove(p *pair) {
	if p.place == 0 {
		return
	}
	last := len(ls.pairs) - 1
	moved := ls.pairs[last]
	ls.pairs[p.place-1] = moved
	moved.place = p.place
	ls.pairs[last] = limitedPair{}
	ls.pairs = ls.pairs[:last]
	p.place = 0
}

// unsent implements queue.
func (p *pair) unsent() int { return p.client.fd.unsent() + p.endpoint.fd.unsent() }

// unread implements queue. What was read already counts as one, in each direction.
func (p *pair) unread() int {
	n := p.client.fd.unread() + p.endpoint.fd.unread()
	for _, w := range []*way{&p.toEndpoint, &p.toClient} {
		if w.rest != nil || w.pipe != nil {
			n++
		}
	}
	return n
}

// look begins to look for pairs that have reached a limit.
func (ls *limited) look() {
	if ls.next = 0; !ls.looking {
		ls.looking = true
		ls.turn()
	}
}

// turn implements turner: it ends some pairs that have reached a limit.
func (ls *limited) turn() {
	now := time.Now()
	for range perTurn {
		if ls.next >= len(ls.pairs) {
			ls.looked()
			return
		}
		p := &ls.pairs[ls.next]
		moved := p.moved
		p.moved = false
		if end := p.watch.verdict(*p.limits, now, moved, p.half, p); end != outcome.Open {
			p.reset(end, nil) // another takes its place
			continue
		}
		ls.next++
	}
	ls.loop.Later(ls)
}

// looked is called when a look is over.
func (ls *limited) looked() {
	ls.looking, ls.period = false, 0
	if len(ls.pairs) == 0 {
		ls.pairs = nil
		return
	}
	for _, p := range ls.pairs {
		if period := p.limits.period(); ls.period == 0 || period < ls.period {
			ls.period = period
		}
	}
	ls.alarm.set(ls.loop, ls.period, ls.look)
}

// unprobed is whether endpoints' sockets of a Loop may have no keepalive yet.
// What is accepted inherits it; a socket that connects takes four system calls to
// get it, some per cent of what a short connection costs in all. So it gets it once
// the pair has lasted for a while, which most do not: no list has them until then.
type unprobed struct {
	any   bool // a pair has begun since the last look
	alarm alarm
}

// probedAfter is how long a pair lasts, at the most, before its endpoint's socket
// gets keepalive. What matters is that it gets it: a lost connection would
// otherwise stay for ever.
const probedAfter = 5 * time.Second

// probeLater is called when a pair begins.
func (l *Loop) probeLater() {
	if !l.unprobed.any {
		l.unprobed.any = true
		l.unprobed.alarm.set(l, probedAfter, l.probe)
	}
}

// probe sets the keepalive of those pairs that have none yet, some at a time.
func (l *Loop) probe() {
	l.unprobed.any = false
	l.EachPair(func(h *PairHere, _ Owner) {
		if !h.probed {
			h.probed = true
			_ = l.keepalive.set(int(h.endpoint.fd)) // fails for no socket that is open
		}
	})
}
