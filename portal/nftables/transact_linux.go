package nftables

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"os"
	"slices"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/portal/kernel"
)

const (
	// perMessage is the number of elements in one message of a transaction. An attribute has at most 64 KiB; an element
	// takes up to about 200 bytes.
	perMessage = 256
	// perPart is the number of rules and elements in each transaction if there are several.
	perPart = 1000
)

// tableOf returns usher's table in one family.
func tableOf(family portal.Family) *nftables.Table {
	return &nftables.Table{Name: nameTable, Family: kernel.NFTFamily(family)}
}

// mapsOf returns the maps of a table.
func mapsOf(family portal.Family, table *nftables.Table) (sets []*nftables.Set) {
	addr := nftables.TypeIPAddr
	if family.Is6() {
		addr = nftables.TypeIP6Addr
	}
	node := nftables.MustConcatSetType(nftables.TypeInetProto, nftables.TypeInetService)
	vip := nftables.MustConcatSetType(addr, nftables.TypeInetProto, nftables.TypeInetService)
	for _, m := range []struct {
		name      string
		key, data nftables.SetDatatype
	}{
		{namePortals, vip, nftables.TypeInetService}, {nameClusterIPs, addr, nftables.TypeInetService}, {nameNodePorts, node, nftables.TypeInetService},
		{nameGuards, vip, nftables.TypeVerdict}, {nameNodePortGuards, node, nftables.TypeVerdict},
	} {
		sets = append(sets, &nftables.Set{Table: table, Name: m.name, IsMap: true, KeyType: m.key, DataType: m.data})
	}
	return sets
}

// baseChain returns the chain called name, with its hook if it has one.
func baseChain(table *nftables.Table, name string) *nftables.Chain {
	c := &nftables.Chain{Name: name, Table: table}
	hook, is := map[string]struct {
		kind     nftables.ChainType
		hook     *nftables.ChainHook
		priority nftables.ChainPriority
	}{
		namePrerouting:   {nftables.ChainTypeNAT, nftables.ChainHookPrerouting, *nftables.ChainPriorityNATDest - 10},
		nameOutput:       {nftables.ChainTypeNAT, nftables.ChainHookOutput, *nftables.ChainPriorityNATDest - 10},
		nameListeners:    {nftables.ChainTypeFilter, nftables.ChainHookInput, *nftables.ChainPriorityMangle},
		nameSent:         {nftables.ChainTypeRoute, nftables.ChainHookOutput, *nftables.ChainPriorityMangle},
		nameAnswers:      {nftables.ChainTypeFilter, nftables.ChainHookPrerouting, *nftables.ChainPriorityMangle},
		nameCIDRsOutput:  {nftables.ChainTypeFilter, nftables.ChainHookOutput, *nftables.ChainPriorityFilter},
		nameCIDRsForward: {nftables.ChainTypeFilter, nftables.ChainHookForward, *nftables.ChainPriorityFilter},
		nameAliases:      {nftables.ChainTypeNAT, nftables.ChainHookPostrouting, *nftables.ChainPriorityNATSource - 10},
	}[name]
	if is {
		accept := nftables.ChainPolicyAccept
		c.Type, c.Hooknum, c.Priority, c.Policy = hook.kind, hook.hook, &hook.priority, &accept
	}
	return c
}

// sendChange sends a change: in one transaction or, if that is too large for the socket, in several.
func sendChange(ctx context.Context, family portal.Family, c *change) error {
	err := transact(ctx, family, c)
	if c.dryRun || !errors.Is(err, unix.EMSGSIZE) && !errors.Is(err, unix.ENOBUFS) {
		return err
	}
	for _, part := range c.parts(perPart) {
		if err := transact(ctx, family, part); err != nil {
			return err
		}
	}
	return nil
}

func transact(ctx context.Context, family portal.Family, c *change) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	table := tableOf(family)
	if c.dryRun {
		table.Name = fmt.Sprintf("%s-probe-%d", nameTable, os.Getpid())
	}
	conn, err := kernel.OpenNFT()
	if err != nil {
		return err
	}
	if err := stage(conn, family, table, c); err != nil {
		return err
	}
	if c.dryRun {
		conn.DelTable(table)
	}
	return commit(conn)
}

