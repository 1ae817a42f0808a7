package iptables

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/portal/kernel"
	"github.com/usherproxy/usher/portal/redirect"
)

// usher counts how often another program pushes down jumps that have to be first. Below maxMoves, it moves them to the
// front again. From then on it leaves them. The other program claims the first position as much as usher does, and
// rules that change places every few seconds help neither. The count restarts movesPause after it was last incremented.
const (
	maxMoves   = 5
	movesPause = 10 * time.Minute
)

// backend is one family of iptables rules: the commands that read and write them, and their last known state. It is not
// safe for concurrent use.
type backend struct {
	log     logrus.FieldLogger
	family  portal.Family
	variant variant
	// command, save and restore are the commands' names; wait are their arguments for waiting for the xtables lock.
	command, save, restore string
	wait                   []string
	at                     redirect.Setting

	installed map[string]*contents // the kernel's rules, as last read or written
	prints    map[string]uint64    // fingerprints at the last Read; nil if unknown, or if rules were written since
	// scratchNotes are the notes for tables with scratch chains, from before the first of these.
	scratchNotes map[string][]string
	moves        int
	moved        time.Time     // when moves was last incremented
	accepted     []portal.Rule // the result of accepted at the last Put

	unreadable sync.Once // warns that a table could not be read
}

func (f *backend) ip6() bool                  { return f.family.Is6() }
func (f *backend) Setting() *redirect.Setting { return &f.at }

func (f *backend) Left() map[portal.Target]portal.Rule { return rulesInTables(f.installed, f.family) }

// openBackend finds the commands of a variant for one family, and tests that they can put rules into the nat table. It
// leaves nothing behind.
func openBackend(ctx context.Context, v variant, family portal.Family, opts portal.Options) (*backend, error) {
	f := &backend{
		log: opts.Log.WithField("family", family.String()), family: family, variant: v,
		command:      v.command(family.Is6(), ""),
		save:         v.command(family.Is6(), "-save"),
		restore:      v.command(family.Is6(), "-restore"),
		scratchNotes: map[string][]string{},
		at: redirect.Setting{NodePorts: opts.NodePortAddresses, PodInterfaces: opts.PodInterfaces, Mark: opts.Mark,
			Answers: opts.Mark != 0 && !opts.NodeAddress},
	}
	if opts.IPTablesTarget == targetRedirect {
		f.at.NoRedirectAddr = "REDIRECT uses a different address on each interface; use --iptables-target=dnat or --portal=address"
		f.at.Instead = "--iptables-target=dnat"
	}
	for _, command := range []string{f.command, f.save, f.restore} {
		if _, err := exec.LookPath(command); err != nil {
			return nil, hint(fmt.Errorf("looking up %s: %w", command, err), family.Is6())
		}
	}
	version, err := run(ctx, "", f.command, "--version")
	if err != nil {
		return nil, hint(err, family.Is6())
	}
	f.wait = waitArgs(version, opts.LockWait)
	if err := f.probe(ctx); err != nil {
		return nil, hint(fmt.Errorf("testing %s with a rule in a dedicated chain: %w", f.command, err), family.Is6())
	}
	return f, f.Read(ctx)
}

// scratch returns the name of a chain for trying rules. Nothing jumps to it.
func scratch() string { return fmt.Sprintf("%s%d", scratchPrefix, os.Getpid()) }

const scratchPrefix = chainPrefix + "PROBE-"

// isScratch reports whether a chain is a scratch chain of any process. Read ignores such chains: if Put removed the
// chain of a process that is about to take over, that process's test of iptables would fail.
func isScratch(chain string) bool { return strings.HasPrefix(chain, scratchPrefix) }

// targetRedirect is the entry of portal.IPTablesTargets that uses no redirect address.
const targetRedirect = "redirect"

var errRedirectChosen = errors.New("--iptables-target=redirect")

