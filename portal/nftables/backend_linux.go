package nftables

import (
	"cmp"
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

// backend is one family of nftables rules: the installed state, and the changes to it. It is not safe for concurrent
// use.
type backend struct {
	log    logrus.FieldLogger
	family portal.Family
	at     redirect.Setting
	send   func(context.Context, portal.Family, *change) error // sendChange, except in tests

	sole      soleAddresses
	installed *contents // the kernel's rules, as last read or written
	// generation is the number of nf_tables (kernel.NFTGeneration) for the state in installed. The kernel's number
	// differs once another process has changed anything.
	generation uint32
}

// openBackend tests that rules can be installed, and reads the existing ones. It leaves nothing behind.
func openBackend(family portal.Family, opts portal.Options) (*backend, error) {
	f := &backend{log: opts.Log.WithField("family", family.String()), family: family, send: sendChange,
		at: redirect.Setting{Comment: true, NodePorts: opts.NodePortAddresses, PodInterfaces: opts.PodInterfaces, Mark: opts.Mark, Answers: opts.Mark != 0 && !opts.NodeAddress}}
	if err := f.probe(); err != nil {
		return nil, err
	}
	return f, f.Read(context.Background())
}

func (f *backend) Setting() *redirect.Setting { return &f.at }

func (f *backend) Left() map[portal.Target]portal.Rule { return rulesInMaps(f.installed) }

// probe tries the whole table under another name, in a transaction that removes it again, to determine the kernel's
// features.
func (f *backend) probe() error {
	if _, err := readTable(f.family); err != nil {
		return err // without nf_tables: the kernel would not answer a transaction
	}
	noRedirectAddr := kernel.ProbeRedirectAddr(kernel.RedirectAddr(f.family))
	var first, undecided error // a feature is not missing if this process lacked a resource
	try := func() error {
		err := f.Try(context.Background(), nil)
		if redirect.IsUndecided(err) {
			undecided = err
		}
		return err
	}
	answers := f.at.Answers
	f.at.Answers = false
	for _, redirectAddr := range []netip.Addr{kernel.RedirectAddr(f.family), {}} {
		if redirectAddr.IsValid() && noRedirectAddr != nil {
			continue
		}
		f.at.RedirectAddr = redirectAddr
		if err := try(); err != nil {
			first = cmp.Or(first, err)
			continue
		}
		f.at.ProbeOwnOnly(f.family, f.log, try)
		f.at.ServiceCIDRs = []netip.Prefix{netip.PrefixFrom(f.family.Any(), 32)}
		if err := try(); err != nil {
			f.at.GiveUpReject(f.log, err)
		}
		f.at.ServiceCIDRs = nil
		if f.at.Answers = answers; answers {
			f.probeAnswers(try)
		}
		if !redirectAddr.IsValid() {
			f.log.WithError(errors.Join(noRedirectAddr, first)).Info("Packets will be redirected to the address of their incoming interface")
		}
		return undecided
	}
	return fmt.Errorf("testing nftables with a dedicated table: %w", cmp.Or(undecided, first))
}

// probeAnswers determines whether rules can mark the answers to clients' own addresses, and translate aliases.
func (f *backend) probeAnswers(try func() error) {
	all := netip.PrefixFrom(f.family.Any(), 32)
	f.at.Aliases = []redirect.Alias{{Of: all, As: all}}
	err := try()
	if f.at.Aliases = nil; err == nil {
		return
	}
	f.at.NoAliases = true
	if without := try(); without != nil {
		f.at.Answers = false
		err = without
	}
	f.log.WithError(err).WithField("aliases", !f.at.NoAliases).Info("Some endpoints will see this node's address, not their clients'")
}

func (f *backend) Unchanged() bool {
	return f.generation != 0 && f.generation == kernel.NFTGeneration()
}

// Read reads the kernel's rules.
func (f *backend) Read(context.Context) error {
	f.generation = kernel.NFTGeneration() // before the read: a change during it gives another generation
	now, err := readTable(f.family)
	if err != nil {
		return err
	}
	now.recognize(f.installed)
	f.installed = now
	return nil
}

// Put makes the kernel hold rules, in one transaction over the differences.
func (f *backend) Put(ctx context.Context, rules map[portal.Target]portal.Rule, only []portal.Target) (changed []string, err error) {
	f.sole.note(rules, only)
	want := wanted{rules: rules, targets: only, sole: f.sole.rules}
	// An existing table stays until Remove: when a network namespace's last nat chain is removed, the kernel stops
	// translating open connections.
	if len(rules) > 0 || f.installed.exists {
		want.fixed = fixedChains(f.family, f.at)
	}
	c := diff(f.installed, want)
	if c.empty() {
		return nil, nil
	}
	if f.installed.other != "" {
		f.log.WithFields(logrus.Fields{"table": nameTable, "reason": f.installed.other}).Info("Replacing the table")
	}
	if err := f.send(ctx, f.family, c); err != nil {
		return nil, err
	}
	f.installed = c.done(f.installed)
	f.generation++ // by one transaction; after several, or another process's, the kernel's number differs
	if len(c.chains) > 0 {
		f.learnPrints(c.chains)
	}
	return c.repairs, nil
}

// learnPrints reads the fingerprints of the chains that were just installed. If that fails, the next Read finds unknown
// rules, and the next Put replaces them.
func (f *backend) learnPrints(put map[string][]rule) {
	conn, err := kernel.OpenNFT()
	if err != nil {
		return
	}
	now := noContents()
	if err := readChains(conn, f.family, tableOf(f.family), now); err != nil {
		f.log.WithError(err).Debug("Failed to read the installed rules")
		return
	}
	for name := range put {
		chain := f.installed.chains[name]
		if len(now.chains[name].prints) == len(chain.rules) { // otherwise another process has changed the chain since
			chain.prints = now.chains[name].prints
			f.installed.chains[name] = chain
		}
	}
}

// Parts compares only the chains: the maps may be large.
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

// Missing returns all rules: trying an installed one again costs little.
func (f *backend) Missing(rules []portal.Rule) []portal.Rule { return rules }

// Try puts rules into a table that the same transaction removes.
func (f *backend) Try(ctx context.Context, rules []portal.Rule) error {
	c := diff(noContents(), wanted{fixed: fixedChains(f.family, f.at), rules: portal.ByTarget(rules)})
	c.dryRun = true
	err := f.send(ctx, f.family, c)
	if errors.Is(err, unix.EMSGSIZE) || errors.Is(err, unix.ENOBUFS) { // for the socket, see sendChange
		return redirect.ErrTooMany
	}
	for _, e := range []error{unix.ENOMEM, unix.EMFILE, unix.ENFILE, unix.EAGAIN, unix.EINTR, unix.EPERM, os.ErrDeadlineExceeded, ctx.Err()} {
		if e != nil && errors.Is(err, e) {
			return redirect.MarkUndecided(err)
		}
	}
	return err
}
