package redirect

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/portal/kernel"
)

// Portal redirects the packets of targets to local listeners by netfilter rules. One Backend for each family writes
// these to the kernel.
type Portal struct {
	mode portal.Mode
	log  logrus.FieldLogger
	opts portal.Options
	// events subscribe to changes, in the kernel, of rules, redirect addresses and routes that the portal needs.
	events []func() (kernel.Subscription, error)
	known  kernel.Known // whether the rules are as last read; some backends get no events

	// Now is the clock, for retries of refused rules and for the age of known ones. Specs replace it.
	Now func() time.Time

	mu       sync.Mutex // guards the fields up to warned
	families [len(portal.Families)]*machine
	settings portal.Settings
	// before are the local ports in the rules that an earlier process left.
	before   map[portal.Target]uint16
	ports    *portal.PortAllocator // nil if any free port is acceptable
	free     *kernel.FreePorts
	applied  bool // the first Apply has succeeded
	leftover portal.Others
	// unflushed are targets whose rules may have changed after their conntrack entries were last deleted.
	unflushed map[portal.Target]bool
	warned    string // the interfaces in warnNoAddress's last warning

	paths       *kernel.Paths
	clientPorts portal.PortRange        // see kernel.PortsBelowLocal
	origins     atomic.Pointer[origins] // for Origin
}

// Open makes a portal of a mode, with the result of open for each family. IPv4 must work; IPv6 may be missing. events
// report changes of the rules by other programs.
func Open(mode portal.Mode, opts portal.Options, open func(portal.Family) (Backend, error), events ...func() (kernel.Subscription, error)) (portal.Portal, error) {
	p := &Portal{
		mode:      mode,
		log:       opts.Log,
		opts:      opts,
		settings:  portal.Settings{NodePortAddresses: opts.NodePortAddresses},
		Now:       time.Now,
		before:    map[portal.Target]uint16{},
		unflushed: map[portal.Target]bool{},
		free:      kernel.NewFreePorts(),
	}
	for _, e := range events {
		p.events = append(p.events, p.known.By(e))
	}
	p.events = append(p.events, p.redirectAddrEvents, p.routingEvents)
	p.clientPorts = kernel.PortsBelowLocal()
	for _, family := range portal.Families {
		m := &machine{family: family, log: p.log.WithField("family", family.String()), rules: map[portal.Target]portal.Rule{}, refused: newRefusals(func() time.Time { return p.Now() })}
		p.families[family] = m
		if m.backend, m.unusable = open(family); m.unusable != nil && (family == portal.IPv4 || IsUndecided(m.unusable)) {
			return nil, m.unusable
		}
	}
	routes, err := kernel.OpenRoutes() // stays open, as do the paths
	if err != nil {
		return nil, err
	}
	if p.paths, err = kernel.OpenPaths(); err != nil {
		routes.Close()
		return nil, err
	}
	for family, m := range p.families {
		if m.last = kernel.NewLastRoutes(portal.Family(family), routes); m.unusable != nil {
			p.log.WithError(m.unusable).Info("IPv6 rules cannot be installed")
			continue
		}
		p.probeAnswers(m)
		for t, r := range m.backend.Left() {
			if r.LocalPort != RejectPort && opts.ProxyPorts.Contains(r.LocalPort) {
				p.before[t] = r.LocalPort
			}
		}
	}
	if !opts.ProxyPorts.IsZero() {
		p.ports = portal.NewPortAllocator(opts.ProxyPorts)
		for t, port := range p.before {
			p.ports.Promise(t, port)
		}
	}
	p.publish()
	p.log.WithField("left", len(p.before)).Debug(mode.Name + " works")
	return p, nil
}

// Mode implements portal.Portal. Its other methods, and those of portal.Resumer and portal.Watcher, are below and in
// origin_linux.go.
func (p *Portal) Mode() string { return p.mode.Name }

// Traits returns the mode's traits.
func (p *Portal) Traits() portal.Traits { return p.mode.Traits }

// Mark returns the option's mark, or 0 unless all usable families support it.
func (p *Portal) Mark() uint32 {
	for _, b := range p.Backends() {
		if b.Setting().Mark == 0 {
			return 0
		}
	}
	return p.opts.Mark
}

// Backends returns the Backends of the usable families.
func (p *Portal) Backends() (all []Backend) {
	for _, m := range p.families {
		if m.unusable == nil {
			all = append(all, m.backend)
		}
	}
	return all
}

// of returns the machine of a target's family.
func (p *Portal) of(t portal.Target) *machine { return p.families[portal.FamilyOf(t.Addr)] }

