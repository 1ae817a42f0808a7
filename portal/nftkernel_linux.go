package portal

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	netlinksocket "github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

const (
	// nftBuffer is large enough for a transaction over some 100,000 elements:
	// the kernel takes no message that is larger than the socket's send buffer.
	// Where only the limits for ordinary processes can be had, as in a user
	// namespace, the transaction is split.
	nftBuffer = 32 << 20
	// nftPerMessage is how many elements go into one message of a transaction.
	// An attribute has at most 64 KiB; an element takes up to some 200 bytes.
	nftPerMessage = 256
	// nftPerPart is how many elements a transaction has that is one of several.
	nftPerPart = 1000
	// nftPatience is how long the kernel may take for a transaction.
	nftPatience = 30 * time.Second
)

// ownSockets are the port IDs of netlink sockets by which this process changed
// something, and the process IDs of commands that it ran for that, which are the
// port IDs of their first sockets. The kernel names them when it tells of a
// change; see Watch.
var ownSockets recent

// recent remembers the last few numbers that it was told.
type recent struct {
	mu   sync.Mutex
	last [64]uint32
	next int
}

func (r *recent) add(n uint32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last[r.next%len(r.last)] = n
	r.next++
}

func (r *recent) has(n uint32) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return n != 0 && slices.Contains(r.last[:], n) // 0 is the kernel itself
}

// openNFT returns a connection that is good for one transaction, or for reading.
func openNFT() (*nftables.Conn, error) {
	conn, err := nftables.New(nftables.WithSockOptions(func(c *netlinksocket.Conn) error {
		raw, err := c.SyscallConn()
		if err != nil {
			return err
		}
		var local unix.Sockaddr
		if e := raw.Control(func(fd uintptr) { local, err = unix.Getsockname(int(fd)) }); e != nil {
			err = e
		}
		if nl, ok := local.(*unix.SockaddrNetlink); ok {
			ownSockets.add(nl.Pid)
		}
		return errors.Join(err,
			c.SetReadBuffer(nftBuffer), c.SetWriteBuffer(nftBuffer),
			// An error need not bring the message back that it is about.
			c.SetOption(netlinksocket.CapAcknowledge, true),
			c.SetReadDeadline(time.Now().Add(nftPatience)))
	}))
	if err != nil {
		return nil, fmt.Errorf("asking nf_tables: %w", err)
	}
	return conn, nil
}

// nftTableOf returns usher's table in one family.
func nftTableOf(any netip.Addr) *nftables.Table {
	return &nftables.Table{Name: nftTable, Family: nftFamily(any)}
}

// nftMaps returns the maps of a table.
func nftMaps(any netip.Addr, table *nftables.Table) (sets []*nftables.Set) {
	addr := nftables.TypeIPAddr
	if any.Is6() {
		addr = nftables.TypeIP6Addr
	}
	node := nftables.MustConcatSetType(nftables.TypeInetProto, nftables.TypeInetService)
	vip := nftables.MustConcatSetType(addr, nftables.TypeInetProto, nftables.TypeInetService)
	for _, m := range []struct {
		name      string
		key, data nftables.SetDatatype
	}{
		{nftPortals, vip, nftables.TypeInetService}, {nftNodePorts, node, nftables.TypeInetService},
		{nftGuards, vip, nftables.TypeVerdict}, {nftNodePortGuards, node, nftables.TypeVerdict},
	} {
		sets = append(sets, &nftables.Set{Table: table, Name: m.name, IsMap: true, KeyType: m.key, DataType: m.data})
	}
	return sets
}

// nftBase returns the chain called name: one with a hook, or one of the others.
func nftBase(table *nftables.Table, name string) *nftables.Chain {
	c := &nftables.Chain{Name: name, Table: table}
	switch name {
	case nftPrerouting:
		c.Hooknum = nftables.ChainHookPrerouting
	case nftOutput:
		c.Hooknum = nftables.ChainHookOutput
	default:
		return c
	}
	accept := nftables.ChainPolicyAccept
	c.Type, c.Policy, c.Priority = nftables.ChainTypeNAT, &accept, nftables.ChainPriorityRef(nftPriority)
	return c
}

