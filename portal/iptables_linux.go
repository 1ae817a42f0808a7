package portal

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"sync"

	"github.com/sirupsen/logrus"
)

// iptablesPortal redirects what is sent to a target to the port of a listener
// on this node, by rules in the nat table; see layout.go.
type iptablesPortal struct {
	log  logrus.FieldLogger
	opts Options

	mu       sync.Mutex // guards all below
	families []*ipFamily
	unusable map[netip.Addr]error // families without iptables, by unspecified address
	rules    map[Target]Rule
	pods     []netip.Prefix // see SetLocalSources
	// before are the local ports in the rules that an earlier process left.
	before  map[Target]uint16
	ports   *portBook // nil if any free port will do
	applied bool      // the first Apply is done
	warned  string    // interfaces that a warning was already given for
}

// newIPTables takes the variant that the node already uses, or else another
// one that works. IPv4 must work; IPv6 may be missing.
func newIPTables(ctx context.Context, opts Options) (Portal, error) {
	if !hasNetAdmin() {
		return nil, errNoNetAdmin
	}
	var errs error
	for _, v := range variants(ctx, opts) {
		p, err := newIPTablesVariant(ctx, v.variant, opts)
		switch {
		case err == nil:
			return p, nil
		case errs == nil:
			errs = err
		default:
			errs = fmt.Errorf("%w; %w", errs, err)
		}
	}
	if errs == nil {
		return nil, hint(fmt.Errorf("looking for iptables: %w", exec.ErrNotFound), false)
	}
	return nil, errs
}

func newIPTablesVariant(ctx context.Context, v variant, opts Options) (Portal, error) {
	p := &iptablesPortal{
		log:      opts.Log.WithField("portal", ModeIPTables),
		opts:     opts,
		unusable: map[netip.Addr]error{},
		rules:    map[Target]Rule{},
		before:   map[Target]uint16{},
	}
	opts.Log = p.log
	if !opts.ProxyPorts.isZero() {
		p.ports = newPortBook(opts.ProxyPorts)
	}
	for _, family := range []struct {
		any netip.Addr
		off bool
	}{{anyIPv4, opts.NoIPv4}, {anyIPv6, opts.NoIPv6}} {
		if family.off {
			p.unusable[family.any] = errors.New("this address family is switched off")
			continue
		}
		f, err := openFamily(ctx, v, family.any, opts)
		if err != nil {
			if family.any.Is4() || opts.NoIPv4 {
				return nil, err
			}
			p.unusable[family.any] = err
			p.log.WithError(err).Info("IPv6 rules will be refused")
			continue
		}
		p.families = append(p.families, f)
		if nat := f.installed[tableNAT]; nat != nil {
			for t, port := range nat.ports(f.any) {
				if port != rejectPort && opts.ProxyPorts.contains(port) {
					p.before[t] = port
				}
			}
		}
	}
	if p.ports != nil {
		for t, port := range p.before {
			p.ports.promise(t, port)
		}
	}
	p.log.WithFields(logrus.Fields{"command": v.command(false, ""), "nft": v.nft, "left": len(p.before)}).Debug("iptables works")
	return p, nil
}

func (p *iptablesPortal) Mode() string { return ModeIPTables }

// Listen asks for one listener per family on all addresses: redirected packets
// arrive at the landing, or, where there is none, at 127.0.0.1 or the address of
// the interface they came in by.
func (p *iptablesPortal) Listen(targets []Target) []Bind {
	p.mu.Lock()
	defer p.mu.Unlock()
	var binds []Bind
	for _, group := range byListener(targets) {
		port := p.portFor(group)
		binds = append(binds, Bind{
			Addr:       netip.AddrPortFrom(anyOf(group[0].Addr), port),
			Preferred:  port != 0,
			Redirected: true,
			Targets:    group,
		})
	}
	return binds
}

// portFor proposes the port that the rules for these targets lead to now, or
// did when the previous process ended; 0 if it does not matter.
func (p *iptablesPortal) portFor(group []Target) uint16 {
	for _, t := range group {
		if r, is := p.rules[t]; is && r.Action == Redirect {
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
	return 0
}

func (p *iptablesPortal) Apply(ctx context.Context, set []Rule, gone []Target) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	clean := make([]Rule, len(set))
	for i, r := range set {
		r.Target, r.Comment = r.Target.plain(), plainComment(r.Comment)
		clean[i] = r
	}
	changed, refused := merge(p.rules, clean, gone)
	_, err := p.sync(ctx, !p.applied, clean, refused)
	p.forgetFlows(changed)
	for _, t := range gone {
		delete(p.before, t.plain())
		if p.ports != nil {
			p.ports.forget(t.plain())
		}
	}
	if !p.applied && err == nil {
		p.applied = true
		// What an earlier process left in another way than this portal's would
		// lead to ports on which nobody listens.
		p.removeOthers(ctx)
		p.warnNoAddress()
	}
	return errors.Join(err, ruleError(refused))
}

func (p *iptablesPortal) SetLocalSources(pods []netip.Prefix) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pods = plainPrefixes(pods)
}

