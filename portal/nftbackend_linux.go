package portal

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"
)

// nftRules is one family of nftables rules: what is installed, and how to get
// from that to what is wanted. It is not safe for concurrent use.
type nftRules struct {
	log    logrus.FieldLogger
	family Family
	at     setting
	send   func(context.Context, Family, *nftChange) error // sendNFT, but in tests

	installed *nftContents // what the kernel holds, as far as known; nil if it has to be read
	// before is what installed was before it had to be read.
	before   *nftContents
	refusals *refusals
}

// openNFTRules proves that rules can be put in, and reads those that are. It
// leaves nothing behind.
func openNFTRules(family Family, opts Options) (*nftRules, error) {
	f := &nftRules{log: opts.Log, family: family, send: sendNFT, refusals: newRefusals(),
		at: setting{comment: true, nodePorts: opts.NodePortAddresses, podInterfaces: opts.PodInterfaces, mark: opts.Mark}}
	if err := f.probe(); err != nil {
		return nil, err
	}
	return f, f.read()
}

func (f *nftRules) which() Family      { return f.family }
func (f *nftRules) lands() bool        { return f.at.landing.IsValid() }
func (f *nftRules) mark() uint32       { return f.at.mark }
func (f *nftRules) refused() *refusals { return f.refusals }
func (f *nftRules) String() string     { return f.family.String() }
func (f *nftRules) forget()            { f.before, f.installed = f.installed, nil }

func (f *nftRules) left() map[Target]uint16 {
	ports := map[Target]uint16{}
	for k, v := range f.installed.elements {
		if !k.guard {
			ports[k.target] = v.port
		}
	}
	return ports
}

// probe tries the whole table under another name, in a transaction that takes
// it out again, and so finds out what the kernel has.
func (f *nftRules) probe() error {
	if _, err := readNFT(f.family); err != nil {
		return err // and not wait for an answer to what nobody has understood
	}
	noLanding := probeLanding(landingOf(f.family))
	var first error
	for _, landing := range []netip.Addr{landingOf(f.family), {}} {
		if landing.IsValid() && noLanding != nil {
			continue
		}
		for _, fib := range []bool{true, false} {
			f.at.landing, f.at.addrtype = landing, fib
			err := f.try(context.Background(), nil)
			if err != nil {
				first = errors.Join(first, err)
				continue
			}
			if !landing.IsValid() {
				f.log.WithError(errors.Join(noLanding, first)).Infof("%s packets will be redirected to the address of the interface that they come in by", f)
			}
			return nil
		}
	}
	return fmt.Errorf("trying nftables with a table of usher's own: %w", shorter(first))
}

func (f *nftRules) fixed() map[string][]nftRule {
	if !f.at.addrtype {
		f.at.local = localPrefixes(f.family)
	}
	return nftFixed(f.family, f.at)
}

// read asks the kernel what it holds.
func (f *nftRules) read() error {
	if f.installed != nil {
		f.before = f.installed
	}
	f.installed = nil
	now, err := readNFT(f.family)
	if err != nil {
		return err
	}
	now.recognize(f.before)
	f.installed = now
	return nil
}

func (f *nftRules) sync(ctx context.Context, want wanted, reread bool) (changed []string, err error) {
	f.at.pods, f.at.nodePorts = want.pods, want.nodePorts
	mine, some := f.mine(want)
	var landed []string
	if f.lands() && some { // before packets are sent there
		if landed, err = land(f.at.landing); err != nil {
			return nil, err
		}
	}
	if !reread && f.installed != nil && f.installed.other == "" {
		if changed, err = f.put(ctx, want.rules, some, mine); err == nil || ctx.Err() != nil {
			return append(landed, changed...), err
		}
		// Perhaps the kernel holds something else than it did when last seen.
		f.log.WithError(err).Debug("portal rules did not go in, reading them anew")
	}
	changed, err = f.syncAll(ctx, want.rules, some)
	return append(landed, changed...), err
}

// mine returns the changed targets of this family, not nil, and whether there are
// any rules for it.
func (f *nftRules) mine(want wanted) (changed []Target, some bool) {
	changed = []Target{}
	for _, t := range want.changed {
		if FamilyOf(t.Addr) == f.family {
			changed = append(changed, t)
			_, is := want.rules[t]
			some = some || is
		}
	}
	for t := range want.rules {
		if some {
			break
		}
		some = FamilyOf(t.Addr) == f.family
	}
	return changed, some
}

