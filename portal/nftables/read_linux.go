package nftables

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/portal/kernel"
)

// readTable returns the content of usher's table in one family.
func readTable(family portal.Family) (*contents, error) {
	conn, err := kernel.OpenNFT()
	if err != nil {
		return nil, err
	}
	c := noContents()
	tables, err := conn.ListTablesOfFamily(kernel.NFTFamily(family))
	if err != nil {
		return nil, hint(fmt.Errorf("listing nftables tables: %w", err))
	}
	for _, t := range tables {
		if t.Name == nameTable {
			c.exists = true
			if t.Flags != 0 {
				c.other = "it is dormant, or another process owns it"
			}
		}
	}
	if !c.exists {
		return c, nil
	}
	table := tableOf(family)
	if err := readChains(conn, family, table, c); err != nil {
		return nil, err
	}
	return c, readMaps(conn, family, table, c)
}

func readChains(conn *nftables.Conn, family portal.Family, table *nftables.Table, c *contents) error {
	chains, err := conn.ListChainsOfTableFamily(kernel.NFTFamily(family))
	if err != nil {
		return fmt.Errorf("listing nftables chains: %w", err)
	}
	for _, chain := range chains {
		if chain.Table.Name != nameTable {
			continue
		}
		if want := baseChain(table, chain.Name); !sameBase(chain, want) {
			c.other = "the chain " + chain.Name + " has another type"
		}
		rules, err := conn.GetRules(table, chain)
		if errors.Is(err, unix.ENOENT) {
			continue // removed meanwhile
		}
		if err != nil {
			return fmt.Errorf("listing nftables rules of chain %s: %w", chain.Name, err)
		}
		var have heldChain
		for _, r := range rules {
			have.prints = append(have.prints, fingerprint(r))
			if from, ok := sourceOf(r.Exprs); ok {
				have.from = append(have.from, from)
			}
			have.outside = have.outside || jumpsOutside(r.Exprs)
		}
		c.chains[chain.Name] = have
	}
	return nil
}

// fingerprint returns a text that distinguishes a rule from all others that its table has ever had.
func fingerprint(r *nftables.Rule) string {
	b := binary.BigEndian.AppendUint64(nil, r.Handle)
	for _, e := range r.Exprs {
		data, err := expr.Marshal(byte(r.Table.Family), e)
		if err != nil {
			data = []byte(err.Error())
		}
		b = append(b, data...)
	}
	return string(b)
}

// sourceOf returns the network whose clients a rule lets in.
func sourceOf(exprs []expr.Any) (p netip.Prefix, ok bool) {
	if len(exprs) != 4 {
		return p, false
	}
	load, isLoad := exprs[0].(*expr.Payload)
	mask, isMask := exprs[1].(*expr.Bitwise)
	equal, isEqual := exprs[2].(*expr.Cmp)
	if !isLoad || !isMask || !isEqual {
		return p, false
	}
	if size, offset := addrIn(len(equal.Data) == 16, true); load.Offset != offset || load.Len != size {
		return p, false
	}
	addr, ok := netip.AddrFromSlice(equal.Data)
	ones, _ := net.IPMask(mask.Mask).Size()
	return netip.PrefixFrom(addr, ones), ok
}

func jumpsOutside(exprs []expr.Any) bool {
	if len(exprs) != 1 {
		return false
	}
	v, is := exprs[0].(*expr.Verdict)
	return is && v.Chain == nameOutside
}

// sameBase reports whether two chains have the same hook, type and priority.
func sameBase(a, b *nftables.Chain) bool {
	if a.Hooknum == nil || b.Hooknum == nil {
		return a.Hooknum == b.Hooknum
	}
	return *a.Hooknum == *b.Hooknum && a.Type == b.Type && a.Priority != nil && *a.Priority == *b.Priority &&
		a.Policy != nil && *a.Policy == *b.Policy
}

func readMaps(conn *nftables.Conn, family portal.Family, table *nftables.Table, c *contents) error {
	sets, err := conn.GetSets(table)
	if err != nil {
		c.other = "it has an unreadable set: " + err.Error()
		return nil
	}
	there := map[string]*nftables.Set{}
	for _, s := range sets {
		if s.Anonymous {
			continue
		}
		there[s.Name] = s
	}
	for _, want := range mapsOf(family, table) {
		have := there[want.Name]
		delete(there, want.Name)
		if have == nil || !have.IsMap || have.Interval || have.HasTimeout || have.Constant ||
			want.DataType != nftables.TypeVerdict && (have.KeyType != want.KeyType || have.DataType != want.DataType) {
			c.other = "the map " + want.Name + " has another type"
			continue
		}
		have.Table = table
		elements, err := conn.GetSetElements(have)
		if err != nil {
			return fmt.Errorf("listing nftables map %s: %w", want.Name, err)
		}
		guard := want.Name == nameGuards || want.Name == nameNodePortGuards
		node := want.Name == nameNodePorts || want.Name == nameNodePortGuards
		for _, e := range elements {
			k, ok := parseKey(family, node, guard, want.Name == nameClusterIPs, e.Key)
			v := mapValue{comment: e.Comment}
			switch {
			case !ok:
			case guard:
				v.verdict, ok = parseVerdict(e.Val)
			case len(e.Val) >= 2:
				v.port = binary.BigEndian.Uint16(e.Val)
			default:
				ok = false
			}
			if !ok {
				c.other = "the map " + want.Name + " holds elements that usher did not add"
				continue
			}
			c.put(k, v)
		}
	}
	for name := range there {
		c.other = "it has an unexpected set " + name
	}
	return nil
}
