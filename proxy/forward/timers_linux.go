package forward

import (
	"context"
	"time"

	"github.com/usherproxy/usher/proxy/outcome"
)

// A Loop has three timed actions. It gives up operations that take too long (timedQueue), and compares pairs with their
// limits (limited). It sets keepalive for pairs that have been open for a while (unprobed). These need few timers,
// whatever the number of pairs: one timedQueue and its timer per time limit, and one timer for each other action. A
// timer does not run while there is nothing to do.

// alarm is a timer that makes a Loop call a function. The timer is created on first use, and then reused.
type alarm struct{ timer *time.Timer }

// set makes loop call f after d. It replaces an earlier set whose time has not come yet. loop and f must be the same
// each time.
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

// timed is an operation of a Loop with a deadline: a pending connection (Dialed), or an AwaitHeader call (awaiting).
type timed interface {
	over() bool
	deadline() time.Time
	fail(error) // does nothing if the operation is over
}

// timedQueue has the operations with the same time limit, oldest first. One timer serves them all, and runs while there
// are any. An operation that ends in time stays in the queue, at most until its deadline, which costs less than
// removing it earlier.
type timedQueue struct {
	loop  *Loop
	limit time.Duration
	queue []timed
	alarm alarm

	canceled int // number of operations at the front of the queue to cancel
}

// timedBy returns the queue for operations with a limit.
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

// turn fails the operations whose deadline has passed, some now and the others in the next turns. It implements turner.
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
		t.fail(why) // may add operations to the queue; does nothing if t is over
	}
	q.queue = nil // frees the memory that a burst has left
}

// limited has the pairs of a Loop whose limits must be checked: half-closed ones, and those with an idle, age or retire
// limit. One timer serves them all.
type limited struct {
	loop   *Loop
	pairs  []limitedPair
	alarm  alarm
	period time.Duration // between two checks; 0 without pairs

	looking bool // a check is under way
	next    int  // index in pairs of the next one to check
}

type limitedPair struct {
	*pair
	watch watch
}

// add starts to check p's limits. If p is already in ls, its idle time restarts now.
func (ls *limited) add(p *pair) {
	now := time.Now()
	if p.place > 0 {
		ls.pairs[p.place-1].watch.restart(now)
	} else {
		ls.pairs = append(ls.pairs, limitedPair{p, watch{began: now, silent: now, unsent: -1}})
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

// unread implements queue. The bytes of a direction that are read and not yet written count as one.
func (p *pair) unread() int {
	n := p.client.fd.unread() + p.endpoint.fd.unread()
	for _, w := range []*way{&p.toEndpoint, &p.toClient} {
		if w.rest != nil || w.pipe != nil {
			n++
		}
	}
	return n
}

// look starts a check of all pairs, or restarts one that is under way.
func (ls *limited) look() {
	if ls.next = 0; !ls.looking {
		ls.looking = true
		ls.turn()
	}
}

// turn implements turner: it checks some pairs, and ends those that have reached a limit.
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
			p.reset(end, nil) // removes the pair: another one takes its place
			continue
		}
		ls.next++
	}
	ls.loop.Later(ls)
}

// looked is called when a check is complete.
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

// unprobed records whether endpoints' sockets of a Loop may lack keepalive. Clients' sockets inherit it from the
// listener. An endpoint's socket needs four system calls for it, some percent of the cost of a short connection. So the
// Loop sets keepalive only for pairs that stay open for a while. Most do not, so there is no list of pairs without
// keepalive.
type unprobed struct {
	any   bool // a pair has started since keepalive was last set
	alarm alarm
}

// probedAfter is the age of a pair by which its endpoint's socket has keepalive. The exact age does not matter. Without
// keepalive, a lost connection would stay open forever.
const probedAfter = 5 * time.Second

// probeLater is called for the first pair that starts after keepalive was last set.
func (l *Loop) probeLater() {
	l.unprobed.any = true
	l.unprobed.alarm.set(l, probedAfter, l.probe)
}

// probe sets the keepalive of the pairs that have none yet, in turns.
func (l *Loop) probe() {
	l.unprobed.any = false
	l.EachPair(func(h *PairHere, _ Owner) {
		if !h.probed {
			h.probed = true
			l.keepalive.Set(int(h.endpoint.fd))
		}
	})
}
