package redirect

import (
	"cmp"
	"context"
	"net/netip"
	"reflect"
	"slices"

	"github.com/sirupsen/logrus"

	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/portal/kernel"
)

// Backend is how the rules of one address family are written to the kernel and read
// from it. It is not safe for concurrent use.
type Backend interface {
	// Setting returns what the rules depend on: what it has found out itself, and what
	// is to be kept up to date for it.
	Setting() *Setting
	// Left returns the local ports in the rules that the kernel held when last read,
	// and RejectPort for rejected targets.
	Left() map[portal.Target]uint16

	// Known tells whether it is known what the kernel holds, so that a change may begin
	// from that; Forget makes it unknown, and Read asks the kernel. Unchanged reports whether
	// what was known surely is still so, which costs much less than Read.
	Known() bool
	Forget()
	Read(context.Context) error
	Unchanged() bool

	// Put makes the kernel hold these rules and nothing else, in one transaction. If only
	// is not nil, no others than those for these targets differ from what is known. It
	// returns what it changed.
	Put(_ context.Context, rules map[portal.Target]portal.Rule, only []portal.Target) (changed []string, err error)

	// Parts returns what finds out of each chain that is for all targets together, for answers
	// to clients' own addresses and for OwnOnly, whether the kernel holds it as is wanted now.
	// That reads, and may be called whatever else is under way.
	Parts() func(context.Context) ([]portal.Part, error)

	// Missing returns those of rules, which are in the order of Target.Compare, that the
	// kernel may not hold. Try tries whether it takes some of those, beside what
	// it holds; see MarkUndecided for errors that are of no rule. Tried takes out what the tries left.
	Missing(rules []portal.Rule) []portal.Rule
	Try(context.Context, []portal.Rule) error
	Tried([]portal.Rule)
}

// machine brings the kernel to what is wanted in one address family, with the rules that
// the kernel takes if it refuses some. It is not safe for concurrent use.
type machine struct {
	family   portal.Family
	log      logrus.FieldLogger
	backend  Backend
	unusable error                         // why there is no backend
	rules    map[portal.Target]portal.Rule // what is wanted, also what is refused
	refused  *refusals
	laidOut  *Setting // by what the rules were made that are in; nil if that is not known
	// node is why endpoints see the node; zero: they need not. See Portal.Origin.
	node    portal.Seen
	bridges []netip.Prefix // the networks of those that there were when aliases were given
	last    *kernel.LastRoutes
	noRoute string // the warning that was given

	withdrawn bool // only what connections that are open need is still wanted
}

// ProbeOwnOnly finds out whether OwnOnly can be had: try puts in the rules that it takes.
func (at *Setting) ProbeOwnOnly(family portal.Family, log logrus.FieldLogger, try func() error) {
	if !at.Landing.IsValid() {
		return
	}
	err := kernel.ProbeTransparent(family)
	if err == nil {
		at.OwnOnly = true
		err = try()
	}
	if err != nil {
		at.GiveUpOwnOnly(family, log, err)
	}
}

// GiveUpOwnOnly notes why OwnOnly cannot be had.
func (at *Setting) GiveUpOwnOnly(family portal.Family, log logrus.FieldLogger, err error) {
	at.OwnOnly = false
	log.WithError(err).Warnf("While usher is not running, other processes on this node can receive packets that %s clients send to VIPs", family)
}

// lands tells whether packets are led to the landing, and not to an address
// of the interface that they come in by.
func (m *machine) lands() bool { return m.unusable == nil && m.backend.Setting().Landing.IsValid() }

// refusal returns why the wanted rule for t is not in.
func (m *machine) refusal(t portal.Target) error {
	if m.unusable != nil {
		return m.unusable
	}
	return m.refused.byTarget[t].err
}

// sync brings the kernel to what is wanted, of which only these targets' rules are
// others than at the last sync, and returns what it had to change. It reads the kernel
// before if reread says so. Refused rules do not make an error.
func (m *machine) sync(ctx context.Context, only []portal.Target, reread bool) (changed []string, err error) {
	at := m.backend.Setting()
	if !at.AddrType {
		at.Local = kernel.LocalPrefixes(m.family)
	}
	var landed []string
	if !m.lands() {
		m.refused.addSCTP(m.rules, cmp.Or(at.NoLanding, "the kernel or iptables does not support DNAT or a local route; use --portal=address"))
	} else if len(m.rules) > 0 { // before packets are sent there
		if landed, err = kernel.Land(at.Landing); err != nil {
			m.backend.Forget()
			return nil, err
		}
	}
	if changed, err = m.bring(ctx, only, reread); err == nil {
		m.refused.keep(m.rules)
	}
	return slices.Concat(landed, m.leadAnswers(err), m.leadOut(reread), changed), err
}

