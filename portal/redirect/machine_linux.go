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

// Backend writes the rules of one address family to the kernel and reads them. It is not safe for concurrent use.
type Backend interface {
	// Setting returns the inputs of rules: the backend sets some itself, and the caller keeps the others up to date.
	Setting() *Setting
	// Left returns the rules last read from the kernel.
	Left() map[portal.Target]portal.Rule

	// Read reads the kernel's rules. Unchanged reports whether the known rules are certainly current, at much lower
	// cost than Read.
	Read(context.Context) error
	Unchanged() bool

	// Put makes the kernel hold exactly these rules, in one transaction (iptables: one for each table). If only is not
	// nil, only the rules for these targets differ from the known ones. Put returns the changes.
	Put(_ context.Context, rules map[portal.Target]portal.Rule, only []portal.Target) (changed []string, err error)

	// Parts returns a function that compares the chains shared by all targets with those in the kernel: for replies to
	// clients' own addresses, OwnOnly, service CIDRs and, with iptables, accepted packets. The function only reads, and
	// may be called concurrently with other methods.
	Parts() func(context.Context) ([]portal.Part, error)

	// Missing returns those of rules that the kernel possibly lacks, in the order of Target.Compare. Try tests whether
	// the kernel accepts some of them, in addition to the installed ones; see MarkUndecided for errors that concern no
	// rule.
	Missing(rules []portal.Rule) []portal.Rule
	Try(context.Context, []portal.Rule) error
}

// machine makes the kernel hold the wanted rules of one address family, except those that the kernel refuses. It is not
// safe for concurrent use.
type machine struct {
	family   portal.Family
	log      logrus.FieldLogger
	backend  Backend
	unusable error                         // why there is no backend
	rules    map[portal.Target]portal.Rule // the wanted rules, including refused ones
	refused  *refusals
	// laidOut is the setting of the installed rules; nil if the kernel's rules are unknown, so that no change can start
	// from them.
	laidOut *Setting
	// node is why endpoints see the node's address; zero if they can see the client's. See Portal.Origin.
	node    portal.SourceAddress
	bridges []netip.Prefix // the bridges' networks when aliases were assigned
	routed  bool           // the redirect address and the routes of answers are installed, as far as known
	last    *kernel.LastRoutes
	noRoute string // leadOut's last warning

	withdrawn bool // only state that open connections need is still wanted
}

// ProbeOwnOnly determines whether OwnOnly is available. try tests the rules that OwnOnly requires.
func (at *Setting) ProbeOwnOnly(family portal.Family, log logrus.FieldLogger, try func() error) {
	if !at.RedirectAddr.IsValid() {
		return
	}
	err := kernel.ProbeTransparent(family)
	if err == nil {
		at.OwnOnly = true
		err = try()
	}
	if err != nil {
		at.GiveUpOwnOnly(log, err)
	}
}

// GiveUpOwnOnly disables OwnOnly and logs the reason.
func (at *Setting) GiveUpOwnOnly(log logrus.FieldLogger, err error) {
	at.OwnOnly = false
	log.WithError(err).Warn("While usher is not running, other processes on this node can receive packets that clients send to VIPs")
}

// hasRedirectAddr reports whether packets are redirected to the redirect address, not to an address of their incoming
// interface.
func (m *machine) hasRedirectAddr() bool {
	return m.unusable == nil && m.backend.Setting().RedirectAddr.IsValid()
}

// refusal returns why the wanted rule for t is refused, or nil.
func (m *machine) refusal(t portal.Target) error {
	if m.unusable != nil {
		return m.unusable
	}
	return m.refused.byTarget[t].err
}

// sync makes the kernel hold the wanted rules, and returns the changes. Only the rules for targets in only have changed
// since the last sync; nil also makes it install missing routes. With reread, it reads the kernel's rules first. Refused
// rules are no error.
func (m *machine) sync(ctx context.Context, only []portal.Target, reread bool) (changed []string, err error) {
	at := m.backend.Setting()
	m.routed = m.routed && only != nil && !reread
	var landed []string
	if !m.hasRedirectAddr() {
		m.refused.addSCTP(m.rules, cmp.Or(at.NoRedirectAddr, "the kernel or iptables does not support DNAT or a local route; use --portal=address"))
	} else if len(m.rules) > 0 && !m.routed { // before packets are sent there
		if landed, err = kernel.Land(at.RedirectAddr); err != nil {
			m.laidOut = nil
			return nil, err
		}
	}
	if changed, err = m.bring(ctx, only, reread); err == nil {
		m.refused.keep(m.rules)
	}
	return slices.Concat(landed, m.leadAnswers(err), m.leadOut(reread), changed), err
}

// leadOut ensures that this node's packets to VIPs have a route: without one, the kernel drops them before they reach a
// rule. It returns the parts that it had to restore.
func (m *machine) leadOut(reread bool) []string {
	if m.withdrawn {
		return nil
	}
	if reread {
		m.last.Forget()
	}
	made, err := m.last.Bring(m.vips)
	if err == nil {
		m.noRoute = ""
	} else if why := err.Error(); why != m.noRoute {
		m.noRoute = why
		m.log.WithError(err).Warn("Processes on this node have no route to VIPs; add a default route or use --portal=address")
	}
	return made
}

// vips returns the VIPs with rules.
func (m *machine) vips() map[netip.Addr]bool {
	vips := map[netip.Addr]bool{}
	for t := range m.rules {
		if !t.Addr.IsUnspecified() {
			vips[t.Addr] = true
		}
	}
	return vips
}

// bring is sync without redirect addresses and routes. If the kernel refuses the rules, bring reads the kernel's state
// again, as it may have changed. If that does not help, bring finds the refused rules.
func (m *machine) bring(ctx context.Context, only []portal.Target, reread bool) (changed []string, err error) {
	decided := func() bool { return err == nil || IsUndecided(err) || ctx.Err() != nil }
	if !reread && m.laidOut != nil {
		if len(only) == 0 && m.laidOutAs(m.backend.Setting()) {
			return nil, nil
		}
		if changed, err = m.put(ctx, slices.Concat([]portal.Target{}, only)); decided() {
			return changed, err
		}
		m.log.WithError(err).Debug("Failed to install portal rules; reading them again")
	}
	m.laidOut = nil
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

// put installs all wanted rules that are not refused; see Backend.Put.
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
		return changed, err
	}
	at := *m.backend.Setting()
	m.laidOut = &at
	return changed, nil
}

// laidOutAs reports whether the installed rules were made with this setting.
func (m *machine) laidOutAs(at *Setting) bool {
	return m.laidOut != nil && reflect.DeepEqual(m.laidOut, at)
}

// unchanged reports whether the known rules are certainly current.
func (m *machine) unchanged() bool {
	return m.laidOut != nil && m.backend.Unchanged()
}

// findRefused records the rules that the kernel refuses. It returns putErr, the error of the failed Put, unless it
// finds such rules.
func (m *machine) findRefused(ctx context.Context, putErr error) error {
	suspects := slices.DeleteFunc(m.backend.Missing(portal.InOrder(m.rules)), m.refused.has)
	if err := m.backend.Try(ctx, nil); err != nil {
		return putErr // the kernel refuses everything: no rule is the cause
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
