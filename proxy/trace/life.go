package trace

import (
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/usherproxy/usher/portal"
)

// Life is one connection, or UDP session, from accept to close: who it is, and
// the attempts that were made for it. One goroutine at a time reports its steps;
// any may read.
type Life struct {
	Subject
	Accepted time.Time

	// The attempts. Most connections have one: the first is here, so that they
	// need no more memory. count says how many may be read.
	count  atomic.Int32
	over   atomic.Bool // it has ended
	first  Tried
	others atomic.Pointer[[]Tried] // replaced, never changed
	moving atomic.Pointer[Mover]

	// Where it stands among those that have not ended; guarded by the register's
	// lock.
	before, after *Life
}

// Tried is an attempt that has ended.
type Tried struct {
	Endpoint   netip.AddrPort
	Pod        string
	Reason     string // why this endpoint
	PassedOver int
	Began      time.Duration // after the connection was accepted
	Took       time.Duration
	Result     Result
	Seen       portal.Seen // by the endpoint
	Err        string      // "" if it succeeded
}

// Mover tells how many bytes were moved so far.
type Mover interface {
	Bytes() (toEndpoint, toClient int64)
}

// Tried returns the attempts, the first one first.
func (l *Life) Tried() []Tried {
	switch l.count.Load() {
	case 0:
		return nil
	case 1:
		return []Tried{l.first}
	}
	return append([]Tried{l.first}, *l.others.Load()...)
}

// Attempts returns how many there are.
func (l *Life) Attempts() int { return int(l.count.Load()) }

// Established returns the attempt that succeeded.
func (l *Life) Established() (Tried, bool) {
	var last Tried
	switch l.count.Load() {
	case 0:
		return Tried{}, false
	case 1:
		last = l.first
	default:
		others := *l.others.Load()
		last = others[len(others)-1]
	}
	return last, last.Err == ""
}

// Moves says that m moves the connection's bytes from now on. It may be called after
// the end, which is reported when m is done.
func (l *Life) Moves(m Mover) {
	l.moving.Store(&m)
	if l.over.Load() {
		l.moving.Store(nil)
	}
}

// Bytes returns how many bytes were moved so far, as far as that can be told of
// one that is open.
func (l *Life) Bytes() (toEndpoint, toClient int64) {
	if m := l.moving.Load(); m != nil {
		return (*m).Bytes()
	}
	return 0, 0
}

// attempted adds an attempt.
func (l *Life) attempted(e *Event) {
	tried := Tried{Endpoint: e.Endpoint, Pod: e.Pod, Reason: e.Reason, PassedOver: e.PassedOver,
		Began: e.Time.Sub(l.Accepted) - e.Took, Took: e.Took, Result: e.Result, Seen: e.Seen, Err: e.Err}
	n := l.count.Load()
	if n == 0 {
		l.first = tried
	} else {
		var others []Tried
		if n > 1 {
			others = slices.Clip(*l.others.Load())
		}
		others = append(others, tried)
		l.others.Store(&others)
	}
	l.count.Store(n + 1)
}

// register has the lives that have not ended. It is divided, so that whoever
// looks through it holds up few.
type register [16]struct {
	mu    sync.Mutex
	first *Life
}

func (r *register) add(l *Life) {
	part := &r[l.Conn%uint64(len(r))]
	part.mu.Lock()
	defer part.mu.Unlock()
	if l.after = part.first; l.after != nil {
		l.after.before = l
	}
	part.first = l
}

func (r *register) remove(l *Life) {
	part := &r[l.Conn%uint64(len(r))]
	part.mu.Lock()
	defer part.mu.Unlock()
	switch {
	case l.before != nil:
		l.before.after = l.after
	case part.first == l:
		part.first = l.after
	default:
		return // it was removed already
	}
	if l.after != nil {
		l.after.before = l.before
	}
	l.before, l.after = nil, nil
}

// all returns the lives for which match returns true, in no order.
func (r *register) all(match func(*Life) bool) (list []*Life) {
	for i := range r {
		part := &r[i]
		part.mu.Lock()
		for l := part.first; l != nil; l = l.after {
			if match(l) {
				list = append(list, l)
			}
		}
		part.mu.Unlock()
	}
	return list
}

// find returns the life with that number, or nil.
func (r *register) find(conn uint64) *Life {
	part := &r[conn%uint64(len(r))]
	part.mu.Lock()
	defer part.mu.Unlock()
	for l := part.first; l != nil; l = l.after {
		if l.Conn == conn {
			return l
		}
	}
	return nil
}
