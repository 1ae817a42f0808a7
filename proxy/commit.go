package proxy

import (
	"maps"
	"slices"
	"time"

	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/proxy/frontend"
)

// change collects what has to be done in the kernel: listeners are open
// already, then come the rules, then the listeners that nobody needs any more.
type change struct {
	set   map[portal.Target]portal.Rule
	gone  map[portal.Target]bool
	close []frontend.Listener
	// losers are front ends from which others have taken a VIP. They do without once
	// all that is new is known, their own news included.
	losers map[*frontEnd]bool
}

func (c *change) lost(f *frontEnd) {
	if c.losers == nil {
		c.losers = map[*frontEnd]bool{}
	}
	c.losers[f] = true
}

// settle updates the losers.
func (c *change) settle() {
	for len(c.losers) > 0 { // who loses a VIP may take its cluster IP from another
		losers := c.losers
		c.losers = nil
		for f := range losers {
			f.update(f.View().Port, c)
		}
	}
}

func (c *change) add(r portal.Rule) {
	if c.set == nil {
		c.set = map[portal.Target]portal.Rule{}
	}
	c.set[r.Target] = r
	delete(c.gone, r.Target)
}

func (c *change) drop(t portal.Target) {
	if c.gone == nil {
		c.gone = map[portal.Target]bool{}
	}
	c.gone[t] = true
	delete(c.set, t)
}

func (c *change) empty() bool {
	return len(c.set)+len(c.gone)+len(c.close)+len(c.losers) == 0
}

// commit carries out c. It is called with both locks of a change, and gives Proxy.mu
// back while the kernel is at work.
func (p *Proxy) commit(c *change) {
	c.settle()
	rules := slices.SortedFunc(maps.Values(c.set), func(a, b portal.Rule) int { return a.Target.Compare(b.Target) })
	gone := slices.SortedFunc(maps.Keys(c.gone), portal.Target.Compare)
	var res portal.Result
	p.unlocked(func() { res = p.Portal.Apply(p.ctx, rules, gone) })
	for _, t := range gone {
		delete(p.refused, t)
	}
	for _, r := range rules {
		delete(p.refused, r.Target)
	}
	p.portalAnswered(&res)
	for _, l := range c.close {
		l.Close(frontend.Withdrawn)
		p.keepNoMore(l)
	}
}

// portalAnswered takes note of what the portal has achieved.
func (p *Proxy) portalAnswered(res *portal.Result) {
	maps.Copy(p.refused, res.Refused)
	var again change
	for _, t := range res.Moved {
		if f := p.owners[t]; f != nil {
			f.update(f.View().Port, &again)
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
		p.Log.WithError(res.Err).Errorf("The %s portal could not be brought up to date; trying again every %s", p.Portal.Mode(), p.CheckInterval)
	case p.started:
		p.counters.appliedChanges()
	}
	p.reviewRefused()
	if !again.empty() {
		p.commit(&again)
	}
}

// reviewRefused reviews the service ports that have, or had, a rule that the
// kernel refuses.
func (p *Proxy) reviewRefused() {
	concerned := map[*frontEnd]bool{}
	for id, problem := range p.problems {
		if f := p.services[id.ServiceName()][id]; f != nil && problem.Reason == ReasonPortal {
			concerned[f] = true
		}
	}
	for t := range p.refused {
		if f := p.owners[t]; f != nil {
			concerned[f] = true
		}
	}
	for f := range concerned {
		p.review(f)
	}
}

// retry tries again what could not be served.
func (p *Proxy) retry() {
	p.awaitRemoved()
	var c change
	for id, problem := range p.problems {
		f := p.services[id.ServiceName()][id]
		if f == nil || f.trouble == nil || problem.Reason == ReasonProtocol {
			continue // the portal tries again by itself; a protocol is not learned
		}
		f.update(f.View().Port, &c)
	}
	if !c.empty() {
		p.commit(&c)
	}
}