// Listen requests one listener per family and protocol, on all addresses. Redirected packets arrive at the redirect
// address or, without one, at 127.0.0.1 or an address of their incoming interface. An SCTP listener is on the redirect
// address alone. If it were on all addresses, it would announce them to clients, and these would bypass the portal.
func (p *Portal) Listen(_ string, targets []portal.Target) []portal.Bind {
	p.mu.Lock()
	defer p.mu.Unlock()
	var binds []portal.Bind
	for _, group := range portal.ByListener(targets) {
		family := portal.FamilyOf(group[0].Addr)
		addr := family.Any()
		if group[0].Protocol == portal.SCTP {
			addr = kernel.RedirectAddr(family)
		}
		binds = append(binds, portal.Bind{
			Addr:       netip.AddrPortFrom(addr, p.portFor(group)),
			Preferred:  true,
			Redirected: true,
			Transparent: group[0].Protocol != portal.SCTP && p.families[family].hasRedirectAddr() &&
				p.families[family].backend.Setting().OwnOnly,
			Targets: group,
		})
	}
	return binds
}

// portFor proposes the port in the current rules for these targets, else in the previous process's, else one that is
// probably free. 0 leaves the choice to the kernel.
func (p *Portal) portFor(group []portal.Target) uint16 {
	for _, t := range group {
		if r, is := p.of(t).rules[t]; is && r.Action == portal.Redirect {
			return r.LocalPort
		}
	}
	for _, t := range group {
		if port := p.before[t]; port != 0 {
			return port
		}
	}
	if p.ports != nil {
		return p.ports.Propose(portal.FirstTarget(group))
	}
	if group[0].Protocol == portal.TCP {
		return p.free.Propose()
	}
	return 0
}

// Apply installs the differences, one family after the other.
func (p *Portal) Apply(ctx context.Context, set []portal.Rule, gone []portal.Target) portal.Result {
	p.mu.Lock()
	defer p.mu.Unlock()
	res := portal.Result{Refused: map[portal.Target]error{}}
	var come [len(portal.Families)][]portal.Rule
	var goes [len(portal.Families)][]portal.Target
	for _, r := range set {
		r.Target, r.Comment = r.Target.Plain(), PlainComment(r.Comment)
		family := portal.FamilyOf(r.Target.Addr)
		come[family] = append(come[family], r)
	}
	for _, t := range gone {
		family := portal.FamilyOf(t.Plain().Addr)
		goes[family] = append(goes[family], t)
	}
	var changed []portal.Target
	fresh := map[portal.Target]bool{} // targets without an earlier rule
	if !p.applied {
		p.known.Doubtful(p.Now()) // the state is read now
	}
	for family, m := range p.families {
		for _, r := range come[family] {
			if _, had := m.rules[r.Target]; !had {
				fresh[r.Target] = true
			}
		}
		these, bad := portal.Merge(m.rules, come[family], goes[family])
		changed = append(changed, these...)
		maps.Copy(res.Refused, bad)
		p.sync(ctx, m, append([]portal.Target{}, these...), !p.applied, &res)
		for _, r := range come[family] {
			if why := m.refusal(r.Target); why != nil && m.rules[r.Target] == r {
				res.Refused[r.Target] = cmp.Or(res.Refused[r.Target], why)
			}
		}
	}
	res.Repaired = nil // the changes were requested, and repair nothing
	first := !p.applied && res.Err == nil
	if first { // before conntrack entries are deleted: these rules would make them again
		p.leftover.Remove(ctx, p.opts)
	}
	changed = slices.DeleteFunc(changed, func(t portal.Target) bool { return t.Protocol != portal.UDP && !fresh[t] })
	p.forgetFlows(changed)
	if res.Err == nil {
		p.forgetStale()
	} else {
		p.flushLater(changed)
	}
	if first { // the Services of these rules ended while no process ran
		for t := range p.before {
			if _, wanted := p.of(t).rules[t]; !wanted {
				gone = append(gone, t)
			}
		}
	}
	for _, t := range gone {
		delete(p.before, t.Plain())
		if p.ports != nil {
			p.ports.Forget(t.Plain())
		}
	}
	if first {
		p.applied = true
		p.forgetAnswers()
		p.warnNoAddress()
	}
	return res
}

// Set takes effect with the next Apply or Check.
func (p *Portal) Set(change func(*portal.Settings)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	before := p.settings.NodePortAddresses
	// Clients that came before the rules for an address bypass them.
	if p.settings.Set(change); !slices.Equal(before, p.settings.NodePortAddresses) {
		for _, m := range p.families {
			for t := range m.rules {
				if t.Addr.IsUnspecified() && t.Protocol == portal.UDP {
					p.unflushed[t] = true
				}
			}
		}
	}
}

