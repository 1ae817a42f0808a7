package health

import (
	"cmp"
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/time/rate"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/proxy/balance"
	"github.com/usherproxy/usher/proxy/forward"
	"github.com/usherproxy/usher/proxy/frontend"
	"github.com/usherproxy/usher/proxy/trace"
)

// The shortest intervals between the starts of two probes of a kind. They allow 100 rechecks and 500 checks a second.
const (
	recheckGap = 10 * time.Millisecond
	checkGap   = 2 * time.Millisecond
)

// Prober probes the endpoints of the Services that this node serves. It is safe for concurrent use.
type Prober struct {
	node   *frontend.Node
	dial   func(ctx context.Context, to *config.Endpoint) (forward.Conn, error)
	atOnce int // maximum number of concurrent probes of each kind
	ctx    context.Context
	stop   context.CancelFunc
	probes sync.WaitGroup // those in progress

	mu               sync.Mutex
	jobs             map[probe]*job
	rechecks, checks queue
	overload         rate.Sometimes // limits how often an overload is logged
}

// New returns a Prober that connects with dial, and has nothing to probe yet.
func New(node *frontend.Node, dial func(ctx context.Context, to *config.Endpoint) (forward.Conn, error)) *Prober {
	p := &Prober{
		node: node, dial: dial, atOnce: int(node.Budget.Probes()), jobs: map[probe]*job{},
		rechecks: queue{gap: recheckGap, namespaces: map[string]*namespaceQueue{}},
		checks:   queue{gap: checkGap, namespaces: map[string]*namespaceQueue{}},
		overload: rate.Sometimes{Interval: time.Minute},
	}
	p.ctx, p.stop = context.WithCancel(context.Background())
	return p
}

// maxPerNamespace returns the maximum number of concurrent probes of each kind for one namespace.
func (p *Prober) maxPerNamespace() int { return max(1, p.atOnce/4) }

// job is a probe and its targets, the endpoints that get its results. A job without targets is dropped: at once if it
// is not due yet, after the probe if one is in progress. A queued job is dropped by dropUnwanted, or by begin at its
// turn.
type job struct {
	probe
	targets map[target]bool
	wait    time.Duration // delay with which it was last scheduled; rechecks are ordered by it
	due     time.Time
	timer   *time.Timer // fires at due; nil from due until the probe has ended
}

// queue holds the probes of one kind that are due. Namespaces take turns.
type queue struct {
	gap        time.Duration
	pausing    bool // the last probe began less than gap ago
	underWay   int
	namespaces map[string]*namespaceQueue // by name: those with probes that are due or in progress
	turns      []*namespaceQueue          // those that may begin a probe, in the order of their turns
}

// namespaceQueue is a namespace's part of a queue.
type namespaceQueue struct {
	namespace string
	due       []*job // the next one first
	underWay  int
	inTurns   bool // it is in queue.turns
}

// Recheck probes a failed endpoint after wait. It repeats the probe until the endpoint is removed, or until the
// quarantine that clients' failed attempts caused has ended.
func (p *Prober) Recheck(f *frontend.FrontEnd, e *balance.Endpoint, wait time.Duration) {
	p.add(probe{f.ID().Namespace, e.Addr, recheck}, target{f, e.State}, wait)
}

// Update is called when f gets a new View. It replaces the checks that the old View (before) requested with those of
// the new one (after). Removing or changing a check ends the quarantine that it caused.
func (p *Prober) Update(f *frontend.FrontEnd, before, after *frontend.View) {
	was, is := checksOf(before), checksOf(after)
	for state, check := range was {
		if is[state] != check {
			p.remove(check, target{f, state})
		}
	}
	p.dropUnwanted(f.ID().Namespace)
	for _, e := range after.All {
		if check, checked := was[e.State]; checked && is[e.State] != check {
			e.Report(balance.Report{Kind: balance.CheckOff, Now: time.Now()}, balance.Policy{})
		}
	}
	for state, check := range is {
		if was[state] != check {
			p.add(check, target{f, state}, rand.N(check.Interval)) // spread over the interval, differently on each node
		}
	}
}

// Stop cancels probes in progress, and returns when they have ended. No new ones begin.
func (p *Prober) Stop() {
	p.mu.Lock()
	p.stop()
	p.mu.Unlock()
	p.probes.Wait()
}

// add schedules pr for t after wait, or sooner if other targets need it sooner.
func (p *Prober) add(pr probe, t target, wait time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	j := p.jobs[pr]
	if j == nil {
		j = &job{probe: pr, targets: map[target]bool{}}
		p.jobs[pr] = j
		p.schedule(j, wait)
	} else if j.timer != nil && wait < time.Until(j.due) {
		j.timer.Stop()
		p.schedule(j, wait)
	}
	j.targets[t] = true
}

