package portal

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
)

// redirectPortal changes the destination of what is sent to a target to the
// port of a listener on this node, by rules of netfilter. How those are put into
// the kernel is the families' business.
type redirectPortal struct {
	mode Mode
	log  logrus.FieldLogger
	opts Options
	// events are those of changes of the rules by others; nil if the kernel tells of none.
	events func() (subscription, error)

	// now is the clock by which refused rules are tried again.
	now func() time.Time

	mu       sync.Mutex // guards all below
	families [len(Families)]*machine
	pods     []netip.Prefix // see SetLocalSources
	// before are the local ports in the rules that an earlier process left.
	before  map[Target]uint16
	ports   *portBook // nil if any free port will do
	free    *freePorts
	applied bool   // the first Apply is done
	warned  string // interfaces that a warning was already given for
}

// openRedirect makes a portal of a mode, with what open returns for each family and with
// events, if the kernel tells of changes of the rules by others. IPv4 must work; IPv6 may
// be missing.
func openRedirect(mode Mode, opts Options, events func() (subscription, error), open func(Family) (backend, error)) (*redirectPortal, error) {
	p := &redirectPortal{
		mode:   mode,
		log:    opts.Log,
		opts:   opts,
		events: events,
		now:    time.Now,
		before: map[Target]uint16{},
		free:   newFreePorts(),
	}
	for _, family := range Families {
		m := &machine{family: family, log: p.log, rules: map[Target]Rule{}, refused: newRefusals(func() time.Time { return p.now() })}
		p.families[family] = m
		if opts.without(family) {
			m.unusable = errors.New("this address family is switched off")
			continue
		}
		if m.backend, m.unusable = open(family); m.unusable != nil {
			if family == IPv4 || opts.NoIPv4 {
				return nil, m.unusable
			}
			p.log.WithError(m.unusable).Info("IPv6 rules will be refused")
			continue
		}
		for t, port := range m.backend.left() {
			if port != rejectPort && opts.ProxyPorts.contains(port) {
				p.before[t] = port
			}
		}
	}
	if !opts.ProxyPorts.isZero() {
		p.ports = newPortBook(opts.ProxyPorts)
		for t, port := range p.before {
			p.ports.promise(t, port)
		}
	}
	p.log.WithField("left", len(p.before)).Debug(mode.Name + " works")
	return p, nil
}

func (p *redirectPortal) Mode() string { return p.mode.Name }

func (p *redirectPortal) Traits() Traits { return p.mode.Traits }

// Mark is that of the options only if all families have it.
func (p *redirectPortal) Mark() uint32 {
	for _, b := range p.backends() {
		if b.setting().mark == 0 {
			return 0
		}
	}
	return p.opts.Mark
}

// backends returns those of the families that can be used.
func (p *redirectPortal) backends() (all []backend) {
	for _, m := range p.families {
		if m.unusable == nil {
			all = append(all, m.backend)
		}
	}
	return all
}

// of returns the family's that a target is of.
func (p *redirectPortal) of(t Target) *machine { return p.families[FamilyOf(t.Addr)] }

// Listen asks for one listener per family on all addresses: redirected packets
// arrive at the landing, or, where there is none, at 127.0.0.1 or the address of
// the interface they came in by. For SCTP it is on the landing alone: one that
// listened on all addresses would tell clients all of them, and clients would
// use them, past the portal.
func (p *redirectPortal) Listen(_ string, targets []Target) []Bind {
	p.mu.Lock()
	defer p.mu.Unlock()
	var binds []Bind
	for _, group := range byListener(targets) {
		port := p.portFor(group)
		family := FamilyOf(group[0].Addr)
		addr := family.Any()
		if group[0].Protocol == SCTP {
			addr = landingOf(family)
		}
		binds = append(binds, Bind{
			Addr:       netip.AddrPortFrom(addr, port),
			Preferred:  port != 0,
			Redirected: true,
			Targets:    group,
		})
	}
	return binds
}

// portFor proposes the port that the rules for these targets lead to now, or
// did when the previous process ended, or one that is free, perhaps; 0 leaves the
// choice to the kernel.
func (p *redirectPortal) portFor(group []Target) uint16 {
	for _, t := range group {
		if r, is := p.of(t).rules[t]; is && r.Action == Redirect {
			return r.LocalPort
		}
	}
	for _, t := range group {
		if port := p.before[t]; port != 0 {
			return port
		}
	}
	if p.ports != nil {
		return p.ports.propose(firstTarget(group))
	}
	if group[0].Protocol == TCP {
		return p.free.propose()
	}
	return 0
}

func (p *redirectPortal) Apply(ctx context.Context, set []Rule, gone []Target) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	refused := map[Target]error{}
	var changed []Target
	var errs []error
	for _, m := range p.families {
		var mine []Rule
		for _, r := range set {
			r.Target, r.Comment = r.Target.plain(), plainComment(r.Comment)
			if p.of(r.Target) == m {
				mine = append(mine, r)
			}
		}
		others := func(t Target) bool { return p.of(t.plain()) != m }
		these, bad := merge(m.rules, mine, slices.DeleteFunc(slices.Clone(gone), others))
		changed = append(changed, these...)
		maps.Copy(refused, bad)
		_, err := p.sync(ctx, m, these, !p.applied)
		errs = append(errs, err)
		for _, r := range mine {
			if why := m.refusal(r.Target); why != nil && m.rules[r.Target] == r {
				refused[r.Target] = cmp.Or(refused[r.Target], why)
			}
		}
	}
	err := errors.Join(errs...)
	p.forgetFlows(changed)
	for _, t := range gone {
		delete(p.before, t.plain())
		if p.ports != nil {
			p.ports.forget(t.plain())
		}
	}
	if !p.applied && err == nil {
		p.applied = true
		p.opts.RemoveOthers(ctx)
		p.warnNoAddress()
	}
	return errors.Join(err, ruleError(refused))
}

