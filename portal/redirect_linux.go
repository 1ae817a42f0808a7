package portal

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"strings"
	"sync"

	"github.com/sirupsen/logrus"
)

// redirectPortal changes the destination of what is sent to a target to the
// port of a listener on this node, by rules of netfilter. How those are put into
// the kernel is the families' business.
type redirectPortal struct {
	mode string
	log  logrus.FieldLogger
	opts Options
	// removeOthers takes out what other modes have left, and removeOwn all that
	// this mode ever puts in.
	removeOthers func(context.Context) (removed []string, err error)
	removeOwn    func(context.Context) error
	// nftMatters tells whether a change in nf_tables by others, to a table or to
	// a chain in it, is one that Check has to do with. It is nil for rules that
	// are elsewhere.
	nftMatters func(table, chain string) bool

	mu       sync.Mutex // guards all below
	families []ruleFamily
	unusable map[Family]error // families that do not work here
	rules    map[Target]Rule
	pods     []netip.Prefix // see SetLocalSources
	// before are the local ports in the rules that an earlier process left.
	before  map[Target]uint16
	ports   *portBook // nil if any free port will do
	free    *freePorts
	applied bool   // the first Apply is done
	warned  string // interfaces that a warning was already given for
}

// ruleFamily is one family of rules in the kernel. It is not safe for
// concurrent use.
type ruleFamily interface {
	// String returns "IPv4" or "IPv6".
	String() string
	// which returns the family.
	which() Family
	// lands tells whether packets are led to the landing, and not to an address
	// of the interface that they come in by.
	lands() bool
	// mark returns that of the packets that are left alone; 0 if none are.
	mark() uint32
	// left returns the local ports in the rules that are installed, and 0 for
	// rejected targets.
	left() map[Target]uint16
	// sync brings the kernel to what is wanted and returns what it had to
	// change. It reads the kernel before if reread says so. Rules that the
	// kernel refuses are in refused afterwards and do not make an error.
	sync(ctx context.Context, want wanted, reread bool) (changed []string, err error)
	refused() *refusals
	// forget makes the next sync read the kernel.
	forget()
}

// wanted is what rule families are to bring the kernel to.
type wanted struct {
	rules   map[Target]Rule // of all families
	changed []Target        // those whose rule is another one than at the last sync
	pods    []netip.Prefix
	// nodePorts are as in Options.NodePortAddresses.
	nodePorts []netip.Prefix
}

// newRedirect returns a portal without families.
func newRedirect(mode string, opts Options) *redirectPortal {
	p := &redirectPortal{
		mode:     mode,
		log:      opts.Log.WithField("portal", mode),
		opts:     opts,
		unusable: map[Family]error{},
		rules:    map[Target]Rule{},
		before:   map[Target]uint16{},
		free:     newFreePorts(),
	}
	if !opts.ProxyPorts.isZero() {
		p.ports = newPortBook(opts.ProxyPorts)
	}
	return p
}

// openFamilies opens both families. IPv4 must work; IPv6 may be missing.
func (p *redirectPortal) openFamilies(open func(Family) (ruleFamily, error)) error {
	for _, family := range []struct {
		family Family
		off    bool
	}{{IPv4, p.opts.NoIPv4}, {IPv6, p.opts.NoIPv6}} {
		if family.off {
			p.unusable[family.family] = errors.New("this address family is switched off")
			continue
		}
		f, err := open(family.family)
		if err != nil {
			if family.family == IPv4 || p.opts.NoIPv4 {
				return err
			}
			p.unusable[family.family] = err
			p.log.WithError(err).Info("IPv6 rules will be refused")
			continue
		}
		p.families = append(p.families, f)
		for t, port := range f.left() {
			if port != rejectPort && p.opts.ProxyPorts.contains(port) {
				p.before[t] = port
			}
		}
	}
	if p.ports != nil {
		for t, port := range p.before {
			p.ports.promise(t, port)
		}
	}
	return nil
}

func (p *redirectPortal) Mode() string { return p.mode }

// Mark is that of the options only if all families have it.
func (p *redirectPortal) Mark() uint32 {
	for _, f := range p.families {
		if f.mark() == 0 {
			return 0
		}
	}
	return p.opts.Mark
}

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
	if group[0].Protocol == TCP {
		return p.free.propose()
	}
	return 0
}

func (p *redirectPortal) Apply(ctx context.Context, set []Rule, gone []Target) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	clean := make([]Rule, len(set))
	for i, r := range set {
		r.Target, r.Comment = r.Target.plain(), plainComment(r.Comment)
		clean[i] = r
	}
	changed, refused := merge(p.rules, clean, gone)
	_, err := p.sync(ctx, !p.applied, changed, clean, refused)
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
		if removed, err := p.removeOthers(ctx); err != nil {
			p.log.WithError(err).Debug("looking for what another mode of portal has left")
		} else if len(removed) > 0 {
			p.log.WithField("what", some(removed)).Info("removed what another mode of portal had left")
		}
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
	if !p.applied && len(p.rules) == 0 {
		return 0, nil // nothing is wanted yet; what a predecessor left stays
	}
	for _, f := range p.families {
		f.refused().retry()
	}
	all := make([]Rule, 0, len(p.rules))
	for _, r := range p.rules {
		all = append(all, r)
	}
	refused := map[Target]error{}
	changed, err := p.sync(ctx, true, nil, all, refused)
	if len(changed) > 0 {
		p.log.WithFields(logrus.Fields{"count": len(changed), "what": some(changed)}).Warn("portal repaired")
	}
	p.warnNoAddress()
	return len(changed), errors.Join(err, ruleError(refused))
}

// sync brings both families to p.rules, of which those for the targets in since
// are others than at the last sync. For those of the rules in asked that are not
// in afterwards, refused says why.
func (p *redirectPortal) sync(ctx context.Context, reread bool, since []Target, asked []Rule, refused map[Target]error) (changed []string, err error) {
	var errs []error
	for _, f := range p.families {
		if !f.lands() {
			f.refused().addSCTP(rulesOf(p.rules, f.which()))
		}
		c, err := f.sync(ctx, wanted{rules: p.rules, changed: since, pods: p.pods, nodePorts: p.opts.NodePortAddresses}, reread)
		for _, what := range c {
			changed = append(changed, f.String()+" "+what)
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		f.refused().keep(p.rules)
	}
	for _, r := range asked {
		t := r.Target
		if !t.Addr.IsValid() || refused[t] != nil || p.rules[t] != r {
			continue
		}
		if why, is := p.unusable[FamilyOf(t.Addr)]; is {
			refused[t] = why
		}
		for _, f := range p.families {
			if why, is := f.refused().byTarget[t]; is && f.which() == FamilyOf(t.Addr) {
				refused[t] = why.err
			}
		}
	}
	return changed, errors.Join(errs...)
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

// Remove takes the rules of both families out, and the landings.
func (p *redirectPortal) Remove(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	rules := p.rules
	p.rules = map[Target]Rule{}
	for _, f := range p.families {
		f.forget()
		clear(f.refused().byTarget)
	}
	err := p.removeOwn(ctx)
	forgetRedirected(maps.Keys(rules), p.log)
	_, err2 := removeRoutes(landingRoutes)
	return errors.Join(err, err2)
}

// warnNoAddress tells about interfaces that packets cannot be redirected from
// where there is no landing.
func (p *redirectPortal) warnNoAddress() {
	if p.opts.NoIPv4 || p.families[0].lands() {
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