// remove removes t from pr's targets. No result is reported to t from then on.
func (p *Prober) remove(pr probe, t target) {
	p.mu.Lock()
	defer p.mu.Unlock()
	j := p.jobs[pr]
	if j == nil {
		return
	}
	if delete(j.targets, t); len(j.targets) == 0 && j.timer != nil {
		j.timer.Stop()
		j.timer = nil
		delete(p.jobs, pr)
	}
}

// dropUnwanted removes the checks without targets from a namespace's queue. It leaves the head of the queue to method
// begin, since turns may contain the namespace because of it.
func (p *Prober) dropUnwanted(namespace string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	ns := p.checks.namespaces[namespace]
	if ns == nil || len(ns.due) == 0 {
		return
	}
	ns.due = ns.due[:1+len(slices.DeleteFunc(ns.due[1:], func(j *job) bool {
		if len(j.targets) > 0 {
			return false
		}
		delete(p.jobs, j.probe)
		return true
	}))]
}

// schedule makes j due after wait. The caller holds mu.
func (p *Prober) schedule(j *job, wait time.Duration) {
	j.wait, j.due = wait, time.Now().Add(wait)
	var timer *time.Timer
	timer = time.AfterFunc(wait, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if j.timer == timer { // else the job has just been scheduled again or removed
			j.timer = nil
			p.enqueue(j)
		}
	})
	j.timer = timer
}

// queue returns the queue that j joins when it is due.
func (p *Prober) queue(j *job) *queue {
	if j.isRecheck() {
		return &p.rechecks
	}
	return &p.checks
}

// enqueue queues j, which is due. A recheck goes behind those with the same or a shorter wait, a check to the end. The
// caller holds mu.
func (p *Prober) enqueue(j *job) {
	q := p.queue(j)
	ns := q.namespaces[j.namespace]
	if ns == nil {
		ns = &namespaceQueue{namespace: j.namespace}
		q.namespaces[j.namespace] = ns
	}
	at := len(ns.due)
	if j.isRecheck() {
		at, _ = slices.BinarySearchFunc(ns.due, j.wait+1, func(other *job, wait time.Duration) int { return cmp.Compare(other.wait, wait) })
	}
	ns.due = slices.Insert(ns.due, at, j)
	p.updateTurns(q, ns)
	p.begin(q)
}

// updateTurns appends ns to q.turns if ns has a due probe and fewer than maxPerNamespace in progress, unless it is
// there already. If ns has none due or in progress, updateTurns deletes it from q.namespaces. The caller holds mu.
func (p *Prober) updateTurns(q *queue, ns *namespaceQueue) {
	switch {
	case ns.inTurns:
	case len(ns.due) > 0 && ns.underWay < p.maxPerNamespace():
		ns.inTurns = true
		q.turns = append(q.turns, ns)
	case len(ns.due) == 0 && ns.underWay == 0:
		delete(q.namespaces, ns.namespace)
	}
}

// begin begins q's next probe, if the limits permit one now. It drops due jobs without targets. The caller holds mu.
func (p *Prober) begin(q *queue) {
	for len(q.turns) > 0 && !q.pausing && q.underWay < p.atOnce && p.ctx.Err() == nil {
		ns := q.turns[0]
		q.turns = q.turns[1:]
		ns.inTurns = false
		j := ns.due[0]
		ns.due = ns.due[1:]
		if j.dropTargets(); len(j.targets) == 0 {
			delete(p.jobs, j.probe)
			p.updateTurns(q, ns)
			continue
		}
		if late := time.Since(j.due); !j.isRecheck() && late > j.Interval {
			p.node.Counters.LateProbes.Add(1)
			p.overload.Do(func() {
				p.node.Log.WithFields(logrus.Fields{"maxPerSecond": int(time.Second / checkGap), "maxAtOnce": p.atOnce, "maxPerNamespace": p.maxPerNamespace(), "endpoint": j.at, "delay": trace.Short(late)}).
					Warn("A requested probe starts late, because a limit on probes is reached")
			})
		}
		q.pausing = true
		time.AfterFunc(q.gap, func() {
			p.mu.Lock()
			defer p.mu.Unlock()
			q.pausing = false
			p.begin(q)
		})
		q.underWay++
		ns.underWay++
		p.updateTurns(q, ns)
		p.probes.Go(func() { p.run(j, q, ns) })
	}
}

// run carries out j's probe and reports the result. The job comes from ns, a namespace's part of q.
func (p *Prober) run(j *job, q *queue, ns *namespaceQueue) {
	err := p.ask(j.probe)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ctx.Err() != nil {
		return // Stop has canceled it
	}
	q.underWay--
	ns.underWay--
	p.updateTurns(q, ns)
	p.node.Counters.Probes[resultOf(err)].Add(1)
	var soonest time.Duration
	for t := range j.targets {
		next := j.report(t, err)
		if next == 0 {
			delete(j.targets, t)
		} else if soonest == 0 || next < soonest {
			soonest = next
		}
	}
	if len(j.targets) > 0 {
		p.schedule(j, soonest)
	} else {
		delete(p.jobs, j.probe)
	}
	p.begin(q)
}
