package forward

import "time"

// unprobed are the pairs of a Loop whose endpoint's socket has no keepalive yet.
// What is accepted inherits it; a socket that connects takes four system calls to
// get it, some per cent of what a short connection costs in all. So it gets it once
// the pair has lasted for a while, which most do not.
type unprobed struct {
	loop  *Loop
	pairs []*pair
	alarm alarm
}

// probedAfter is how long a pair lasts, at the most, before its endpoint's socket
// gets keepalive. What matters is that it gets it: a lost connection would
// otherwise stay for ever.
const probedAfter = 5 * time.Second

func (u *unprobed) add(p *pair) {
	u.pairs = append(u.pairs, p)
	p.unprobed = int32(len(u.pairs))
	if len(u.pairs) == 1 {
		u.alarm.set(u.loop, probedAfter, u.probe)
	}
}

func (u *unprobed) remove(p *pair) {
	if p.unprobed == 0 {
		return
	}
	last := len(u.pairs) - 1
	moved := u.pairs[last]
	u.pairs[p.unprobed-1] = moved
	moved.unprobed = p.unprobed
	u.pairs[last] = nil
	u.pairs = u.pairs[:last]
	p.unprobed = 0
}

// probe sets the keepalive of some, and of the others in the next turns.
func (u *unprobed) probe() {
	for range min(perTurn, len(u.pairs)) {
		p := u.pairs[len(u.pairs)-1]
		_ = u.loop.keepalive.set(int(p.endpoint.fd)) // fails for no socket that is open
		u.remove(p)
	}
	if len(u.pairs) > 0 {
		u.loop.Later(u)
		return
	}
	u.pairs = nil // a burst shall not keep its memory
}

// turn implements turner.
func (u *unprobed) turn() { u.probe() }
