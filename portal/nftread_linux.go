package portal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// readNFT returns what usher's table in one family holds.
func readNFT(family Family) (*nftContents, error) {
	conn, err := openNFT()
	if err != nil {
		return nil, err
	}
	c := noNFTContents()
	tables, err := conn.ListTablesOfFamily(nftFamily(family))
	if err != nil {
		return nil, hintNFT(fmt.Errorf("listing the nftables tables: %w", err))
	}
	for _, t := range tables {
		if t.Name == nftTable {
			c.exists = true
			if t.Flags != 0 {
				c.other = "it is dormant, or another process owns it"
			}
		}
	}
	if !c.exists {
		return c, nil
	}
	table := nftTableOf(family)
	if err := readNFTChains(conn, family, table, c); err != nil {
		return nil, err
	}
	return c, readNFTMaps(conn, family, table, c)
}

func readNFTChains(conn *nftables.Conn, family Family, table *nftables.Table, c *nftContents) error {
	chains, err := conn.ListChainsOfTableFamily(nftFamily(family))
	if err != nil {
		return fmt.Errorf("listing the nftables chains: %w", err)
	}
	for _, chain := range chains {
		if chain.Table.Name != nftTable {
			continue
		}
		if want := nftBase(table, chain.Name); !sameBase(chain, want) {
			c.other = "the chain " + chain.Name + " is of another kind"
		}
		rules, err := conn.GetRules(table, chain)
		if errors.Is(err, unix.ENOENT) {
			continue // it is gone meanwhile
		}
		if err != nil {
			return fmt.Errorf("listing the nftables rules of chain %s: %w", chain.Name, err)
		}
		var have nftChain
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

// fingerprint tells a rule from all others that were ever in its table.
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

// sourceOf reads the network from which a rule lets clients in.
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
	return is && v.Chain == nftOutside
}

// sameBase tells whether two chains are in the same place.
func sameBase(a, b *nftables.Chain) bool {
	if a.Hooknum == nil || b.Hooknum == nil {
		return a.Hooknum == b.Hooknum
	}
	return *a.Hooknum == *b.Hooknum && a.Type == b.Type && a.Priority != nil && *a.Priority == *b.Priority &&
		a.Policy != nil && *a.Policy == *b.Policy
}

func readNFTMaps(conn *nftables.Conn, family Family, table *nftables.Table, c *nftContents) error {
	sets, err := conn.GetSets(table)
	if err != nil {
		c.other = "it has a set that cannot be read: " + err.Error()
		return nil
	}
	there := map[string]*nftables.Set{}
	for _, s := range sets {
		if s.Anonymous {
			continue
		}
		there[s.Name] = s
	}
	for _, want := range nftMaps(family, table) {
		have := there[want.Name]
		delete(there, want.Name)
		if have == nil || !have.IsMap || have.Interval || have.HasTimeout || have.Constant ||
			want.DataType != nftables.TypeVerdict && (have.KeyType != want.KeyType || have.DataType != want.DataType) {
			c.other = "the map " + want.Name + " is of another kind"
			continue
		}
		have.Table = table
		elements, err := conn.GetSetElements(have)
		if err != nil {
			return fmt.Errorf("listing the nftables map %s: %w", want.Name, err)
		}
		guard := want.Name == nftGuards || want.Name == nftNodePortGuards
		node := want.Name == nftNodePorts || want.Name == nftNodePortGuards
		for _, e := range elements {
			k, ok := parseNFTKey(family, node, guard, e.Key)
			v := nftValue{comment: e.Comment}
			switch {
			case !ok:
			case guard:
				v.verdict, ok = parseNFTVerdict(e.Val)
			case len(e.Val) >= 2:
				v.port = binary.BigEndian.Uint16(e.Val)
			default:
				ok = false
			}
			if !ok {
				c.other = "the map " + want.Name + " holds what usher does not put there"
				continue
			}
			c.put(k, v)
		}
	}
	for name := range there {
		c.other = "it has a set called " + name
	}
	return nil
}
