package iptables

import (
	"fmt"
	"slices"
	"strings"

	"github.com/google/nftables"

	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/portal/kernel"
)

// iptables-nft creates a table, and its base chains such as PREROUTING, when it first needs them, and leaves them
// behind when they are empty. So that Remove can restore the node's exact state, usher leaves a note in the table: an
// empty, dedicated chain whose name contains that of the created object. A note in the kernel outlives the usher
// process, but not its table.
const (
	noteTable = chainPrefix + "MADE-TABLE"
	noteChain = chainPrefix + "MADE-" // + the base chain's name
)

// isNote reports whether a chain is such a note.
func isNote(chain string) bool { return strings.HasPrefix(chain, noteChain) }

// nftChains lists the chains of a table of iptables-nft. exists reports whether there is such a table.
func nftChains(family portal.Family, table string) (chains []*nftables.Chain, exists bool, err error) {
	conn, err := kernel.OpenNFT()
	if err != nil {
		return nil, false, fmt.Errorf("listing nf_tables chains: %w", err)
	}
	tables, err := conn.ListTablesOfFamily(kernel.NFTFamily(family))
	if err != nil {
		return nil, false, fmt.Errorf("listing nf_tables tables: %w", err)
	}
	if !slices.ContainsFunc(tables, func(t *nftables.Table) bool { return t.Name == table }) {
		return nil, false, nil
	}
	all, err := conn.ListChainsOfTableFamily(kernel.NFTFamily(family))
	if err != nil {
		return nil, false, fmt.Errorf("listing nf_tables chains: %w", err)
	}
	for _, c := range all {
		if c.Table.Name == table {
			chains = append(chains, c)
		}
	}
	return chains, true, nil
}

// notesFor returns the notes to leave when jumps are put into the base chains of a table.
func notesFor(family portal.Family, table string, jumps []jumpRule) ([]string, error) {
	chains, exists, err := nftChains(family, table)
	if err != nil {
		return nil, err
	}
	if !exists {
		return []string{noteTable}, nil
	}
	var notes []string
	for _, j := range jumps {
		if !slices.ContainsFunc(chains, func(c *nftables.Chain) bool { return c.Name == j.chain }) {
			notes = append(notes, noteChain+j.chain)
		}
	}
	return notes, nil
}

// tidyNFT removes the base chains and the table that usher created according to the notes, if they are empty.
func tidyNFT(family portal.Family, table string, notes []string) error {
	if len(notes) == 0 {
		return nil
	}
	chains, exists, err := nftChains(family, table)
	if err != nil || !exists {
		return err
	}
	conn, err := kernel.OpenNFT()
	if err != nil {
		return fmt.Errorf("removing empty table %s: %w", table, err)
	}
	remaining := 0
	for _, c := range chains {
		ours := c.Hooknum != nil && (slices.Contains(notes, noteTable) || slices.Contains(notes, noteChain+c.Name)) &&
			(c.Policy == nil || *c.Policy == nftables.ChainPolicyAccept)
		if ours {
			rules, err := conn.GetRules(c.Table, c)
			if err != nil {
				return fmt.Errorf("checking whether chain %s of table %s is empty: %w", c.Name, table, err)
			}
			ours = len(rules) == 0
		}
		if !ours {
			remaining++
			continue
		}
		conn.DelChain(c)
	}
	t := &nftables.Table{Name: table, Family: kernel.NFTFamily(family)}
	if remaining == 0 && slices.Contains(notes, noteTable) {
		sets, err := conn.GetSets(t)
		if err != nil {
			return fmt.Errorf("checking whether table %s is empty: %w", table, err)
		}
		if len(sets) == 0 {
			conn.DelTable(t)
		}
	}
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("removing empty table %s: %w", table, err)
	}
	return nil
}

// nftChainOfIPTables returns one of the iptables portal's chains in nf_tables, as "table chain", or "" if there is
// none. table limits the search to one table; "" means all.
func nftChainOfIPTables(family portal.Family, table string) string {
	conn, err := kernel.OpenNFT()
	if err != nil {
		return ""
	}
	chains, err := conn.ListChainsOfTableFamily(kernel.NFTFamily(family))
	if err != nil {
		return "" // no nf_tables, so no chains
	}
	for _, c := range chains {
		if strings.HasPrefix(c.Name, chainPrefix) && (table == "" || c.Table.Name == table) {
			return c.Table.Name + " " + c.Name
		}
	}
	return ""
}