// leadOut sees to it that what this node sends to VIPs meets the rules, and returns what it
// had to put in.
func (m *machine) leadOut(reread bool) []string {
	if m.withdrawn {
		return nil
	}
	made, err := m.last.Bring(m.vips, reread)
	if err == nil {
		m.noRoute = ""
	} else if why := err.Error(); why != m.noRoute {
		m.noRoute = why
		m.log.WithError(err).Warnf("Processes on this node have no %s route to VIPs and get \"network is unreachable\"; add a default route or use --portal=address", m.family)
	}
	return made
}

// vips returns those that there are rules for.
func (m *machine) vips() map[netip.Addr]bool {
	vips := map[netip.Addr]bool{}
	for t := range m.rules {
		if !t.Addr.IsUnspecified() {
			vips[t.Addr] = true
		}
	}
	return vips
}

// bring is sync without the landing. Where rules do not go in, that may be for what the
// kernel holds, which is read again then, or for one of them, which is found.
func (m *machine) bring(ctx context.Context, only []portal.Target, reread bool) (changed []string, err error) {
	decided := func() bool { return err == nil || IsUndecided(err) || ctx.Err() != nil }
	if !reread && m.backend.Known() {
		if len(only) == 0 && m.laidOutAs(m.backend.Setting()) {
			return nil, nil
		}
		if changed, err = m.put(ctx, slices.Concat([]portal.Target{}, only)); decided() {
			return changed, err
		}
		m.log.WithError(err).Debug("Failed to install portal rules; reading them again")
	}
	for range 2 {
		if err := m.backend.Read(ctx); err != nil {
			return nil, err
		}
		if changed, err = m.put(ctx, nil); decided() {
			return changed, err
		}
		m.log.WithError(err).Debug("Failed to install portal rules; reading them again")
	}
	if err := m.findRefused(ctx, err); err != nil {
		return nil, err
	}
	if err := m.backend.Read(ctx); err != nil {
		return nil, err
	}
	return m.put(ctx, nil)
}

// put puts in all that is wanted and not refused; see backend.
func (m *machine) put(ctx context.Context, only []portal.Target) (changed []string, err error) {
	accepted := m.rules
	if len(m.refused.byTarget) > 0 {
		accepted = map[portal.Target]portal.Rule{}
		for t, r := range m.rules {
			if !m.refused.has(r) {
				accepted[t] = r
			}
		}
	}
	m.laidOut = nil
	if changed, err = m.backend.Put(ctx, accepted, only); err != nil {
		m.backend.Forget()
		return changed, err
	}
	at := *m.backend.Setting()
	m.laidOut = &at
	return changed, nil
}

// laidOutAs reports whether the rules that are in were made by this setting.
func (m *machine) laidOutAs(at *Setting) bool {
	return m.backend.Known() && m.laidOut != nil && reflect.DeepEqual(m.laidOut, at)
}

// unchanged reports whether the kernel surely holds what is known.
func (m *machine) unchanged() bool {
	return m.unusable == nil && m.backend.Known() && m.backend.Unchanged()
}

// findRefused notes the rules that the kernel does not take. The error is putErr, why
// the rules did not go in, unless such rules explain it.
func (m *machine) findRefused(ctx context.Context, putErr error) error {
	suspects := slices.DeleteFunc(m.backend.Missing(portal.InOrder(m.rules)), m.refused.has)
	defer m.backend.Tried(suspects)
	if err := m.backend.Try(ctx, nil); err != nil {
		return putErr // nothing goes in at all: no rule is to blame
	}
	bad, err := bisect(suspects, func(part []portal.Rule) error { return m.backend.Try(ctx, part) })
	if err != nil {
		return err
	}
	if len(bad) == 0 {
		return putErr
	}
	m.refused.add(suspects, bad)
	return nil
}
