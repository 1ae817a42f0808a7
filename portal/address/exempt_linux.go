package address

import (
	"errors"
	"fmt"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/portal/kernel"
)

// exemptTable has the exemption from address translation. Packets for a VIP are forwarded over the link. Most CNI
// plugins translate the source addresses of Pods' packets to other networks (masquerade), which would hide the client's
// address. On a node with any translation, usher's chain comes first and translates each client's address to itself. On
// other nodes it would only make the kernel track connections without need.
const exemptTable = "usher-address"

// errCannotExempt is why VIPs cannot be in a namespace.
var errCannotExempt = errors.New("this node translates addresses (iptables -t nat), and VIPs cannot be exempted without nf_tables")

// exempt ensures that clients keep their addresses over the link, if other rules may translate them. It reports whether
// it changed anything.
func exempt(family portal.Family) (made bool, err error) {
	others, _ := kernel.LegacyNAT(family) // an unreadable table counts as missing
	chains, err := listChains()
	if err != nil {
		if others {
			return false, fmt.Errorf("%w: %w", errCannotExempt, err)
		}
		return false, nil // no nf_tables
	}
	kind := kernel.NFTFamily(family)
	there := false
	for _, c := range chains {
		ours := isExemption(c) && c.Table.Family == kind
		translates := c.Type == nftables.ChainTypeNAT && c.Hooknum != nil && *c.Hooknum == *nftables.ChainHookPostrouting
		there = there || ours
		others = others || !ours && translates && (c.Table.Family == kind || c.Table.Family == nftables.TableFamilyINet)
	}
	if !others {
		return false, nil
	}
	conn, err := kernel.OpenNFT()
	if err != nil {
		return false, err
	}
	table := conn.AddTable(&nftables.Table{Name: exemptTable, Family: kind})
	chain := &nftables.Chain{Name: linkName, Table: table, Type: nftables.ChainTypeNAT,
		Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityRef(*nftables.ChainPriorityNATSource - 1)}
	if there {
		if rules, err := conn.GetRules(table, chain); err == nil && len(rules) == 1 {
			return false, nil
		}
		conn.DelTable(table)
		conn.AddTable(table)
	}
	conn.AddChain(chain)
	conn.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: keepSource(family)})
	if err := conn.Flush(); err != nil {
		return false, fmt.Errorf("%w: %w", errCannotExempt, err)
	}
	return true, nil
}

// isExemption reports whether a chain is usher's.
func isExemption(c *nftables.Chain) bool { return c.Table.Name == exemptTable }

// keepSource is `oifname "usher0" snat to ip saddr`.
func keepSource(family portal.Family) []expr.Any {
	name := make([]byte, unix.IFNAMSIZ)
	copy(name, linkName)
	length, offset := kernel.AddrIn(family.Is6(), true)
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: name},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: length},
		&expr.NAT{Type: expr.NATTypeSourceNAT, Family: uint32(kernel.NFTFamily(family)), RegAddrMin: 1},
	}
}

func listChains() ([]*nftables.Chain, error) {
	conn, err := kernel.OpenNFT()
	if err != nil {
		return nil, err
	}
	return conn.ListChains()
}

// removeExemptions removes the tables of both families, and returns those that existed.
func removeExemptions() (removed []string, err error) {
	chains, err := listChains()
	if err != nil {
		return nil, nil // no nf_tables, so no table
	}
	var errs []error
	for _, family := range portal.Families {
		i := slices.IndexFunc(chains, func(c *nftables.Chain) bool {
			return isExemption(c) && c.Table.Family == kernel.NFTFamily(family)
		})
		if i < 0 {
			continue
		}
		conn, err := kernel.OpenNFT()
		if err == nil {
			conn.DelTable(chains[i].Table)
			err = conn.Flush()
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("removing nftables table %s: %w", exemptTable, err))
			continue
		}
		removed = append(removed, fmt.Sprintf("nftables: table %s for %s", exemptTable, family))
	}
	return removed, errors.Join(errs...)
}