// sendNFT carries out a change: in one transaction, or, if the socket does not
// take one that large, in several.
func sendNFT(ctx context.Context, any netip.Addr, c *nftChange) error {
	err := transact(ctx, any, c)
	if c.trial && errors.Is(err, unix.EMSGSIZE) {
		return nil // as far as can be told
	}
	if !errors.Is(err, unix.EMSGSIZE) && !errors.Is(err, unix.ENOBUFS) {
		return err
	}
	for _, part := range c.parts(nftPerPart) {
		if err := transact(ctx, any, part); err != nil {
			return err
		}
	}
	return nil
}

func transact(ctx context.Context, any netip.Addr, c *nftChange) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	table := nftTableOf(any)
	if c.trial {
		table.Name = fmt.Sprintf("%s-probe-%d", nftTable, os.Getpid())
	}
	conn, err := openNFT()
	if err != nil {
		return err
	}
	if err := stage(conn, any, table, c); err != nil {
		return err
	}
	if c.trial {
		conn.DelTable(table)
	}
	return commit(conn)
}

func commit(conn *nftables.Conn) error {
	if err := conn.Flush(); err != nil {
		return hintNFT(fmt.Errorf("changing the nftables rules: %w", shorter(err)))
	}
	return nil
}

// shorter returns the first of the errors that a transaction gives for each
// of its messages.
func shorter(err error) error {
	for _, e := range []error{unix.EMSGSIZE, unix.ENOBUFS, unix.EPERM, unix.EACCES, os.ErrDeadlineExceeded} {
		if errors.Is(err, e) {
			return e
		}
	}
	if joined, ok := errors.Unwrap(err).(interface{ Unwrap() []error }); ok {
		return joined.Unwrap()[0]
	}
	return err
}

