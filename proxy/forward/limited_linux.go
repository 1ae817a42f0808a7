package forward

import (
	"time"

	"github.com/usherproxy/usher/proxy/outcome"
)

// limited are the pairs of a Loop that have limits to be looked at: those that are
// half closed, and those that may be idle, or live, for some time only. One timer
// serves them all.
type limited struct {
	loop   *Loop
	pairs  []limitedPair
	alarm  alarm
	period time.Duration // between two looks; 0 if nobody looks

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
