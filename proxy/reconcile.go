package proxy

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/proxy/frontend"
	"github.com/usherproxy/usher/proxy/trace"
)

// maxRounds is the maximum number of rounds of one reconcile. The first round makes the changes. Later rounds move
// listeners, and retry failures that may succeed because addresses have become free. The next reconcile handles front
// ends that are still dirty.
const maxRounds = 3

// mark makes the current or next reconcile plan f.
func (p *Proxy) mark(f *frontEnd) {
	if !f.dirty {
		f.dirty = true
		p.dirty = append(p.dirty, f)
	}
}

func (p *Proxy) failedToListen() bool {
	for _, problem := range p.failed {
		if problem.Reason == ReasonListen {
			return true
		}
	}
	return false
}

// markFailed marks the front ends whose plan failed, at least in part. If all is set, it skips those with an
// unsupported protocol, which never succeed; otherwise it marks only those that failed to listen. A plan takes time for
// each of up to 100,000 VIPs, so not every change retries failures. The portal retries its own failures.
//
// It marks them in the order of their IDs, so that chance does not decide which one gets a released target.
func (p *Proxy) markFailed(all bool) {
	var again []*frontEnd
	for f, problem := range p.failed {
		if problem.Reason == ReasonListen || all && problem.Reason != ReasonProtocol {
			again = append(again, f)
		}
	}
	slices.SortFunc(again, func(a, b *frontEnd) int { return a.ID().Compare(b.ID()) })
	for _, f := range again {
		p.mark(f)
	}
	p.released = p.released && !all
}

// reconcile adapts listeners and rules to the wanted state. Each round plans the dirty front ends (which opens
// listeners), has the portal install the rules, and closes unused listeners. Failures are recorded. If check is set,
// the portal first compares its rules with the kernel's, and reconcile retries all failures. Otherwise reconcile
// retries only failures that a released target or a closed listener may end. No other function retries failures.
//
// The caller holds both locks of a change. reconcile releases Proxy.mu during slow kernel operations.
func (p *Proxy) reconcile(ctx context.Context, check bool) {
	p.reconciling = time.Now()
	works := true
	if check {
		works = p.checkPortal(ctx)
		p.markNodeAddresses()
	}
	p.listening = nil
	if check || p.released {
		p.markFailed(true)
	}
	for round := range maxRounds {
		// A new listener may need the address, as after a rename of a Service.
		if len(p.unused) > 0 && len(p.dirty) > 0 && !p.Portal.Traits().Redirects {
			p.closeUnused()
			p.awaitRemoved()
		}
		// The portal may take long. Without redirects, another front end may still have a listener's address.
		if p.plan() && p.Portal.Traits().Redirects {
			p.noteProblems()
		}
		freed := len(p.unused) > 0
		// Close them first: Portal.Apply may remove their addresses, and no reset can come from a removed address.
		if freed && !p.Portal.Traits().Redirects {
			p.closeUnused()
		}
		if len(p.differ) > 0 || freed || round == 0 && works && (!check || p.applyDue) {
			freed = p.apply(freed) || freed
		}
		p.closeUnused() // after the rules that redirected to them are removed
		// Removed sockets may have blocked new listeners.
		if p.keeping.removed && p.failedToListen() && p.awaitRemoved() || freed {
			p.markFailed(p.released)
		}
		if len(p.dirty) == 0 {
			break
		}
	}
	p.noteProblems()
}

// closeUnused closes the listeners in p.unused, and removes their sockets from the Store.
func (p *Proxy) closeUnused() {
	for _, l := range p.unused {
		l.Close(frontend.Withdrawn)
		p.removeFromStore(l)
	}
	p.unused = nil
}

// plan plans the dirty front ends, and those that lose a VIP to them. First each claims its VIPs. Once all VIPs have
// their final owners, each opens its listeners. In a single pass, a front end that claims a VIP and then loses it could
// take the VIP's inherited socket from the final owner. Of a front end's failures, plan prefers ListenFailed, which is
// retried most often, and records a conflict only without another failure. It reports whether any plan failed.
func (p *Proxy) plan() (failed bool) {
	for i := 0; i < len(p.dirty); i++ { // claim may mark more
		f := p.dirty[i]
		if f.dirty = false; f.removed {
			continue
		}
		if problem := f.claim(); problem != nil {
			p.failed[f] = problem
		} else {
			delete(p.failed, f)
		}
	}
	for _, f := range p.dirty {
		if f.removed {
			continue
		}
		problem := p.failed[f]
		if err := f.bind(); err != nil {
			if why := listenReason(err); problem == nil || problem.Reason == ReasonConflict || why == ReasonListen {
				problem = &Problem{Reason: why, Err: err}
				p.failed[f] = problem
			}
		}
		failed = failed || problem != nil
	}
	p.dirty = nil
	return failed
}

// apply has the portal install the rules that differ, and reports whether targets lost their rule. moved means that
// there are unused listeners. If no rule differs and moved is not set, it calls the portal only if p.applyDue is set.
func (p *Proxy) apply(moved bool) (freed bool) {
	var res portal.Result
	if len(p.differ) > 0 || moved || p.applyDue {
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
	p.applyDue = false // unless it failed
	p.portalAnswered(&res)
	return freed
}

// checkPortal has the portal compare its rules with the kernel's, and repair them. It reports whether that succeeded.
func (p *Proxy) checkPortal(ctx context.Context) bool {
	var res portal.Result
	p.unlocked(func() { res = p.Portal.Check(ctx) })
	p.sync.note(func(s *SyncStatus) { s.LastChecked = time.Now() })
	if repaired := len(res.Repaired); repaired > 0 {
		p.counters.repaired.Add(int64(repaired))
		p.Trace.Change(&trace.Event{Kind: trace.PortalRepaired, Time: time.Now(), Count: repaired})
		p.Log.WithFields(logrus.Fields{"portal": p.Portal.Mode(), "repaired": repaired}).Warn("Restored missing or changed rules of the portal")
	}
	clear(p.refused) // res.Refused has all current ones
	p.portalAnswered(&res)
	return res.Err == nil
}

// portalAnswered records a result of the portal, and marks the front ends whose listeners have to move.
func (p *Proxy) portalAnswered(res *portal.Result) {
	maps.Copy(p.refused, res.Refused)
	for _, t := range res.Moved {
		if f := p.owners[t]; f != nil {
			p.mark(f)
		}
	}
	p.sync.note(func(s *SyncStatus) {
		if p.started { // before the first Apply, a check applies no change
			s.applied(p.reconciling, time.Now(), res)
		} else {
			s.Err = res.Err
		}
	})
	switch {
	case res.Err != nil:
		p.counters.portalFailures.Add(1)
		p.Log.WithError(res.Err).WithFields(logrus.Fields{"portal": p.Portal.Mode(), "interval": p.CheckInterval}).Error("Failed to update the portal; retrying")
	case p.started:
		p.counters.servicesApplied.Store(p.counters.serviceChanges.Load())
		p.counters.endpointsApplied.Store(p.counters.endpointChanges.Load())
	}
	p.applyDue = p.applyDue || p.started && res.Err != nil
}