// stage puts what a change is made of into a transaction, in an order in which
// nothing is named before it is there or taken out while it is in use.
func stage(conn *nftables.Conn, any netip.Addr, table *nftables.Table, c *nftChange) error {
	if c.remove {
		conn.DelTable(table)
	}
	if c.create {
		conn.AddTable(table)
	}
	sets := map[string]*nftables.Set{}
	for _, set := range nftMaps(any, table) {
		sets[set.Name] = set
		if c.create {
			if err := conn.AddSet(set, nil); err != nil {
				return err
			}
		}
	}
	for _, name := range c.makeChains {
		conn.AddChain(nftBase(table, name))
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
		for part := range slices.Chunk(gone[name], nftPerMessage) {
			if err := conn.SetDeleteElements(sets[name], part); err != nil {
				return err
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.chains)) {
		for _, rule := range c.chains[name] {
			r := &nftables.Rule{Table: table, Chain: &nftables.Chain{Name: name, Table: table}}
			var err error
			if r.Exprs, err = rule.exprs(conn, table, sets); err != nil {
				return err
			}
			conn.AddRule(r)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(come)) {
		for part := range slices.Chunk(come[name], nftPerMessage) {
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

// bytes returns the key as the kernel has it: each part begins at a multiple of
// four bytes.
func (k nftKey) bytes() []byte {
	var b []byte
	if !k.target.Addr.IsUnspecified() {
		b = k.target.Addr.AsSlice()
	}
	b = append(b, byte(k.target.Protocol), 0, 0, 0)
	b = binary.BigEndian.AppendUint16(b, k.target.Port)
	return append(b, 0, 0)
}

// parseNFTKey reads what bytes returns.
func parseNFTKey(any netip.Addr, node, guard bool, b []byte) (k nftKey, ok bool) {
	k = nftKey{target: Target{Addr: any}, guard: guard}
	if !node {
		size := any.BitLen() / 8
		if len(b) < size {
			return k, false
		}
		k.target.Addr, _ = netip.AddrFromSlice(b[:size])
		b = b[size:]
	}
	if len(b) != 8 {
		return k, false
	}
	k.target.Protocol, k.target.Port = Protocol(b[0]), binary.BigEndian.Uint16(b[4:])
	return k, true
}

func (e nftElement) marshal() nftables.SetElement {
	s := nftables.SetElement{Key: e.key.bytes(), Comment: e.value.comment}
	if !e.key.guard {
		s.Val = binaryutil.BigEndian.PutUint16(e.value.port)
		return s
	}
	s.VerdictData = e.value.verdict.marshal()
	return s
}

func (v nftVerdict) marshal() *expr.Verdict {
	switch v {
	case nftDrop:
		return &expr.Verdict{Kind: expr.VerdictDrop}
	case nftReturn:
		return &expr.Verdict{Kind: expr.VerdictReturn}
	}
	return &expr.Verdict{Kind: expr.VerdictJump, Chain: v.chain()}
}

// parseNFTVerdict reads an element's data: the attributes NFTA_VERDICT_CODE and
// NFTA_VERDICT_CHAIN. What usher does not use is not read.
func parseNFTVerdict(b []byte) (v nftVerdict, ok bool) {
	if len(b) < 8 {
		return "", false
	}
	switch expr.VerdictKind(int32(binary.BigEndian.Uint32(b[4:8]))) {
	case expr.VerdictDrop:
		return nftDrop, len(b) == 8
	case expr.VerdictJump:
		if len(b) > 12 {
			return nftJump(strings.TrimRight(string(b[12:]), "\x00")), true
		}
	}
	return "", false
}

// exprs returns what the kernel is to do for the rule, as nft would say it.
func (r nftRule) exprs(conn *nftables.Conn, table *nftables.Table, sets map[string]*nftables.Set) (out []expr.Any, err error) {
	if r.src.IsValid() {
		out = append(out, inNetwork(r.src, true)...)
	}
	if r.dst.IsValid() {
		out = append(out, inNetwork(r.dst, false)...)
	}
	local := binaryutil.NativeEndian.PutUint32(unix.RTN_LOCAL)
	if r.srcLocal {
		out = append(out, &expr.Fib{Register: 1, FlagSADDR: true, ResultADDRTYPE: true}, equals(local))
	}
	if r.dstLocal {
		out = append(out, &expr.Fib{Register: 1, FlagDADDR: true, ResultADDRTYPE: true}, equals(local))
	}
	switch {
	case r.by == "":
		return append(out, r.verdict.marshal()), nil
	case !r.leads():
		out = append(out, r.key(4)...)
		return append(out, &expr.Lookup{SourceRegister: 1, SetName: r.by, SetID: sets[r.by].ID, IsDestRegSet: true}), nil
	}
	// Without this in front nft does not take the rule from a file: it wants to
	// know that there are ports.
	carried := &nftables.Set{Table: table, Anonymous: true, Constant: true, KeyType: nftables.TypeInetProto}
	if err := conn.AddSet(carried, []nftables.SetElement{{Key: []byte{byte(TCP)}}, {Key: []byte{byte(UDP)}}, {Key: []byte{byte(SCTP)}}}); err != nil {
		return nil, err
	}
	out = append(out, &expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Lookup{SourceRegister: 1, SetName: carried.Name, SetID: carried.ID})
	lookup := func(register uint32) {
		out = append(out, r.key(register32(register))...)
		out = append(out, &expr.Lookup{SourceRegister: register, SetName: r.by, SetID: sets[r.by].ID, DestRegister: register, IsDestRegSet: true})
	}
	if !r.landing.IsValid() {
		lookup(1)
		return append(out, &expr.Redir{RegisterProtoMin: 1, Flags: unix.NF_NAT_RANGE_PROTO_SPECIFIED}), nil
	}
	out = append(out, &expr.Immediate{Register: 1, Data: r.landing.AsSlice()})
	lookup(2)
	return append(out, &expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(table.Family), RegAddrMin: 1, RegProtoMin: 2, Specified: true}), nil
}

// The kernel's 16-byte registers 1 to 4 are also 16 registers of 4 bytes, with
// the numbers 8 to 23 (NFT_REG32_00 to NFT_REG32_15). register32 returns how many
// of the latter are before the former, plus 4: NFT_REG_1 begins the count.
func register32(register uint32) uint32 { return 4 * register }

// register returns the number of the 4-byte register that count is about: that
// of a 16-byte register where they begin together, as nft does.
func register(count uint32) uint32 {
	if count%4 == 0 {
		return count / 4
	}
	return unix.NFT_REG32_00 + count - 4
}

// key loads what a packet is looked up by: each part into the next free register.
func (r nftRule) key(count uint32) (out []expr.Any) {
	if r.by == nftPortals || r.by == nftGuards {
		size, offset := addrIn(r.ip6, false)
		out = append(out, &expr.Payload{DestRegister: register(count), Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: size})
		count += size / 4
	}
	return append(out, &expr.Meta{Key: expr.MetaKeyL4PROTO, Register: register(count)},
		&expr.Payload{DestRegister: register(count + 1), Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2})
}

// addrIn returns where in the IP header an address is.
func addrIn(ip6, source bool) (size, offset uint32) {
	switch {
	case ip6 && source:
		return 16, 8
	case ip6:
		return 16, 24
	case source:
		return 4, 12
	}
	return 4, 16
}

// inNetwork matches packets from or to an address in p.
func inNetwork(p netip.Prefix, source bool) []expr.Any {
	size, offset := addrIn(p.Addr().Is6(), source)
	mask := make([]byte, size)
	for i := range p.Bits() {
		mask[i/8] |= 0x80 >> (i % 8)
	}
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: size},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: size, Mask: mask, Xor: make([]byte, size)},
		equals(p.Addr().AsSlice()),
	}
}

func equals(data []byte) expr.Any { return &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: data} }

