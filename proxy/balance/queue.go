package balance

import (
	"container/list"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// QueueLimit is the maximum number of clients that wait for the endpoints of a Pool. A client that has waited before
// may exceed it.
const QueueLimit = 1024

// group holds the queues of clients that may use the same endpoints.
type group struct {
	retries queue // of clients whose endpoint failed: they already had a slot, and take precedence
	fresh   queue // of clients that have not tried any
}

// queue holds clients that wait for a free slot, in order of arrival. A free slot is reserved for no client: the front
// client is woken and takes the slot, if it is still free. So each slot wakes few clients, however many wait.
type queue struct {
	pool *Pool
	next *queue // gets the slots that this queue's front client cannot use; may be nil

	clients atomic.Int64
	mu      sync.Mutex
	list    list.List // of *Waiter
}

// Waiter is one client's entry in a queue. Its zero value is a client that has not waited yet. It is not safe for
// concurrent use.
type Waiter struct {
	in     *queue        // nil while the client does not wait
	at     *list.Element // its element in the list of that queue
	woken  chan struct{} // has a value if the client must look for a slot again
	waited bool
}

// groups returns the groups of the Pool's Sets, and creates them if needed.
func (p *Pool) groups() *[3]group {
	if p.queues.Load() == nil {
		var g [3]group
		for i := range g {
			g[i].retries.pool, g[i].retries.next, g[i].fresh.pool = p, &g[i].fresh, p
		}
		p.queues.CompareAndSwap(nil, &g)
	}
	return p.queues.Load()
}

// queue returns the queue of clients that have affinity to the endpoint.
func (e *Endpoint) queue() *queue {
	r := e.ensureRare()
	if r.queue.Load() == nil {
		r.queue.CompareAndSwap(nil, &queue{pool: e.pool})
	}
	return r.queue.Load()
}

// queue returns the queue in which a client waits. If kept is set, that is the queue for the endpoint at the address
// previous; otherwise, one for any endpoint.
func (s *Set) queue(a Request, previous netip.AddrPort, kept bool) *queue {
	g := &s.pool.groups()[s.group]
	switch {
	case kept:
		return s.Find(previous).queue()
	case a.Retry || len(a.Tried) > 0:
		return &g.retries
	}
	return &g.fresh
}

// QueueTimeout returns how long a client may wait.
func (s *Set) QueueTimeout() time.Duration { return s.timeout }

// Queued returns the number of clients that wait for an endpoint of the Pool.
func (s *Set) Queued() int { return int(s.pool.waiting.Load()) }

// join makes the client wait in q. It returns false if the client already waits in q, or if QueueLimit is reached and
// the client has never waited. A client that waited in another queue goes to the end of q.
func (w *Waiter) join(q *queue) bool {
	switch {
	case w.in == q:
		q.passOn()
		return false
	case w.in != nil:
		w.dequeue()
	case q.pool.waiting.Add(1) > QueueLimit && !w.waited:
		q.pool.waiting.Add(-1)
		return false
	}
	if !w.waited {
		w.waited, w.woken = true, make(chan struct{}, 1)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	w.in, w.at = q, q.list.PushBack(w)
	q.clients.Add(1)
	return true
}

// Leave ends the client's wait, if it waits.
func (w *Waiter) Leave() {
	if q := w.in; q != nil {
		w.dequeue()
		w.in = nil
		q.pool.waiting.Add(-1)
	}
}

// dequeue removes the client from its queue. If it was at the front, the next one looks for a slot.
func (w *Waiter) dequeue() {
	q := w.in
	q.mu.Lock()
	front := q.list.Front() == w.at
	q.list.Remove(w.at)
	q.mu.Unlock()
	if q.clients.Add(-1); front {
		q.wake()
		q.passOn()
	}
}

// Waits reports whether the client waits.
func (w *Waiter) Waits() bool { return w.in != nil }

// Front reports whether the client is the first in its queue. It may be called only while the client waits. Only the
// first client is woken when a slot may be free, and only it looks at endpoints. Others are woken when they become the
// front.
func (w *Waiter) Front() bool {
	w.in.mu.Lock()
	defer w.in.mu.Unlock()
	return w.in.list.Front() == w.at
}

// Woken receives a value when the waiting client must look again.
func (w *Waiter) Woken() <-chan struct{} { return w.woken }

// wake makes the front client look again.
func (q *queue) wake() {
	if q.clients.Load() == 0 {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if front := q.list.Front(); front != nil {
		select {
		case front.Value.(*Waiter).woken <- struct{}{}:
		default: // already woken, and has not looked since
		}
	}
}

// passOn wakes the next queue's front client, for slots that the front client of this queue does not use.
func (q *queue) passOn() {
	if q.next != nil {
		q.next.wake()
	}
}

// wake wakes the front client of several queues: e's affinity queue and, in each group, group.retries, or group.fresh
// if retries is empty. Call it when e has a free slot or its state has changed, and only if clients wait.
func (p *Pool) wake(e *Endpoint) {
	var queues []*queue
	if q := e.rare().queue.Load(); q != nil {
		queues = append(queues, q)
	}
	for groups, i := p.groups(), 0; i < len(groups); i++ {
		if g := &groups[i]; g.retries.clients.Load() > 0 {
			queues = append(queues, &g.retries)
		} else {
			queues = append(queues, &g.fresh)
		}
	}
	queues = slices.DeleteFunc(queues, func(q *queue) bool { return q.clients.Load() == 0 })
	first := rand.IntN(max(1, len(queues))) // the first to be woken has an advantage
	for i := range queues {
		queues[(first+i)%len(queues)].wake()
	}
}
