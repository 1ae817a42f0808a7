package nftables

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/portal/kernel"
	"github.com/usherproxy/usher/portal/redirect"
)

// backend is one family of nftables rules: what is installed, and how to get
// from that to what is wanted. It is not safe for concurrent use.
type backend struct {
	log    logrus.FieldLogger
	family portal.Family
	at     redirect.Setting
	send   func(context.Context, portal.Family, *change) error // sendChange, but in tests

	sole      soleAddresses
	installed *contents // what the kernel holds, or did when last read
	fresh     bool      // nothing has happened since that makes installed doubtful
	// generation is that of nf_tables (kernel.NFTGeneration) with installed in it, if nobody else
	// has changed anything meanwhile.
	generation uint32
}

// openBackend proves that rules can be put in, and reads those that are. It
// leaves nothing behind.
func openBackend(family portal.Family, opts portal.Options) (*backend, error) {
	f := &backend{log: opts.Log, family: family, send: sendChange,
		at: redirect.Setting{Comment: true, NodePorts: opts.NodePortAddresses, PodInterfaces: opts.PodInterfaces, Mark: opts.Mark, Answers: opts.Mark != 0 && !opts.NodeAddress}}
	if err := f.probe(); err != nil {
		return nil, err
	}
	return f, f.Read(context.Background())
}

func (f *backend) Setting() *redirect.Setting { return &f.at }
func (f *backend) Known() bool                { return f.fresh && f.installed.other == "" }
func (f *backend) Forget()                    { f.fresh = false }

func (f *backend) Left() map[portal.Target]uint16 {
	ports := map[portal.Target]uint16{}
	for k, v := range f.installed.elements {
		if !k.guard && !k.isAddress() {
			ports[k.target] = v.port
		}
	}
	return ports
}

// probe tries the whole table under another name, in a transaction that takes
// it out again, and so finds out what the kernel has.
func (f *backend) probe() error {
	if _, err := readTable(f.family); err != nil {
		return err // and not wait for an answer to what nobody has understood
	}
	noLanding := kernel.ProbeLanding(kernel.LandingOf(f.family))
	var first error
	answers := f.at.Answers
	f.at.Answers = false
	for _, landing := range []netip.Addr{kernel.LandingOf(f.family), {}} {
		if landing.IsValid() && noLanding != nil {
			continue
		}
		for _, fib := range []bool{true, false} {
			f.at.Landing, f.at.AddrType = landing, fib
			try := func() error { return f.Try(context.Background(), nil) }
			if err := try(); err != nil {
				first = errors.Join(first, err)
				continue
			}
			f.at.ProbeOwnOnly(f.family, f.log, try)
			f.at.ServiceCIDRs = []netip.Prefix{netip.PrefixFrom(f.family.Any(), 32)}
			if err := try(); err != nil {
				f.at.GiveUpReject(f.family, f.log, err)
			}
			f.at.ServiceCIDRs = nil
			if f.at.Answers = answers; answers {
				f.probeAnswers()
			}
			if !landing.IsValid() {
				f.log.WithError(errors.Join(noLanding, first)).Infof("%s packets will be redirected to the address of their incoming interface", f.family)
			}
			return nil
		}
	}
	return fmt.Errorf("testing nftables with a dedicated table: %w", shorter(first))
}

// probeAnswers finds out whether rules mark the answers to clients' own addresses, and
// translate aliases.
func (f *backend) probeAnswers() {
	all := netip.PrefixFrom(f.family.Any(), 32)
	f.at.Aliases = []redirect.Alias{{Of: all, As: all}}
	err := f.Try(context.Background(), nil)
	if f.at.Aliases = nil; err == nil {
		return
	}
	f.at.NoAliases = true
	if without := f.Try(context.Background(), nil); without != nil {
		f.at.Answers = false
		err = without
	}
	f.log.WithError(err).WithField("aliases", !f.at.NoAliases).Infof("Some %s endpoints will see this node's address, not their clients'", f.family)
}