func commit(conn *nftables.Conn) error {
	if err := conn.Flush(); err != nil {
		err = fmt.Errorf("changing nftables rules: %w", shorter(err))
		if errors.Is(err, unix.EINVAL) { // readTable has succeeded before, so the kernel has nf_tables
			return fmt.Errorf("%w (this kernel refuses a rule)", err)
		}
		return hint(err)
	}
	return nil
}

// shorter shortens the error of a transaction, which joins one error for each message that failed.
func shorter(err error) error {
	for _, e := range []error{unix.EMSGSIZE, unix.ENOBUFS, unix.EPERM, unix.EACCES, os.ErrDeadlineExceeded} {
		if errors.Is(err, e) {
			return e
		}
	}
	var joined interface{ Unwrap() []error }
	for errors.As(err, &joined) {
		err = joined.Unwrap()[0]
	}
	return err
}

// stage adds a change to a transaction, in an order in which objects exist before they are used, and are unused when
// they are removed.
func stage(conn *nftables.Conn, family portal.Family, table *nftables.Table, c *change) error {
	if c.remove {
		conn.DelTable(table)
	}
	if c.create {
		conn.AddTable(table)
	}
	sets := map[string]*nftables.Set{}
	for _, set := range mapsOf(family, table) {
		sets[set.Name] = set
		if c.create {
			if err := conn.AddSet(set, nil); err != nil {
				return err
			}
		}
	}
	for _, name := range c.makeChains {
		conn.AddChain(baseChain(table, name))
	}
	for _, name := range append(slices.Sorted(maps.Keys(c.chains)), c.goneChains...) {
		if !slices.Contains(c.makeChains, name) {
			conn.FlushChain(&nftables.Chain{Name: name, Table: table})
		}
	}
	gone := map[string][]nftables.SetElement{}
	for _, k := range c.del {
		gone[k.inMap()] = append(gone[k.inMap()], nftables.SetElement{Key: k.bytes()})
	}
	come := map[string][]nftables.SetElement{}
	for _, e := range c.add {
		come[e.key.inMap()] = append(come[e.key.inMap()], e.marshal())
	}
	for _, name := range slices.Sorted(maps.Keys(gone)) {
		for part := range slices.Chunk(gone[name], perMessage) {
			if err := conn.SetDeleteElements(sets[name], part); err != nil {
				return err
			}
		}
	}
	fill := func(name string, rules iter.Seq2[int, rule], put func(*nftables.Rule) *nftables.Rule) error {
		for _, rule := range rules {
			r := &nftables.Rule{Table: table, Chain: &nftables.Chain{Name: name, Table: table}}
			var err error
			if r.Exprs, err = rule.exprs(conn, table, sets); err != nil {
				return err
			}
			put(r)
		}
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(c.chains)) {
		if err := fill(name, slices.All(c.chains[name]), conn.AddRule); err != nil {
			return err
		}
	}
	for name, rules := range c.ahead {
		if err := fill(name, slices.Backward(rules), conn.InsertRule); err != nil {
			return err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(come)) {
		for part := range slices.Chunk(come[name], perMessage) {
			if err := conn.SetAddElements(sets[name], part); err != nil {
				return err
			}
		}
	}
	for _, name := range c.goneChains {
		conn.DelChain(&nftables.Chain{Name: name, Table: table})
	}
	return nil
}

// hint adds to an error the missing feature and the remedy.
func hint(err error) error {
	switch {
	case errors.Is(err, unix.EPROTONOSUPPORT), errors.Is(err, unix.EINVAL):
		return fmt.Errorf("%w (this kernel has no nf_tables: modprobe nf_tables)", err)
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.EOPNOTSUPP):
		return fmt.Errorf("%w (this kernel lacks a part of nf_tables: modprobe nft_chain_nat nft_nat nft_redir nft_fib_ipv4 nft_fib_ipv6)", err)
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("%w (%s)", err, kernel.NotAllowed)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("%w (the kernel did not answer; look for a modprobe that hangs)", err)
	}
	return err
}