// probeRules returns test rules, by the feature of iptables and the kernel that each requires.
func (f *backend) probeRules() map[string]string {
	mark := fmt.Sprintf("%#x/%#x", f.at.Mark, f.at.Mark)
	toRedirectAddr := func(port uint16) string {
		return "-p tcp -m tcp --dport 9 -j DNAT --to-destination " + netip.AddrPortFrom(kernel.RedirectAddr(f.family), port).String()
	}
	rules := map[string]string{
		"REDIRECT": fmt.Sprintf("-p tcp -m tcp --dport 9 -j REDIRECT --to-ports %d", redirect.RejectPort),
		"comment":  "-m comment --comment probe -j RETURN",
		"addrtype": "-m addrtype --dst-type LOCAL -j RETURN",
	}
	if f.at.NoRedirectAddr == "" {
		rules["DNAT"] = toRedirectAddr(9)
		rules["port 0"] = toRedirectAddr(redirect.RejectPort) // iptables accepts it since 1.8.8
		rules["socket"] = "-m socket --transparent --nowildcard -j RETURN"
	}
	if f.at.Mark != 0 {
		rules["mark"] = "-m mark ! --mark " + mark + " -j RETURN"
	}
	if f.at.Answers {
		rules["connmark"] = "-m connmark --mark " + mark + " -m conntrack --ctdir REPLY -j RETURN"
		rules["CONNMARK"] = "-m mark --mark " + mark + " -j CONNMARK --set-xmark " + mark
		rules["MARK"] = "-j MARK --set-xmark " + mark
		rules["NETMAP"] = "-j NETMAP --to " + netip.PrefixFrom(f.family.Any(), 32).String()
	}
	return rules
}

// probe puts rules into a scratch chain of the nat table: the chain must accept a DNAT or a REDIRECT. It also
// determines which optional features are available. It tries the rules one by one only if they are not accepted
// together: each run of a command takes milliseconds, and much longer on a busy node.
func (f *backend) probe(ctx context.Context) (err error) {
	if err := f.noteTable(tableNAT); err != nil {
		return err
	}
	rules := f.probeRules()
	together := f.runRestore(ctx, addScratch(tableNAT, slices.Collect(maps.Values(rules))))
	if together != nil {
		if err := f.runRestore(ctx, addScratch(tableNAT, nil)); err != nil {
			return err
		}
	}
	defer func() { err = errors.Join(err, f.undoScratch(ctx, tableNAT)) }()
	var undecided error // a feature is not missing if another program held the lock
	try := func(feature string) error {
		if together == nil {
			return nil
		}
		args := append([]string{"-t", tableNAT, "-A", scratch()}, strings.Fields(rules[feature])...)
		_, err := run(ctx, "", f.command, append(args, f.wait...)...)
		if redirect.IsUndecided(err) {
			undecided = err
		}
		return err
	}
	has := func(feature string) bool { return try(feature) == nil }
	noRedirectAddr := errRedirectChosen
	if f.at.NoRedirectAddr == "" {
		noRedirectAddr = try("DNAT")
	}
	if noRedirectAddr == nil {
		noRedirectAddr = kernel.ProbeRedirectAddr(kernel.RedirectAddr(f.family))
	}
	if noRedirectAddr == nil {
		f.at.RedirectAddr = kernel.RedirectAddr(f.family)
		f.at.NoPort0 = !has("port 0")
	} else {
		f.log.WithError(hint(noRedirectAddr, f.ip6())).Info("Packets will be redirected to the address of their incoming interface")
	}
	if noRedirectAddr != nil || f.at.NoPort0 {
		if err := try("REDIRECT"); err != nil {
			return err
		}
	}
	if err := try("addrtype"); err != nil {
		return err
	}
	f.at.Comment = has("comment")
	if f.at.Mark != 0 && !has("mark") {
		f.log.Info("The match \"mark\" is missing; usher's own packets are not distinguished from clients' packets")
		f.at.Mark, f.at.Answers = 0, false
	}
	f.at.ProbeOwnOnly(f.family, f.log, func() error { return try("socket") })
	if f.at.Answers {
		f.probeAnswers(has)
	}
	return undecided
}

