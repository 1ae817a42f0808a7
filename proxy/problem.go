package proxy

import (
	"errors"
	"fmt"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/proxy/budget"
)

// Reason is a one-word reason that a service port is not served as configured.
type Reason string

const (
	ReasonProtocol Reason = "ProtocolNotServed" // usher or this node cannot carry the protocol
	ReasonSCTPOff  Reason = "SCTPOff"           // SCTP is not in use on this node, or disabled; see SCTPMode
	ReasonConflict Reason = "AddressConflict"   // another service port has the address and port
	ReasonNode     Reason = "NodeAddressInUse"  // a node port, a process or usher uses the port on this node
	ReasonListen   Reason = "ListenFailed"      // no listener could be opened
	ReasonPortal   Reason = "PortalFailed"      // the kernel rejected the portal's rule
)

// Problem is the reason that a service port is not served as configured. Unless the reason is ReasonProtocol, every
// check retries until the problem is solved or the port is removed.
type Problem struct {
	Reason Reason
	Err    error
	Since  time.Time
}

// noteProblems computes the problems of all service ports. It logs those that are new, changed or solved, and calls
// OnProblem. Planning failures take precedence over portal failures.
func (p *Proxy) noteProblems() {
	if len(p.failed)+len(p.refused)+len(p.problems) == 0 {
		return
	}
	now := make(map[config.PortID]*Problem, len(p.failed))
	for f, problem := range p.failed {
		now[f.ID()] = problem
	}
	for _, t := range portal.SortedTargets(p.refused) {
		if f := p.owners[t]; f != nil && now[f.ID()] == nil {
			now[f.ID()] = &Problem{Reason: ReasonPortal, Err: fmt.Errorf("%s: %w", t, p.refused[t])}
		}
	}
	before := p.problems
	p.problems = now
	for id, problem := range now {
		old := before[id]
		if old != nil && old.Reason == problem.Reason && old.Err.Error() == problem.Err.Error() {
			now[id] = old
			continue
		}
		if problem.Since = time.Now(); old != nil {
			problem.Since = old.Since
		}
		if p.OnProblem != nil {
			p.OnProblem(id, problem)
		}
		if !summarized(problem) && p.words.Allow(id.Namespace, time.Now()) {
			p.Log.WithFields(logrus.Fields{"service": id.String(), "reason": problem.Reason}).WithError(problem.Err).Error("Service port is not served as configured")
		}
	}
	for id, old := range before {
		if now[id] != nil || p.services[id.ServiceName()][id] == nil { // the service port was removed
			continue
		}
		if p.OnProblem != nil {
			p.OnProblem(id, nil)
		}
		if !summarized(old) && p.words.Allow(id.Namespace, time.Now()) {
			p.Log.WithFields(logrus.Fields{"service": id.String(), "reason": old.Reason}).Info("Problem with service port resolved")
		}
	}
	p.reportLeftOut()
}

// summarized reports whether there may be thousands of such problems: see reportLeftOut.
func summarized(p *Problem) bool {
	return errors.Is(p.Err, budget.ErrOpenFiles) || errors.Is(p.Err, budget.ErrLocalPorts)
}

// reportLeftOut logs how many service ports are not served because of the open files limit, and how many for lack of
// local ports. It logs each number when it grows, and once when it is 0 again.
func (p *Proxy) reportLeftOut() {
	left, noPort := 0, 0
	var why error
	for _, problem := range p.problems {
		switch {
		case errors.Is(problem.Err, budget.ErrOpenFiles):
			left++
		case errors.Is(problem.Err, budget.ErrLocalPorts):
			noPort, why = noPort+1, problem.Err
		}
	}
	b, before, hadNoPort := p.node.Budget, p.leftOut, p.noPort
	p.leftOut, p.noPort = left, noPort
	switch {
	case noPort > hadNoPort:
		p.Log.WithField("notServed", noPort).WithError(why).Error("Some service ports are not served")
	case noPort == 0 && hadNoPort > 0:
		p.Log.Info("All service ports have a local port again")
	}
	switch {
	case left > before:
		needed := max(b.NeededFor(left), b.Descriptors+int64(left)) // clients may have the others
		p.Log.WithFields(logrus.Fields{"limit": b.Descriptors, "listeners": b.Listeners.Load(), "notServed": left, "needed": needed}).
			Errorf("Open files limit of %d is too low: %d service ports are not served and refuse clients; raise it to %d or more (ulimit -n, LimitNOFILE=)", b.Descriptors, left, needed)
	case left == 0 && before > 0:
		p.Log.Info("The open files limit is high enough for all service ports again")
	}
}
