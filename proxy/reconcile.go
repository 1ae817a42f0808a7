package proxy

import (
	"context"
	"maps"
	"time"

	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/proxy/frontend"
	"github.com/usherproxy/usher/proxy/trace"
)

// maxRounds is how many rounds one reconcile makes: the first carries out what has changed; the
// next try again what the first has made possible, and move listeners. What is still dirty then
// is left for the next reconcile.
const maxRounds = 3

// mark makes reconcile plan f.
func (p *Proxy) mark(f *frontEnd) {
	if !f.dirty {
		f.dirty = true
		p.dirty = append(p.dirty, f)
	}
}

// markFailed marks the front ends that could not do all that is wanted. What the portal could not
// do it tries again by itself; a protocol that is not served will not be.
func (p *Proxy) markFailed() {
	for f, problem := range p.failed {
		if problem.Reason != ReasonProtocol {
			p.mark(f)
		}
	}
}

// reconcile brings listeners and rules to what is wanted. Each round plans the front ends that
// are dirty, which opens listeners, has the portal put in the rules, closes the listeners that are
// left over, and notes what failed. With check, the portal compares its rules with the kernel's
// before. It is the only place that tries again.
//
// It is called with both locks of a change, and gives Proxy.mu back while the kernel is at work.
func (p *Proxy) reconcile(ctx context.Context, check bool) {
	if check {
		p.checkPortal(ctx)
		p.markNodeAddresses()
	}
	p.markFailed()
	for round := range maxRounds {
		if p.plan() {
			p.noteProblems() // now, since the portal may take long
		}
		freed := len(p.unused) > 0
		if freed && !p.Portal.Traits().Redirects { // Apply may take away their addresses, and the kernel sends no reset from those
			p.closeUnused()
		}
		if len(p.differ) > 0 || freed || round == 0 && !check {
			freed = p.apply(freed) || freed
		}
		p.closeUnused()                                     // after the rules that led to them
		if p.keeping.removed && p.awaitRemoved() || freed { // which may have been in the way
			p.markFailed()
		}
		if len(p.dirty) == 0 {
			break
		}
	}
	p.noteProblems()
}

// closeUnused closes the listeners that are left over.
func (p *Proxy) closeUnused() {
	for _, l := range p.unused {
		l.Close(frontend.Withdrawn)
		p.keepNoMore(l)
	}
	p.unused = nil
}

// plan plans the front ends that are dirty, and those that lose a VIP to them. It reports whether
// there were front ends that could not do all that is wanted.
func (p *Proxy) plan() (failed bool) {
	for len(p.dirty) > 0 {
		f := p.dirty[0]
		p.dirty = p.dirty[1:]
		f.dirty = false
		if f.removed {
			continue
		}
		if problem := f.plan(); problem != nil {
			p.failed[f], failed = problem, true
		} else {
			delete(p.failed, f)
		}
	}
	p.dirty = nil
	return failed
}

// apply has the portal put in the rules that differ, and reports whether targets have none any
// more. If no rule differs, and no listener is moved, the portal is not called unless that is due.
func (p *Proxy) apply(moved bool) (freed bool) {
	var res portal.Result
	if len(p.differ) > 0 || moved || p.due {
		var set []portal.Rule
		var gone []portal.Target
		for _, t := range portal.SortedTargets(p.differ) {
			delete(p.refused, t)
			if r, is := p.rules[t]; is {
				set = append(set, r)
			} else {
				gone = append(gone, t)
			}
		}
		p.differ, freed = map[portal.Target]bool{}, len(gone) > 0
		p.unlocked(func() { res = p.Portal.Apply(p.ctx, set, gone) })
	}
	p.portalAnswered(&res)
	return freed
}

// checkPortal has the portal compare its rules with the kernel's, and repair them.
func (p *Proxy) checkPortal(ctx context.Context) {
	var res portal.Result
	p.unlocked(func() { res = p.Portal.Check(ctx) })
	p.sync.note(func(s *SyncStatus) { s.LastChecked = time.Now() })
	if repaired := len(res.Repaired); repaired > 0 {
		p.counters.repaired.Add(int64(repaired))
		p.Trace.Change(&trace.Event{Kind: trace.PortalRepaired, Time: time.Now(), Count: repaired})
		p.Log.WithField("repaired", repaired).Warnf("Restored missing or changed rules of the %s portal", p.Portal.Mode())
	}
	clear(p.refused) // res has them all
	p.portalAnswered(&res)
}

// portalAnswered takes note of what the portal has achieved, and marks the front ends whose
// listeners have to move.
func (p *Proxy) portalAnswered(res *portal.Result) {
	maps.Copy(p.refused, res.Refused)
	for _, t := range res.Moved {
		if f := p.owners[t]; f != nil {
			p.mark(f)
		}
	}
	p.sync.note(func(s *SyncStatus) {
		if p.started { // a check before the first Apply brings nothing up to date
			s.applied(time.Now(), res)
		} else {
			s.Err = res.Err
		}
	})
	switch {
	case res.Err != nil:
		p.counters.portalFailures.Add(1)
		p.Log.WithError(res.Err).Errorf("Failed to update the %s portal; retrying every %s", p.Portal.Mode(), p.CheckInterval)
	case p.started:
		p.counters.appliedChanges()
	}
	if p.started {
		p.due = res.Err != nil
	}
}