// probeAnswers determines whether rules can mark the answers to clients' own addresses, and translate aliases. It can
// only test rules that a chain of the nat table accepts.
func (f *backend) probeAnswers(has func(feature string) bool) {
	if f.at.Answers = has("connmark") && has("CONNMARK") && has("MARK"); !f.at.Answers {
		f.log.Info("Endpoints will see this node's address, not their clients': the kernel or iptables lacks connmark, CONNMARK or MARK")
		return
	}
	if f.at.NoAliases = !has("NETMAP"); f.at.NoAliases {
		f.log.Info("Endpoints on the client's bridge will see this node's address: the kernel or iptables lacks NETMAP")
	}
}

// Read reads the kernel's rules.
func (f *backend) Read(ctx context.Context) error {
	// Reading a table of the legacy variant by name makes the kernel set it up. So the first Read names none, and
	// iptables-save prints the existing ones.
	args := [][]string{nil}
	if f.installed != nil {
		args = nil
		for _, name := range f.tables() {
			args = append(args, []string{"-t", name})
		}
	}
	f.prints = nil
	prints := f.fingerprints() // before the read: a change during it gives another fingerprint
	installed := map[string]*contents{}
	for _, a := range args {
		text, err := run(ctx, "", f.save, a...)
		if err != nil {
			return hint(fmt.Errorf("reading %s rules: %w", f.family, err), f.ip6())
		}
		for name, c := range parseSave(text) {
			maps.DeleteFunc(c.chains, func(chain string, _ []spec) bool { return isScratch(chain) })
			installed[name] = c
		}
		for _, name := range unreadable(text) { // its previous contents are the best guess
			if old := f.installed[name]; old != nil {
				installed[name] = old
			}
			f.unreadable.Do(func() {
				f.log.WithField("table", name).Warn("The table has nftables rules that this iptables does not understand: usher can neither check nor remove its rules there. Delete the nftables rules, or use --portal=nftables")
			})
		}
	}
	f.installed, f.prints = installed, prints
	return nil
}

// tables returns the tables that Read reads: nat, and those of mangle and filter that f.installed has.
func (f *backend) tables() []string {
	tables := []string{tableNAT}
	for _, name := range []string{tableMangle, tableFilter} {
		if f.installed[name] != nil {
			tables = append(tables, name)
		}
	}
	return tables
}

// fingerprints returns the fingerprints of the tables; nil if they are unavailable. With nf_tables, the number of its
// last change stands for all tables.
func (f *backend) fingerprints() map[string]uint64 {
	if f.installed == nil {
		return nil
	}
	if f.variant.nft {
		if generation := kernel.NFTGeneration(); generation != 0 {
			return map[string]uint64{"": uint64(generation)}
		}
		return nil
	}
	prints := map[string]uint64{}
	for _, name := range f.tables() {
		print, err := fingerprint(f.family, name)
		if err != nil {
			f.log.WithError(err).Debug("Comparing rules by reading all of them")
			return nil
		}
		prints[name] = print
	}
	return prints
}

func (f *backend) Unchanged() bool { return f.prints != nil && maps.Equal(f.prints, f.fingerprints()) }

// Put makes the kernel hold rules in one run of iptables-restore. It finds differences by comparing all rules.
func (f *backend) Put(ctx context.Context, rules map[portal.Target]portal.Rule, _ []portal.Target) (changed []string, err error) {
	wanted := layOut(portal.InOrder(rules), f.at)
	if have := f.installed[tableMangle]; len(rules) > 0 || have != nil && have.chains[chainAnswers] != nil {
		addAnswers(wanted, f.at)
	}
	if len(rules) > 0 {
		f.accepted = accepted(rules, f.at, f.family)
		addListeners(wanted, f.at)
		addAccept(wanted, f.at, f.accepted)
		addServiceCIDRs(wanted, f.at)
	}
	keep, err := f.notes(wanted)
	if err != nil {
		return nil, err
	}
	if now := time.Now(); movedDown(f.installed, wanted) {
		if now.Sub(f.moved) > movesPause {
			f.moves = 0
		}
		if f.moves < maxMoves {
			f.moves++
			if f.moved = now; f.moves == maxMoves {
				f.log.Warn("Another program keeps inserting rules before usher's; usher no longer moves its own to the front")
			}
		}
	}
	c := diff(f.installed, wanted, keep, f.moves < maxMoves)
	if c.script == "" {
		return nil, nil
	}
	f.prints = nil
	if err := f.runRestore(ctx, c.script); err != nil {
		if !redirect.IsUndecided(err) && f.giveUp(ctx) {
			return f.Put(ctx, rules, nil)
		}
		return nil, hint(fmt.Errorf("installing %s rules: %w", f.family, err), f.ip6())
	}
	f.installed = asInstalled(wanted, keep)
	return c.repairs, nil
}