// readNFT returns what usher's table in one family holds.
func readNFT(any netip.Addr) (*nftContents, error) {
	conn, err := openNFT()
	if err != nil {
		return nil, err
	}
	c := noNFTContents()
	tables, err := conn.ListTablesOfFamily(nftFamily(any))
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
	table := nftTableOf(any)
	if err := readNFTChains(conn, any, table, c); err != nil {
		return nil, err
	}
	return c, readNFTMaps(conn, any, table, c)
}

func readNFTChains(conn *nftables.Conn, any netip.Addr, table *nftables.Table, c *nftContents) error {
	chains, err := conn.ListChainsOfTableFamily(nftFamily(any))
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

func readNFTMaps(conn *nftables.Conn, any netip.Addr, table *nftables.Table, c *nftContents) error {
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
	for _, want := range nftMaps(any, table) {
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
			k, ok := parseNFTKey(any, node, guard, e.Key)
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

// removeNFTables takes usher's tables out.
func removeNFTables() (removed []string, err error) {
	var errs []error
	for _, any := range []netip.Addr{anyIPv4, anyIPv6} {
		conn, err := openNFT()
		if err != nil {
			return removed, err
		}
		tables, err := conn.ListTablesOfFamily(nftFamily(any))
		if err != nil {
			continue // no nf_tables, so nothing is in it
		}
		for _, t := range tables {
			if t.Name != nftTable {
				continue
			}
			conn.DelTable(t)
			if err := commit(conn); err != nil {
				errs = append(errs, err)
				continue
			}
			family := "ip"
			if any.Is6() {
				family = "ip6"
			}
			removed = append(removed, fmt.Sprintf("nftables: table %s %s", family, nftTable))
		}
	}
	return removed, errors.Join(errs...)
}

// hintNFT adds to an error what is missing and what to do about it.
func hintNFT(err error) error {
	switch {
	case errors.Is(err, unix.EPROTONOSUPPORT), errors.Is(err, unix.EINVAL), errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("%w (this kernel has no nf_tables: modprobe nf_tables)", err)
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.EOPNOTSUPP):
		return fmt.Errorf("%w (this kernel lacks a part of nf_tables: modprobe nft_chain_nat nft_nat nft_redir nft_fib_ipv4 nft_fib_ipv6)", err)
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("%w (the kernel does not let this process change rules, although it has CAP_NET_ADMIN here: it is needed in the user namespace that owns the network namespace)", err)
	}
	return err
}