// Check repairs differences from the wanted rules. It reads the kernel's rules, unless they are known to be unchanged.
func (p *Portal) Check(ctx context.Context) portal.Result {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.applied && len(p.rules()) == 0 {
		return portal.Result{} // nothing is wanted yet; a predecessor's rules stay
	}
	res := portal.Result{Refused: map[portal.Target]error{}}
	doubtful := p.known.Doubtful(p.Now())
	for _, m := range p.families {
		again := m.refused.retry()
		if doubtful {
			m.last.Forget()
		}
		p.sync(ctx, m, nil, again || doubtful && !m.unchanged(), &res)
		for t := range m.rules {
			if why := m.refusal(t); why != nil {
				res.Refused[t] = why
			}
		}
	}
	if len(res.Repaired) > 0 {
		p.log.WithFields(logrus.Fields{"count": len(res.Repaired), "changed": portal.Shorten(res.Repaired)}).Warn("Portal repaired")
	}
	removed := p.applied && res.Err == nil && len(p.leftover.Remove(ctx, p.opts)) > 0
	if removed || len(res.Repaired) > 0 {
		for _, m := range p.families {
			if m.unusable == nil {
				p.flushLater(slices.DeleteFunc(slices.Collect(maps.Keys(m.rules)), func(t portal.Target) bool { return m.refusal(t) != nil }))
			}
		}
	}
	if res.Err == nil {
		p.forgetStale()
	}
	p.warnNoAddress()
	return res
}

func (p *Portal) Resume() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.leftover = portal.Others{}
	p.forgetAnswers() // those of the instance that failed
}

// flushLater makes forgetStale forget the flows to these targets that began while rules were missing or wrong.
func (p *Portal) flushLater(targets []portal.Target) {
	for _, t := range targets {
		p.unflushed[t] = true
	}
}

// forgetStale forgets the stale flows of unflushed targets.
func (p *Portal) forgetStale() {
	if len(p.unflushed) > 0 {
		p.forgetFlows(slices.Collect(maps.Keys(p.unflushed)))
		clear(p.unflushed)
	}
}

// sync syncs one family. Check passes nil for only. Apply passes an empty slice for most changes of endpoints: unless
// the setting has changed or reread is set, sync then makes no system call. It adds changes and errors to res.
func (p *Portal) sync(ctx context.Context, m *machine, only []portal.Target, reread bool, res *portal.Result) {
	res.Unaffected[m.family] = true
	if m.unusable != nil {
		return
	}
	at := m.backend.Setting()
	at.Pods, at.NodePorts, at.HealthChecks = p.settings.LocalSources, p.settings.NodePortAddresses, p.settings.HealthChecks
	if at.ServiceCIDRs = nil; len(m.rules) > 0 && !m.withdrawn {
		at.ServiceCIDRs = m.family.Of(p.settings.ServiceCIDRs)
	}
	if only != nil && len(only) == 0 && !reread && m.laidOutAs(at) {
		return
	}
	before := at.Aliases
	if reread || only == nil {
		p.findAliases(m)
	}
	changed, err := m.sync(ctx, only, reread)
	if err != nil {
		res.Err, res.Unaffected[m.family] = errors.Join(res.Err, err), false
		at.Aliases = before // even if some of the new ones are installed
	}
	p.publish()
	for _, what := range changed {
		res.Repaired = append(res.Repaired, m.family.String()+" "+what)
	}
}

// rules returns the wanted rules of both families.
func (p *Portal) rules() map[portal.Target]portal.Rule {
	all := map[portal.Target]portal.Rule{}
	for _, m := range p.families {
		maps.Copy(all, m.rules)
	}
	return all
}

// forgetFlows makes the new rules apply to UDP clients of changed targets, and to TCP clients with an unanswered SYN.
func (p *Portal) forgetFlows(changed []portal.Target) {
	want := map[portal.Target]int{}
	if !p.applied {
		for t := range p.before { // rules that this Apply may have removed
			if t.Protocol == portal.UDP {
				want[t] = -1
			}
		}
	}
	for _, t := range changed {
		want[t] = -1
		if r, is := p.of(t).rules[t]; is {
			switch {
			case r.Action == portal.Reject:
				want[t] = RejectPort
			case r.LocalPort != 0:
				want[t] = int(r.LocalPort)
			}
		}
	}
	if err := kernel.ForgetFlows(want); err != nil {
		// Without nf_conntrack_netlink, UDP flows expire by themselves, 30 s to 120 s after the client's last datagram.
		p.log.WithError(err).Debug("Failed to delete conntrack entries: UDP clients may keep reaching the previous listener, and TCP connection attempts that began before their rule was installed may fail")
	}
}