// Unchanged implements redirect.Backend.
func (f *backend) Unchanged() bool {
	return f.generation != 0 && f.generation == kernel.NFTGeneration()
}

// Read asks the kernel what it holds.
func (f *backend) Read(context.Context) error {
	f.generation = kernel.NFTGeneration() // before: what changes meanwhile is another
	now, err := readTable(f.family)
	if f.fresh = err == nil; err != nil {
		return err
	}
	now.recognize(f.installed)
	f.installed = now
	return nil
}

// Put makes the kernel hold rules in one transaction over what differs.
func (f *backend) Put(ctx context.Context, rules map[portal.Target]portal.Rule, only []portal.Target) (changed []string, err error) {
	f.sole.note(rules, only)
	want := wanted{rules: rules, targets: only, sole: f.sole.rules}
	// A table that is there stays until Remove: with the last nat chain of a
	// network namespace the kernel ceases to translate connections in flight.
	if len(rules) > 0 || f.installed.exists {
		want.fixed = fixedChains(f.family, f.at)
	}
	c := diff(f.installed, want)
	if c.empty() {
		return nil, nil
	}
	if f.installed.other != "" {
		f.log.Infof("Replacing the %s table %s: %s", f.family, nameTable, f.installed.other)
	}
	if err := f.send(ctx, f.family, c); err != nil {
		return nil, err
	}
	f.installed = c.done(f.installed)
	f.generation++ // by one transaction; with more, or others', it is another in the kernel
	if len(c.chains) > 0 {
		f.learnPrints()
	}
	return c.repairs, nil
}

// learnPrints asks for the fingerprints of the rules that have just
// been put in. If that fails, whoever reads next finds rules that it does not know, and
// puts them in anew.
func (f *backend) learnPrints() {
	conn, err := kernel.OpenNFT()
	if err != nil {
		return
	}
	now := noContents()
	if err := readChains(conn, f.family, tableOf(f.family), now); err != nil {
		f.log.WithError(err).Debug("Failed to read the installed rules")
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

// Parts compares the chains alone: the maps may be large.
func (f *backend) Parts() func(context.Context) ([]portal.Part, error) {
	want, before := fixedChains(f.family, f.at), &contents{chains: maps.Clone(f.installed.chains)}
	return func(context.Context) (parts []portal.Part, err error) {
		conn, err := kernel.OpenNFT()
		if err != nil {
			return nil, err
		}
		now := noContents()
		if err := readChains(conn, f.family, tableOf(f.family), now); err != nil {
			return nil, err
		}
		now.recognize(before)
		for _, name := range []string{nameListeners, nameSent, nameAnswers, nameAliases, nameCIDRsOutput, nameCIDRsForward} {
			rules, wanted := want[name]
			if !wanted {
				continue
			}
			have, there := now.chains[name]
			parts = append(parts, portal.Part{Family: f.family, Name: "chain " + name + " of table " + nameTable,
				State: portal.StateOf(there, slices.Equal(have.rules, rules)), Text: redirect.Joined(rules)})
		}
		return parts, nil
	}
}

// Missing returns them all: to try one again that is in costs next to nothing.
func (f *backend) Missing(rules []portal.Rule) []portal.Rule { return rules }

// Tried has nothing to take out.
func (f *backend) Tried([]portal.Rule) {}

// Try puts rules into a table that is gone again when the transaction ends.
func (f *backend) Try(ctx context.Context, rules []portal.Rule) error {
	c := diff(noContents(), wanted{fixed: fixedChains(f.family, f.at), rules: portal.ByTarget(rules)})
	c.trial = true
	err := f.send(ctx, f.family, c)
	for _, e := range []error{unix.ENOBUFS, unix.ENOMEM, unix.EMFILE, unix.ENFILE, unix.EAGAIN, unix.EINTR, unix.EPERM, os.ErrDeadlineExceeded, ctx.Err()} {
		if e != nil && errors.Is(err, e) {
			return redirect.MarkUndecided(err)
		}
	}
	return err
}
