package probe

import (
	"container/heap"
	"context"
	"sync"
	"time"
)

// Target wants to know how probes end. Its methods are called one at a
// time, must return quickly, and must not call the Prober. Targets are compared: one
// that is added again is the same.
type Target interface {
	// Wanted reports whether it still wants to know. It is asked before each probe.
	Wanted() bool
	// Probed is told how a probe ended: err is what Options.Dial has returned. It
	// returns after how long the next one is wanted; 0 means none.
	Probed(err error) (next time.Duration)
}

// Options are what a Prober is made of. Dial, Gap and AtOnce are required. What is to be probed, and
// how, is in K: an address, say.
type Options[K comparable] struct {
	// Dial makes a probe. It sees to it that this does not last, and returns when ctx
	// ends, which is when the Prober is stopped.
	Dial func(ctx context.Context, to K) error
	// Gap is the least time between the beginnings of two probes, AtOnce how many may be
	// under way.
	Gap    time.Duration
	AtOnce int
	// InTurn says that of many that are due the one comes first that has been due for
	// longest; otherwise it is the one that was left alone for the shortest time.
	InTurn bool
	// Share, if not nil, says whose a probe is: of one no more than a quarter of AtOnce are under
	// way, and while probes of several are due, each begins as many as the others.
	Share func(to K) string
	// Began, if not nil, is told how late each probe begins. It must return quickly, and not
	// call the Prober.
	Began func(to K, late time.Duration)
}

// Prober makes probes. Its methods may be called from any goroutine.
type Prober[K comparable] struct {
	Options[K]
	ctx  context.Context
	stop context.CancelFunc

	mu       sync.Mutex
	jobs     map[K]*job[K]
	waiting  queue[K] // jobs that are not due
	due      queue[K] // jobs that are, and wait to be allowed
	underWay int
	shares   map[string]int // of those under way, by Share
	turn     int            // the one of the last that began
	turns    map[string]int // the last one that was given out, by Share; of those that are due
	next     time.Time      // no probe begins before
	running  bool

	look    chan struct{} // something has changed that run should look at
	workers sync.WaitGroup
}

// New returns a Prober that has nothing to do.
func New[K comparable](options Options[K]) *Prober[K] {
	p := &Prober[K]{Options: options, jobs: map[K]*job[K]{}, shares: map[string]int{}, turns: map[string]int{}, look: make(chan struct{}, 1)}
	p.waiting.less = func(a, b *job[K]) bool { return a.due.Before(b.due) }
	// When many are due, those first that have been left alone for a short time: who has
	// just failed does not wait for ten thousand that have been dead for long.
	p.due.less = func(a, b *job[K]) bool { return a.wait < b.wait }
	if p.InTurn {
		p.due.less = p.waiting.less
	}
	if first := p.due.less; p.Share != nil {
		p.due.less = func(a, b *job[K]) bool { return a.turn < b.turn || a.turn == b.turn && first(a, b) }
	}
	p.ctx, p.stop = context.WithCancel(context.Background())
	return p
}

// Add has to probed after wait, for t. If others want to know about it sooner, t is
// told then. A Prober that was stopped does nothing.
func (p *Prober[K]) Add(to K, t Target, wait time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ctx.Err() != nil {
		return
	}
	j := p.jobs[to]
	switch due := time.Now().Add(wait); {
	case j == nil:
		j = &job[K]{to: to, targets: map[Target]bool{}}
		p.jobs[to] = j
		p.schedule(j, wait)
	case j.queue == &p.waiting && due.Before(j.due), j.queue == &p.due && wait < j.wait && !p.InTurn:
		heap.Remove(j.queue, j.place)
		p.schedule(j, wait)
	}
	j.targets[t] = true
}

// Remove has to no longer probed for t. A probe that is under way ends, and t may be told of it.
func (p *Prober[K]) Remove(to K, t Target) {
	p.mu.Lock()
	defer p.mu.Unlock()
	j := p.jobs[to]
	if j == nil {
		return
	}
	if delete(j.targets, t); len(j.targets) == 0 && j.queue != nil {
		heap.Remove(j.queue, j.place)
		delete(p.jobs, to)
	}
}

// heldBack is how long a probe waits whose share is used up.
const heldBack = 100 * time.Millisecond

// share returns whose j is, and whether its share is used up. It is called with mu.
func (p *Prober[K]) share(j *job[K]) (whose string, usedUp bool) {
	if p.Share == nil {
		return "", false
	}
	whose = p.Share(j.to)
	return whose, p.shares[whose] >= max(1, p.AtOnce/4)
}

// schedule has j probed after wait. It is called with mu.
func (p *Prober[K]) schedule(j *job[K], wait time.Duration) {
	j.wait, j.due = wait, time.Now().Add(wait)
	j.wanted = j.due
	heap.Push(&p.waiting, j)
	p.wake()
}