// Withdraw implements portal.Withdrawer. Redirect addresses and routes stay until Remove.
func (p *Portal) Withdraw(ctx context.Context) error {
	p.mu.Lock()
	for _, m := range p.families {
		m.withdrawn = true
	}
	gone := slices.Collect(maps.Keys(p.rules()))
	p.mu.Unlock()
	res := p.Apply(ctx, nil, gone)
	return res.Err
}

// Remove removes the rules of both families, the redirect addresses, and the portal's routing rules and routes.
func (p *Portal) Remove(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	rules := p.rules()
	for _, m := range p.families {
		clear(m.rules)
		clear(m.refused.byTarget)
		m.laidOut, m.routed = nil, false
	}
	_, err := p.mode.Remove(ctx, p.opts, false)
	kernel.ForgetRedirected(maps.Keys(rules), p.log)
	_, err2 := kernel.RemoveRoutes(kernel.IsRedirectAddr)
	_, err3 := kernel.ForgetAnswers(0)
	_, err4 := kernel.ForgetLastRoutes()
	return errors.Join(err, err2, err3, err4)
}

func (p *Portal) Watch(ctx context.Context) (<-chan struct{}, error) {
	return kernel.Watch(ctx, p.events...)
}

// redirectAddrEvents reports when a needed redirect address is removed, and when the node gets an address that changes
// the networks of bridges.
func (p *Portal) redirectAddrEvents() (kernel.Subscription, error) {
	return kernel.RouteEvents(func(addr netip.Addr, gone, ours bool) bool {
		if !gone && !ours && !addr.IsLinkLocalUnicast() {
			return p.bridgeIsNew(portal.FamilyOf(addr))
		}
		if !gone || !kernel.IsRedirectAddr(addr) {
			return false
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		return slices.ContainsFunc(p.families[:], func(m *machine) bool { return len(m.rules) > 0 && m.hasRedirectAddr() })
	})
}

// routingEvents reports when a needed part of the routing is removed: for replies to clients' own addresses, or a route
// of last resort. It also reports when a change of other routes makes routes of last resort necessary or unnecessary.
func (p *Portal) routingEvents() (kernel.Subscription, error) {
	return kernel.RoutingEvents(func(gone netip.Addr) bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		stale := false
		for _, m := range p.families { // Stale has to see every event
			stale = m.unusable == nil && len(m.rules) > 0 && m.last.Stale(gone) || stale
		}
		return stale
	})
}

// Compare compares the wanted rules with the kernel's, and changes nothing.
func (p *Portal) Compare(ctx context.Context) ([]portal.Comparison, error) {
	p.mu.Lock()
	wanted := p.rules()
	p.mu.Unlock()
	installed, err := portal.ListAll(ctx, slices.Concat([]portal.Mode{p.mode}, p.opts.Others), p.opts)
	if err != nil {
		return nil, err
	}
	return compare(p.mode, wanted, installed), nil
}

// CompareParts implements portal.PartsComparer. Parts are the chains of Backend.Parts, the routing of replies to
// clients' own addresses, and the routes of last resort.
func (p *Portal) CompareParts(ctx context.Context) (parts []portal.Part, err error) {
	for _, m := range p.families {
		if m.unusable != nil {
			continue
		}
		p.mu.Lock()
		at := *m.backend.Setting()
		chains := m.backend.Parts()
		some := len(m.rules) > 0
		wanted := at.Answers && some
		last, err := m.last.Compare(m.vips())
		p.mu.Unlock()
		if parts = append(parts, last...); err != nil {
			return nil, err
		}
		if !wanted {
			at.Mark = 0
		}
		routes, err := kernel.CompareAnswers(m.family, at.Mark)
		if parts = append(parts, routes...); err != nil {
			return nil, err
		}
		if some {
			these, err := chains(ctx)
			if parts = append(parts, these...); err != nil {
				return nil, err
			}
		}
	}
	return parts, nil
}

// warnNoAddress logs the interfaces whose packets cannot be redirected without a redirect address.
func (p *Portal) warnNoAddress() {
	if p.families[portal.IPv4].hasRedirectAddr() {
		return
	}
	names, err := kernel.InterfacesWithoutIPv4()
	if err != nil {
		p.log.WithError(err).Debug("Failed to list interfaces without an IPv4 address")
		return
	}
	if what := strings.Join(names, " "); what != p.warned {
		p.warned = what
		if what != "" {
			p.log.WithFields(logrus.Fields{"interfaces": portal.Shorten(names), "alternative": cmp.Or(p.families[portal.IPv4].backend.Setting().Instead, "--portal=address")}).
				Warn("Interfaces have no IPv4 address: the kernel drops packets that a rule redirects from them; use the alternative if Pods are behind them")
		}
	}
}

var (
	_ portal.Watcher       = (*Portal)(nil)
	_ portal.PartsComparer = (*Portal)(nil)
	_ portal.Withdrawer    = (*Portal)(nil)
)
