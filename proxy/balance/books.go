package balance

import (
	"math"
	"slices"
	"sync"
	"sync/atomic"
)

// books are what schedulers by load go by: in which order the endpoints of a Pool stand, kept
// as their connections come and end. Each choice and each change takes the lock once and
// some steps for each doubling of the endpoints, a tenth of a microsecond in all; what
// would do without a lock is p2c.
type books struct {
	kept  atomic.Bool // there are some
	mu    sync.Mutex
	trees []*tournament // one for each Set with endpoints of its own
}

// nowhere is the place of an endpoint that is in no books.
const nowhere = -1

// renew writes the books for all anew, by make. Those who are gone are in none.
func (b *books) renew(all, gone []*Endpoint, make func()) {
	b.kept.Store(true) // from before loads are read: what changes then is noted behind this lock
	b.mu.Lock()
	defer b.mu.Unlock()
	b.trees = nil
	for _, e := range gone {
		e.place = nowhere
	}
	for i, e := range all {
		e.place = int32(i)
	}
	make()
	b.kept.Store(b.trees != nil)
}

// open returns the order of a Set of endpoints that are among all. It is called by renew.
func (b *books) open(how *least, all []*Endpoint, s *Set) order {
	n := len(all)
	t := &tournament{least: how, books: b, all: all, loads: make([]uint64, n), stamps: make([]uint32, n), winners: make([]int32, n)}
	for i := range t.loads {
		t.loads[i] = absent
		// As if they had been chosen in the order of the Set, the one whose turn it is first.
		t.stamps[i] = uint32((i + n - int(s.cursor.Load()%uint32(n))) % n)
	}
	t.stamp = uint32(n)
	for _, e := range s.endpoints {
		t.loads[e.place] = t.load(e)
	}
	for node := n - 1; node > 0; node-- {
		t.winners[node] = t.better(t.winner(2*node), t.winner(2*node+1))
	}
	b.trees = append(b.trees, t)
	return t
}

// changed notes that an endpoint has another number of connections.
func (b *books) changed(s *State) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if s.place == nowhere {
		return
	}
	for _, t := range b.trees {
		if t.loads[s.place] < parked {
			t.loads[s.place] = t.load(t.all[s.place])
			t.replay(s.place)
		}
	}
}

// tournament is a tree whose leaves are endpoints, and in which each other node has the
// better one of the two below it. Nodes are numbered as in a heap, the root is 1, and leaf i has
// the number len(all)+i.
type tournament struct {
	*least
	books   *books
	all     []*Endpoint
	loads   []uint64
	stamps  []uint32 // when it was last chosen
	stamp   uint32   // the next
	winners []int32
	aside   []int32 // those in quarantine, that are parked
	next    int     // of those, who is looked at next
}

// Loads of those that do not take part.
const (
	noRoom = 1 << 61        // behind all who have some
	parked = 1 << 62        // in quarantine; behind all others
	absent = math.MaxUint64 // not of this Set
)

func (t *tournament) load(e *Endpoint) uint64 {
	if e.Full() {
		return noRoom
	}
	return t.least.load(uint64(max(e.Active.Load(), 0)), weight(e.Endpoint))
}

func (t *tournament) reason() Reason { return t.why }

// winner returns who has won at a node.
func (t *tournament) winner(node int) int32 {
	if n := len(t.all); node >= n {
		return int32(node - n)
	}
	return t.winners[node]
}

func (t *tournament) better(a, b int32) int32 {
	switch {
	case t.loads[a] < t.loads[b]:
		return a
	case t.loads[a] > t.loads[b]:
		return b
	case int32(t.stamps[a]-t.stamps[b]) < 0: // also when they begin anew
		return a
	}
	return b
}

// replay finds out who wins now that leaf i is another than before.
func (t *tournament) replay(i int32) {
	for node := (int(i) + len(t.all)) / 2; node > 0; node /= 2 {
		was := t.winners[node]
		now := t.better(t.winner(2*node), t.winner(2*node+1))
		if t.winners[node] = now; was == now && now != i {
			return // nobody above has met i
		}
	}
}

// best returns the best below a node whom skip does not name, or -1. It looks no further
// than those who are named.
func (t *tournament) best(node int, skip func(int32) bool) int32 {
	w := t.winner(node)
	switch {
	case t.loads[w] == absent:
		return -1
	case !skip(w):
		return w
	case node >= len(t.all):
		return -1
	}
	a, b := t.best(2*node, skip), t.best(2*node+1, skip)
	switch {
	case a < 0:
		return b
	case b < 0:
		return a
	}
	return t.better(a, b)
}

func (t *tournament) look(s *Set, l look, i uint32) *Endpoint {
	if i > 0 {
		return nil
	}
	t.books.mu.Lock()
	defer t.books.mu.Unlock()
	t.recall(&l)
	for {
		w := t.best(1, func(i int32) bool {
			// Who is new has the least load of all: of an even share it takes its part.
			return len(l.Tried) > 0 && slices.Contains(l.Tried, t.all[i].Addr) ||
				s.starting != nil && s.starting.leaves(t.all[i], &l, uint32(i), 1/float64(len(s.endpoints)))
		})
		if w < 0 || t.loads[w] == noRoom {
			return nil
		}
		e := t.all[w]
		if t.loads[w] < parked && e.available(l.Now, false) == Down {
			t.loads[w] = parked
			t.aside = append(t.aside, w)
			t.replay(w)
			continue
		}
		if l.claim {
			t.stamps[w] = t.stamp
			t.stamp++
			t.replay(w)
		}
		return e
	}
}

// recall looks whether one of those aside is well again: one with each choice, in turn.
func (t *tournament) recall(l *look) {
	if len(t.aside) == 0 {
		return
	}
	t.next %= len(t.aside)
	i := t.aside[t.next]
	if t.all[i].available(l.Now, false) == Down {
		t.next++
		return
	}
	t.aside = slices.Delete(t.aside, t.next, t.next+1)
	t.loads[i] = t.load(t.all[i])
	t.replay(i)
}