// syncAll compares all that is wanted with what the kernel holds.
func (f *nftRules) syncAll(ctx context.Context, rules map[Target]Rule, some bool) (changed []string, err error) {
	rules = byTarget(rulesOf(rules, f.family))
	for range 2 {
		if err := f.read(); err != nil {
			return nil, err
		}
		changed, err = f.put(ctx, rules, some, nil)
		if err == nil || ctx.Err() != nil {
			return changed, err
		}
		f.log.WithError(err).Debug("portal rules did not go in, reading them anew")
	}
	if err := f.findRefused(ctx, rules, err); err != nil {
		return nil, err
	}
	if err := f.read(); err != nil {
		return nil, err
	}
	return f.put(ctx, rules, some, nil)
}

// put makes the kernel hold all of rules but the refused ones, in one
// transaction. If targets is not nil, only those differ from what is installed.
func (f *nftRules) put(ctx context.Context, rules map[Target]Rule, some bool, targets []Target) (changed []string, err error) {
	want := nftWanted{rules: rules, targets: targets}
	// A table that is there stays until Remove: with the last nat chain of a
	// network namespace the kernel ceases to translate connections in flight.
	if some || f.installed.exists {
		want.fixed = f.fixed()
	}
	if len(f.refusals.byTarget) > 0 {
		want.rules = map[Target]Rule{}
		for t, r := range rules {
			if !f.refusals.has(r) {
				want.rules[t] = r
			}
		}
	}
	c := nftDiff(f.installed, want)
	if c.empty() {
		return nil, nil
	}
	if c.create && targets != nil {
		// The others are missing too.
		return f.put(ctx, byTarget(rulesOf(rules, f.family)), some, nil)
	}
	if f.installed.other != "" {
		f.log.Infof("the %s table %s is replaced: %s", f, nftTable, f.installed.other)
	}
	if err := f.send(ctx, f.family, c); err != nil {
		f.forget()
		return nil, err
	}
	f.installed = c.done(f.installed)
	if len(c.chains) > 0 {
		f.learnPrints()
	}
	return c.repairs, nil
}

// learnPrints asks for the fingerprints of the rules that have just
// been put in. If that fails, the next Check puts them in anew.
func (f *nftRules) learnPrints() {
	conn, err := openNFT()
	if err != nil {
		return
	}
	now := noNFTContents()
	if err := readNFTChains(conn, f.family, nftTableOf(f.family), now); err != nil {
		f.log.WithError(err).Debug("reading the rules that were put in")
		return
	}
	for name, chain := range f.installed.chains {
		// In case that another process was quicker.
		if len(now.chains[name].prints) == len(chain.rules) {
			chain.prints = now.chains[name].prints
			f.installed.chains[name] = chain
		}
	}
}

// findRefused puts into f.refusals the rules that the kernel does not take. The
// error is putErr, why the rules did not go in, unless such rules explain it.
func (f *nftRules) findRefused(ctx context.Context, rules map[Target]Rule, putErr error) error {
	var suspects []Rule
	for _, r := range rulesOf(rules, f.family) {
		if !f.refusals.has(r) {
			suspects = append(suspects, r)
		}
	}
	if err := f.try(ctx, nil); err != nil {
		return putErr // not even the empty table goes in: no rule is to blame
	}
	bad, err := bisect(suspects, func(part []Rule) error { return f.try(ctx, part) })
	if err != nil {
		return err
	}
	if len(bad) == 0 {
		return putErr
	}
	f.refusals.add(suspects, bad)
	return nil
}

// try puts rules into a table that is gone again when the transaction ends.
func (f *nftRules) try(ctx context.Context, rules []Rule) error {
	c := nftDiff(noNFTContents(), nftWanted{fixed: f.fixed(), rules: byTarget(rules)})
	c.trial = true
	err := f.send(ctx, f.family, c)
	for _, e := range []error{unix.ENOBUFS, unix.ENOMEM, unix.EMFILE, unix.ENFILE, unix.EAGAIN, unix.EINTR, unix.EPERM, os.ErrDeadlineExceeded, ctx.Err()} {
		if e != nil && errors.Is(err, e) {
			return undecided{err}
		}
	}
	return err
}