// Parts compares the chains and the jumps to them.
func (f *backend) Parts() func(context.Context) ([]portal.Part, error) {
	want := map[string]*contents{}
	addListeners(want, f.at)
	addAccept(want, f.at, f.accepted)
	addAnswers(want, f.at)
	addServiceCIDRs(want, f.at)
	return func(ctx context.Context) (parts []portal.Part, err error) {
		for _, name := range []string{tableMangle, tableNAT, tableFilter} {
			if want[name] == nil {
				continue
			}
			text, err := run(ctx, "", f.save, "-t", name)
			if err != nil {
				return nil, hint(fmt.Errorf("reading %s rules: %w", f.family, err), f.ip6())
			}
			if len(unreadable(text)) > 0 {
				continue // Read warns
			}
			have := parseSave(text)[name]
			if have == nil {
				have = &contents{}
			}
			for _, jump := range want[name].jumps {
				chain := jump.spec.jump
				specs, there := have.chains[chain]
				there = there && slices.ContainsFunc(have.jumps, func(h jumpRule) bool { return h.plain() == jump })
				parts = append(parts, portal.Part{Family: f.family, Name: "chain " + chain + " of table " + name,
					State: portal.StateOf(there, slices.Equal(specs, want[name].chains[chain])), Text: redirect.Joined(want[name].chains[chain])})
			}
		}
		return parts, nil
	}
}

// notes returns the wanted notes for each table: the existing ones, and those for objects that iptables-nft creates
// with the next change.
func (f *backend) notes(wanted map[string]*contents) (map[string][]string, error) {
	if !f.variant.nft {
		return nil, nil
	}
	keep := map[string][]string{}
	for name, c := range f.installed {
		for chain := range c.chains {
			if isNote(chain) {
				keep[name] = append(keep[name], chain)
			}
		}
	}
	for name, want := range wanted {
		if have := f.installed[name]; slices.Contains(keep[name], noteTable) || have != nil && len(have.jumps) >= len(want.jumps) {
			continue
		}
		made, err := notesFor(f.family, name, want.jumps)
		if err != nil {
			return nil, err
		}
		keep[name] = append(keep[name], made...)
	}
	return keep, nil
}

// Missing returns the rules that no chain has.
func (f *backend) Missing(rules []portal.Rule) (missing []portal.Rule) {
	in := map[spec]bool{}
	for _, c := range f.installed {
		for _, s := range allRules(c.chains) {
			in[s] = true
		}
	}
	for _, r := range rules {
		if slices.ContainsFunc(f.specs(r), func(s spec) bool { return !in[s] }) {
			missing = append(missing, r)
		}
	}
	return missing
}

// specs returns the rules for r in all tables.
func (f *backend) specs(r portal.Rule) (specs []spec) {
	for _, t := range layOut([]portal.Rule{r}, f.at) {
		specs = append(specs, allRules(t.chains)...)
	}
	return specs
}

// Try puts rules into scratch chains of the tables that hold some of them, and of nat. Using another table would make
// the kernel set it up.
func (f *backend) Try(ctx context.Context, rules []portal.Rule) error {
	tables := layOut(rules, f.at)
	if tables[tableNAT] == nil {
		tables[tableNAT] = &contents{}
	}
	return hint(f.putScratch(ctx, tables), f.ip6())
}