// Stop ends the probes that are under way, and returns when nothing runs any more.
func (p *Prober[K]) Stop() {
	p.mu.Lock()
	p.stop()
	p.mu.Unlock()
	p.workers.Wait()
}

// wake makes run look again, and starts it if need be. It is called with mu.
func (p *Prober[K]) wake() {
	if !p.running {
		p.running = true
		p.workers.Go(p.run)
		return
	}
	select {
	case p.look <- struct{}{}:
	default:
	}
}

// run begins each probe when its time comes, until nobody waits.
func (p *Prober[K]) run() {
	for {
		wait, waiting := p.begin()
		if !waiting {
			return
		}
		select {
		case <-p.ctx.Done():
			return
		case <-p.look:
		case <-time.After(wait):
		}
	}
}

// begin begins the probes that are due, and returns how long to wait for the next;
// waiting is false, and running too, if there is none.
func (p *Prober[K]) begin() (wait time.Duration, waiting bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	for p.waiting.Len() > 0 && !p.waiting.jobs[0].due.After(now) {
		j := heap.Pop(&p.waiting).(*job[K])
		if p.Share != nil { // start-time fair queueing: owners with many due probes get the later turns
			whose := p.Share(j.to)
			j.turn = max(p.turn, p.turns[whose]+1)
			p.turns[whose] = j.turn
		}
		heap.Push(&p.due, j)
	}
	for p.due.Len() > 0 {
		if wait := p.next.Sub(now); wait > 0 {
			return wait, true
		}
		if p.underWay == p.AtOnce {
			return time.Minute, true // the first that ends wakes run
		}
		j := heap.Pop(&p.due).(*job[K])
		if p.turn = j.turn; p.due.Len() == 0 {
			p.turn = 0
			clear(p.turns)
		}
		for t := range j.targets {
			if !t.Wanted() {
				delete(j.targets, t)
			}
		}
		if len(j.targets) == 0 {
			delete(p.jobs, j.to)
			continue
		}
		whose, usedUp := p.share(j)
		if usedUp {
			j.due = now.Add(heldBack)
			heap.Push(&p.waiting, j)
			continue
		}
		if p.Began != nil {
			p.Began(j.to, now.Sub(j.wanted))
		}
		p.underWay++
		p.shares[whose]++
		p.next = now.Add(p.Gap)
		p.workers.Go(func() { p.probe(j) })
	}
	if p.waiting.Len() > 0 {
		return p.waiting.jobs[0].due.Sub(now), true
	}
	p.running = false
	return 0, false
}

// probe makes one probe and tells those who want to know.
func (p *Prober[K]) probe(j *job[K]) {
	err := p.Dial(p.ctx, j.to)
	p.mu.Lock() // until all is settled: a target that fails again meanwhile is added behind that
	defer p.mu.Unlock()
	p.underWay--
	if whose, _ := p.share(j); p.shares[whose] > 1 {
		p.shares[whose]--
	} else {
		delete(p.shares, whose)
	}
	if p.ctx.Err() != nil {
		return // err is nobody's fault
	}
	var soonest time.Duration
	for t := range j.targets {
		next := t.Probed(err)
		if next == 0 {
			delete(j.targets, t)
		} else if soonest == 0 || next < soonest {
			soonest = next
		}
	}
	if len(j.targets) == 0 {
		delete(p.jobs, j.to)
		p.wake() // another one may begin
		return
	}
	p.schedule(j, soonest)
}

// job is what is probed and who wants to know about it.
type job[K comparable] struct {
	to      K
	targets map[Target]bool
	wait    time.Duration // since the last probe, or since it was added
	due     time.Time     // when that is over
	wanted  time.Time     // due, before it was held back
	queue   *queue[K]     // in which it is, and where; nil while the probe is under way
	place   int
	turn    int // in which it begins, once it is due; see Options.Share
}

// queue is a heap of jobs.
type queue[K comparable] struct {
	jobs []*job[K]
	less func(a, b *job[K]) bool
}

func (q *queue[K]) Len() int           { return len(q.jobs) }
func (q *queue[K]) Less(i, j int) bool { return q.less(q.jobs[i], q.jobs[j]) }
func (q *queue[K]) Swap(i, j int) {
	q.jobs[i], q.jobs[j] = q.jobs[j], q.jobs[i]
	q.jobs[i].place, q.jobs[j].place = i, j
}

// Push implements heap.Interface.
func (q *queue[K]) Push(x any) {
	j := x.(*job[K])
	j.queue, j.place = q, len(q.jobs)
	q.jobs = append(q.jobs, j)
}

// Pop implements heap.Interface.
func (q *queue[K]) Pop() any {
	last := len(q.jobs) - 1
	j := q.jobs[last]
	q.jobs[last] = nil
	q.jobs = q.jobs[:last]
	j.queue = nil
	return j
}
