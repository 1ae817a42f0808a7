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

// Reason says in one word why a service port is not served as it should be.
type Reason string

// The reasons.
const (
	ReasonProtocol Reason = "ProtocolNotServed" // usher or this node cannot carry the protocol
	ReasonSCTPOff  Reason = "SCTPOff"           // SCTP is not in use on this node, or switched off; see SCTPMode
	ReasonConflict Reason = "AddressConflict"   // another service port has the address and port
	ReasonNode     Reason = "NodeAddressInUse"  // a node port or a process has the port of an address of this node
	ReasonListen   Reason = "ListenFailed"      // no listener could be opened
	ReasonPortal   Reason = "PortalFailed"      // the kernel did not take the portal's rule
)

// Problem is why a service port is not served as it should be. It is tried
// again at every check until it is solved or the port is gone.
type Problem struct {
	Reason Reason
	Err    error
	Since  time.Time
}

// review finds out whether f has a problem now, and which. What f itself could not
// do comes before what the portal could not.
func (p *Proxy) review(f *frontEnd) {
	if f.trouble != nil {
		p.problem(f.ID(), f.trouble.Reason, f.trouble.Err)
		return
	}
	var first portal.Target
	for _, o := range f.owned {
		if p.refused[o.Target] != nil && (!first.Addr.IsValid() || o.Target.Compare(first) < 0) {
			first = o.Target
		}
	}
	if err := p.refused[first]; err != nil {
		p.problem(f.ID(), ReasonPortal, fmt.Errorf("%s: %w", first, err))
		return
	}
	p.solved(f.ID())
}

// problem notes that the port id has a problem, and logs it if it is new.
func (p *Proxy) problem(id config.PortID, reason Reason, err error) {
	old := p.problems[id]
	if old != nil && old.Reason == reason && old.Err.Error() == err.Error() {
		return
	}
	since := time.Now()
	if old != nil {
		since = old.Since
	}
	problem := &Problem{Reason: reason, Err: err, Since: since}
	p.problems[id] = problem
	if p.OnProblem != nil {
		p.OnProblem(id, problem)
	}
	if !errors.Is(err, budget.ErrOpenFiles) { // of which there may be thousands: see reportOpenFiles
		p.Log.WithFields(logrus.Fields{"service": id.String(), "reason": reason}).WithError(err).Error("Service port is not served")
	}
}

// solved notes that the port id has no problem, or none any more.
func (p *Proxy) solved(id config.PortID) {
	if old := p.problems[id]; old != nil {
		delete(p.problems, id)
		if p.OnProblem != nil {
			p.OnProblem(id, nil)
		}
		if !errors.Is(old.Err, budget.ErrOpenFiles) {
			p.Log.WithFields(logrus.Fields{"service": id.String(), "reason": old.Reason}).Info("Problem with service port is over")
		}
	}
}

// reportOpenFiles says once how many service ports the limit cannot hold, when
// there are such, when there are more, and when there are none any more.
func (p *Proxy) reportOpenFiles() {
	left := 0
	for _, problem := range p.problems {
		if errors.Is(problem.Err, budget.ErrOpenFiles) {
			left++
		}
	}
	before := p.leftOut
	p.leftOut = left
	switch {
	case left > before:
		b := p.node.Budget
		needed := b.NeededFor(left)
		p.Log.WithFields(logrus.Fields{"limit": b.Descriptors, "listeners": b.Listeners.Load(), "not-served": left, "needed": needed}).
			Errorf("The limit of %d open files cannot hold all service ports: %d are not served, and their clients are refused. Raise it to %d or more (ulimit -n, LimitNOFILE=)", b.Descriptors, left, needed)
	case left == 0 && before > 0:
		p.Log.Info("The limit on open files holds all service ports now")
	}
}