func (p *iptablesPortal) Check(ctx context.Context) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.applied && len(p.rules) == 0 {
		return 0, nil // nothing is wanted yet; what a predecessor left stays
	}
	for _, f := range p.families {
		f.retryRefused()
	}
	all := make([]Rule, 0, len(p.rules))
	for _, r := range p.rules {
		all = append(all, r)
	}
	refused := map[Target]error{}
	changed, err := p.sync(ctx, true, all, refused)
	if len(changed) > 0 {
		p.log.WithFields(logrus.Fields{"count": len(changed), "what": some(changed)}).Warn("portal repaired")
	}
	p.warnNoAddress()
	return len(changed), errors.Join(err, ruleError(refused))
}

// sync brings both families to p.rules. For those of the rules in asked that
// are not in afterwards, refused says why.
func (p *iptablesPortal) sync(ctx context.Context, reread bool, asked []Rule, refused map[Target]error) (changed []string, err error) {
	var errs []error
	for _, f := range p.families {
		f.at.pods = p.pods
		c, err := f.sync(ctx, p.sorted(f.any), reread)
		for _, what := range c {
			changed = append(changed, f.String()+" "+what)
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		for t, r := range f.refused {
			if p.rules[t] != r.rule {
				delete(f.refused, t) // not wanted any more
			}
		}
	}
	for _, r := range asked {
		t := r.Target
		if !t.Addr.IsValid() || refused[t] != nil || p.rules[t] != r {
			continue
		}
		if why, is := p.unusable[anyOf(t.Addr)]; is {
			refused[t] = why
		}
		for _, f := range p.families {
			if why, is := f.refused[t]; is && f.any == anyOf(t.Addr) {
				refused[t] = why.err
			}
		}
	}
	return changed, errors.Join(errs...)
}

// sorted returns the rules of one family in the order of Target.Compare.
func (p *iptablesPortal) sorted(any netip.Addr) []Rule {
	rules := make([]Rule, 0, len(p.rules))
	for t, r := range p.rules {
		if anyOf(t.Addr) == any {
			rules = append(rules, r)
		}
	}
	slices.SortFunc(rules, func(a, b Rule) int { return a.Target.Compare(b.Target) })
	return rules
}

// forgetFlows sees to it that UDP clients of changed targets go by the new rules.
func (p *iptablesPortal) forgetFlows(changed []Target) {
	want := map[Target]int{}
	if !p.applied {
		for t := range p.before { // rules that this Apply may have taken out
			want[t] = -1
		}
	}
	for _, t := range changed {
		want[t] = -1
		if r, is := p.rules[t]; is {
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

// Remove takes the rules of both families out, in each variant that is here.
func (p *iptablesPortal) Remove(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	clear(p.rules)
	for _, f := range p.families {
		f.installed = nil
		clear(f.refused)
	}
	_, err := removeIPTables(ctx, p.opts, nil)
	_, err2 := removeRoutes(landingRoutes)
	return errors.Join(err, err2)
}

// removeOthers takes out what other modes, and the other variant of iptables,
// have left.
func (p *iptablesPortal) removeOthers(ctx context.Context) {
	mine := p.families[0].variant
	removed, err := removeIPTables(ctx, p.opts, &mine)
	routes, err2 := removeRoutes(vipRoutes)
	if removed = append(removed, routes...); len(removed) > 0 {
		p.log.WithField("what", some(removed)).Info("removed what another mode of portal had left")
	}
	if err := errors.Join(err, err2); err != nil {
		p.log.WithError(err).Debug("looking for what another mode of portal has left")
	}
}

// warnNoAddress tells about interfaces that packets cannot be redirected from
// where there is no landing.
func (p *iptablesPortal) warnNoAddress() {
	if p.opts.NoIPv4 || p.families[0].at.landing.IsValid() {
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

// some shortens a list for the log.
func some(list []string) string {
	const most = 8
	if len(list) <= most {
		return strings.Join(list, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(list[:most], ", "), len(list)-most)
}
