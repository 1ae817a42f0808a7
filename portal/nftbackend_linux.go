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

	installed *nftContents // what the kernel holds, or did when last read
	fresh     bool         // nothing has happened since that makes installed doubtful
}

// openNFTRules proves that rules can be put in, and reads those that are. It
// leaves nothing behind.
func openNFTRules(family Family, opts Options) (*nftRules, error) {
	f := &nftRules{log: opts.Log, family: family, send: sendNFT,
		at: setting{comment: true, nodePorts: opts.NodePortAddresses, podInterfaces: opts.PodInterfaces, mark: opts.Mark}}
	if err := f.probe(); err != nil {
		return nil, err
	}
	return f, f.read(context.Background())
}

func (f *nftRules) setting() *setting { return &f.at }
func (f *nftRules) known() bool       { return f.fresh && f.installed.other == "" }
func (f *nftRules) forget()           { f.fresh = false }

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
				f.log.WithError(errors.Join(noLanding, first)).Infof("%s packets will be redirected to the address of the interface that they come in by", f.family)
			}
			return nil
		}
	}
	return fmt.Errorf("trying nftables with a table of usher's own: %w", shorter(first))
}

// read asks the kernel what it holds.
func (f *nftRules) read(context.Context) error {
	now, err := readNFT(f.family)
	if f.fresh = err == nil; err != nil {
		return err
	}
	now.recognize(f.installed)
	f.installed = now
	return nil
}

// put makes the kernel hold rules in one transaction over what differs.
func (f *nftRules) put(ctx context.Context, rules map[Target]Rule, only []Target) (changed []string, err error) {
	want := nftWanted{rules: rules, targets: only}
	// A table that is there stays until Remove: with the last nat chain of a
	// network namespace the kernel ceases to translate connections in flight.
	if len(rules) > 0 || f.installed.exists {
		want.fixed = nftFixed(f.family, f.at)
	}
	c := nftDiff(f.installed, want)
	if c.empty() {
		return nil, nil
	}
	if f.installed.other != "" {
		f.log.Infof("the %s table %s is replaced: %s", f.family, nftTable, f.installed.other)
	}
	if err := f.send(ctx, f.family, c); err != nil {
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

// missing returns them all: to try one again that is in costs next to nothing.
func (f *nftRules) missing(rules []Rule) []Rule { return rules }

// tried has nothing to take out.
func (f *nftRules) tried([]Rule) {}

// try puts rules into a table that is gone again when the transaction ends.
func (f *nftRules) try(ctx context.Context, rules []Rule) error {
	c := nftDiff(noNFTContents(), nftWanted{fixed: nftFixed(f.family, f.at), rules: byTarget(rules)})
	c.trial = true
	err := f.send(ctx, f.family, c)
	for _, e := range []error{unix.ENOBUFS, unix.ENOMEM, unix.EMFILE, unix.ENFILE, unix.EAGAIN, unix.EINTR, unix.EPERM, os.ErrDeadlineExceeded, ctx.Err()} {
		if e != nil && errors.Is(err, e) {
			return markUndecided(err)
		}
	}
	return err
}