// giveUp tries the rules that serve all targets together, which need the tables mangle and filter, in four groups. It
// disables the groups that the kernel refuses, and reports whether there are any.
func (f *backend) giveUp(ctx context.Context) (gaveUp bool) {
	if err := f.tryTogether(ctx, addListeners); err != nil {
		f.at.GiveUpOwnOnly(f.log, err)
		gaveUp = true
	}
	if err := f.tryTogether(ctx, func(tables map[string]*contents, at redirect.Setting) {
		addAccept(tables, at, f.accepted[:min(1, len(f.accepted))]) // at most one rule, so that no chains are below it
	}); err != nil {
		f.log.WithError(err).Info("No rule accepts redirected packets; a host firewall must accept them")
		f.at.NoAccept = true
		gaveUp = true
	}
	if err := f.tryTogether(ctx, addServiceCIDRs); err != nil {
		f.at.GiveUpReject(f.log, err)
		gaveUp = true
	}
	if err := f.tryTogether(ctx, addAnswers); err != nil {
		f.log.WithError(err).Info("Endpoints will see this node's address, not their clients'")
		f.at.Answers = false
		gaveUp = true
	}
	return gaveUp
}

// tryTogether puts the rules that add adds into scratch chains, and returns an error if these are refused.
func (f *backend) tryTogether(ctx context.Context, add func(map[string]*contents, redirect.Setting)) error {
	tables := map[string]*contents{}
	if add(tables, f.at); len(tables) == 0 {
		return nil
	}
	err := f.putScratch(ctx, tables)
	if err == nil || redirect.IsUndecided(err) {
		return nil
	}
	return err
}

// putScratch puts the rules of tables into scratch chains, and then removes these.
func (f *backend) putScratch(ctx context.Context, tables map[string]*contents) error {
	defer f.dropScratch(context.WithoutCancel(ctx), tables)
	for name := range tables {
		if err := f.noteTable(name); err != nil {
			return redirect.MarkUndecided(err)
		}
	}
	return f.runRestore(ctx, scratchScript(tables))
}

// noteTable is called before scratch chains are added to a table, which may make iptables-nft create it.
func (f *backend) noteTable(name string) error {
	if _, noted := f.scratchNotes[name]; noted || !f.variant.nft {
		return nil
	}
	notes, err := notesFor(f.family, name, nil)
	if err == nil {
		f.scratchNotes[name] = notes
	}
	return err
}

// undoScratch removes the scratch chains from a table, and the table if they made iptables-nft create it.
func (f *backend) undoScratch(ctx context.Context, name string) error {
	notes := f.scratchNotes[name]
	delete(f.scratchNotes, name)
	return errors.Join(f.runRestore(ctx, removeScratch(name)), tidyNFT(f.family, name, notes))
}

// dropScratch is undoScratch for tables that may have no scratch chain.
func (f *backend) dropScratch(ctx context.Context, tables map[string]*contents) {
	for name := range tables {
		if err := f.undoScratch(ctx, name); err != nil {
			f.log.WithError(err).Debug("Failed to remove a scratch chain, or there is none")
		}
	}
}

// scratchScript returns a script for iptables-restore that puts all rules of these tables into scratch chains.
func scratchScript(tables map[string]*contents) (script string) {
	for name, t := range tables {
		var rules []string
		for _, s := range allRules(t.chains) {
			if strings.HasPrefix(s.jump, chainPrefix) {
				s.jump = "RETURN" // instead of a chain that may not exist
			}
			rules = append(rules, s.String())
		}
		script += addScratch(name, rules)
	}
	return script
}

// addScratch returns the part of a script for iptables-restore that creates or empties a table's scratch chain, and
// adds rules to it.
func addScratch(table string, rules []string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "*%s\n:%s - [0:0]\n", table, scratch())
	for _, r := range rules {
		fmt.Fprintf(&b, "-A %s %s\n", scratch(), r)
	}
	b.WriteString("COMMIT\n")
	return b.String()
}

// removeScratch returns the part of a script that removes a table's scratch chain. It fails if there is none.
func removeScratch(table string) string {
	return fmt.Sprintf("*%[1]s\n-F %[2]s\n-X %[2]s\nCOMMIT\n", table, scratch())
}

// runRestore runs iptables-restore with a script. Of each table, all lines take effect or none.
func (f *backend) runRestore(ctx context.Context, script string) error {
	_, err := run(ctx, script, f.restore, append([]string{"--noflush"}, f.wait...)...)
	return err
}