func (p *redirectPortal) SetLocalSources(pods []netip.Prefix) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pods = plainPrefixes(pods)
}

func (p *redirectPortal) SetNodePortAddresses(within []netip.Prefix) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.opts.NodePortAddresses = plainPrefixes(within)
}

func (p *redirectPortal) Check(ctx context.Context) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.applied && len(p.rules()) == 0 {
		return 0, nil // nothing is wanted yet; what a predecessor left stays
	}
	refused := map[Target]error{}
	var changed []string
	var errs []error
	for _, m := range p.families {
		m.refused.retry()
		these, err := p.sync(ctx, m, nil, true)
		changed = append(changed, these...)
		errs = append(errs, err)
		for t := range m.rules {
			if why := m.refusal(t); why != nil {
				refused[t] = why
			}
		}
	}
	if len(changed) > 0 {
		p.log.WithFields(logrus.Fields{"count": len(changed), "what": some(changed)}).Warn("portal repaired")
	}
	p.warnNoAddress()
	return len(changed), errors.Join(errors.Join(errs...), ruleError(refused))
}

// sync brings one family to what is wanted.
func (p *redirectPortal) sync(ctx context.Context, m *machine, only []Target, reread bool) (changed []string, err error) {
	if m.unusable != nil {
		return nil, nil
	}
	at := m.backend.setting()
	at.pods, at.nodePorts = p.pods, p.opts.NodePortAddresses
	changed, err = m.sync(ctx, only, reread)
	for i, what := range changed {
		changed[i] = m.family.String() + " " + what
	}
	return changed, err
}

// rules returns what is wanted, in both families.
func (p *redirectPortal) rules() map[Target]Rule {
	all := map[Target]Rule{}
	for _, m := range p.families {
		maps.Copy(all, m.rules)
	}
	return all
}

// forgetFlows sees to it that UDP clients of changed targets go by the new rules.
func (p *redirectPortal) forgetFlows(changed []Target) {
	want := map[Target]int{}
	if !p.applied {
		for t := range p.before { // rules that this Apply may have taken out
			want[t] = -1
		}
	}
	for _, t := range changed {
		want[t] = -1
		if r, is := p.of(t).rules[t]; is {
			switch {
			case r.Action == Reject:
				want[t] = rejectPort
			case r.LocalPort != 0:
				want[t] = int(r.LocalPort)
			}
		}
	}
	if err := forgetFlows(want); err != nil {
		// Without nf_conntrack_netlink they end by themselves, 30 s to 120 s
		// after the client's last datagram.
		p.log.WithError(err).Debug("UDP clients may keep to a former listener")
	}
}

// Remove takes the rules of both families out, and the landings.
func (p *redirectPortal) Remove(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	rules := p.rules()
	for _, m := range p.families {
		clear(m.rules)
		clear(m.refused.byTarget)
	}
	for _, b := range p.backends() {
		b.forget()
	}
	_, err := p.mode.Remove(ctx, p.opts, false)
	forgetRedirected(maps.Keys(rules), p.log)
	_, err2 := removeRoutes(IsLanding)
	return errors.Join(err, err2)
}

// Watch implements Watcher.
func (p *redirectPortal) Watch(ctx context.Context) (<-chan struct{}, error) {
	if p.events == nil {
		return watch(ctx, p.landingEvents)
	}
	return watch(ctx, p.landingEvents, p.events)
}

// landingEvents tells when a landing is gone that is needed.
func (p *redirectPortal) landingEvents() (subscription, error) {
	return routeEvents(func(addr netip.Addr, gone, _ bool) bool {
		if !gone || !IsLanding(addr) {
			return false
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		return slices.ContainsFunc(p.families[:], func(m *machine) bool { return len(m.rules) > 0 })
	})
}

// Compare implements Portal.
func (p *redirectPortal) Compare(ctx context.Context) ([]Comparison, error) {
	p.mu.Lock()
	wanted := p.rules()
	p.mu.Unlock()
	installed, err := ListAll(ctx, slices.Concat([]Mode{p.mode}, p.opts.Others), p.opts)
	if err != nil {
		return nil, err
	}
	return compare(p.mode, wanted, installed), nil
}

// warnNoAddress tells about interfaces that packets cannot be redirected from
// where there is no landing.
func (p *redirectPortal) warnNoAddress() {
	if p.families[IPv4].unusable != nil || p.families[IPv4].lands() {
		return
	}
	names, err := interfacesWithoutIPv4()
	if err != nil {
		p.log.WithError(err).Debug("looking for interfaces without IPv4 address")
		return
	}
	if what := strings.Join(names, " "); what != p.warned {
		p.warned = what
		if what != "" {
			p.log.WithField("interfaces", some(names)).Warn("these interfaces have no IPv4 address: the kernel drops what a rule redirects from them; use --portal=address if Pods are behind them")
		}
	}
}

var _ Watcher = (*redirectPortal)(nil)
