package nftables

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/portal/redirect"
)

// bytes returns the key in the kernel's form: each part begins at a multiple of four bytes.
func (k mapKey) bytes() []byte {
	var b []byte
	if !k.target.Addr.IsUnspecified() {
		b = k.target.Addr.AsSlice()
	}
	if k.isAddress() {
		return b
	}
	b = append(b, byte(k.target.Protocol), 0, 0, 0)
	b = binary.BigEndian.AppendUint16(b, k.target.Port)
	return append(b, 0, 0)
}

// parseKey parses the form that bytes returns.
func parseKey(family portal.Family, node, guard, address bool, b []byte) (k mapKey, ok bool) {
	k = mapKey{target: portal.Target{Addr: family.Any()}, guard: guard}
	if !node {
		size := k.target.Addr.BitLen() / 8
		if len(b) < size {
			return k, false
		}
		k.target.Addr, _ = netip.AddrFromSlice(b[:size])
		b = b[size:]
	}
	if address {
		return k, len(b) == 0
	}
	if len(b) != 8 {
		return k, false
	}
	k.target.Protocol, k.target.Port = portal.Protocol(b[0]), binary.BigEndian.Uint16(b[4:])
	return k, !k.isAddress()
}

func (e mapElement) marshal() nftables.SetElement {
	s := nftables.SetElement{Key: e.key.bytes(), Comment: e.value.comment}
	if !e.key.guard {
		s.Val = binaryutil.BigEndian.PutUint16(e.value.port)
		return s
	}
	s.VerdictData = e.value.verdict.marshal()
	return s
}

func (v verdict) marshal() *expr.Verdict {
	switch v {
	case verdictDrop:
		return &expr.Verdict{Kind: expr.VerdictDrop}
	case verdictReturn:
		return &expr.Verdict{Kind: expr.VerdictReturn}
	}
	return &expr.Verdict{Kind: expr.VerdictJump, Chain: v.chain()}
}

// parseVerdict parses an element's data: the attributes NFTA_VERDICT_CODE and NFTA_VERDICT_CHAIN. It rejects verdicts
// that usher does not use.
func parseVerdict(b []byte) (v verdict, ok bool) {
	if len(b) < 8 {
		return "", false
	}
	switch expr.VerdictKind(int32(binary.BigEndian.Uint32(b[4:8]))) {
	case expr.VerdictDrop:
		return verdictDrop, len(b) == 8
	case expr.VerdictJump:
		if len(b) > 12 {
			return jumpTo(strings.TrimRight(string(b[12:]), "\x00")), true
		}
	}
	return "", false
}

// ip returns nft's word for the rule's family.
func (r rule) ip() string {
	if r.ip6 {
		return "ip6"
	}
	return "ip"
}

// matches returns the rule's conditions in nft's syntax, and as expressions in the form that nft uses.
func (r rule) matches() (words []string, out []expr.Any) {
	add := func(text string, e ...expr.Any) { words, out = append(words, text), append(out, e...) }
	if r.Src.IsValid() {
		add(r.ip()+" saddr "+r.Src.String(), inNetwork(r.Src, true)...)
	}
	if r.Dst.IsValid() {
		add(r.ip()+" daddr "+r.Dst.String(), inNetwork(r.Dst, false)...)
	}
	if r.In != "" {
		// The kernel pads names with zeros; for a prefix, only the given bytes are compared.
		begin, many := strings.CutSuffix(string(r.In), "+")
		text, name := begin, make([]byte, unix.IFNAMSIZ)
		if copy(name, begin); many {
			text, name = begin+"*", name[:len(begin)]
		}
		add(`iifname "`+text+`"`, &expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1}, equals(name))
	}
	if r.marked != 0 {
		mark := binaryutil.NativeEndian.PutUint32(r.marked)
		add(fmt.Sprintf("meta mark & %#x == %#x", r.marked, r.marked),
			&expr.Meta{Key: expr.MetaKeyMARK, Register: 1}, masked(mark), equals(mark))
	}
	if r.fresh {
		state := binaryutil.NativeEndian.PutUint32(expr.CtStateBitNEW)
		add("ct state new", &expr.Ct{Key: expr.CtKeySTATE, Register: 1}, masked(state), notZero(4))
	}
	if r.transparent {
		add("socket transparent 1", &expr.Socket{Key: expr.SocketKeyTransparent, Register: 1}, equals([]byte{1}))
	}
	if r.later {
		const fragment = 44 // RFC 8200, 4.5: the offset is the first 13 bits of the second two bytes
		add("frag frag-off != 0",
			&expr.Exthdr{Op: expr.ExthdrOpIpv6, Type: fragment, Offset: 2, Len: 2, DestRegister: 1},
			masked([]byte{0xff, 0xf8}), notZero(2))
	}
	if r.opens != 0 {
		add(r.opens.String()+" dport != 0",
			&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1}, equals([]byte{byte(r.opens)}),
			&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
			notZero(2))
	}
	if r.opens == portal.TCP {
		const syn, finSynRstAck = 0x02, 0x17
		add("tcp flags & (fin | syn | rst | ack) == syn",
			&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 13, Len: 1},
			masked([]byte{finSynRstAck}), equals([]byte{syn}))
	}
	if r.answers != 0 {
		mark := binaryutil.NativeEndian.PutUint32(r.answers)
		add(fmt.Sprintf("ct direction reply ct mark & %#x == %#x", r.answers, r.answers),
			&expr.Ct{Key: expr.CtKeyDIRECTION, Register: 1}, equals([]byte{1}), // IP_CT_DIR_REPLY
			&expr.Ct{Key: expr.CtKeyMARK, Register: 1}, masked(mark), equals(mark))
	}
	local := equals(binaryutil.NativeEndian.PutUint32(unix.RTN_LOCAL))
	if r.SrcLocal {
		add("fib saddr type local", &expr.Fib{Register: 1, FlagSADDR: true, ResultADDRTYPE: true}, local)
	}
	if r.DstLocal {
		add("fib daddr type local", &expr.Fib{Register: 1, FlagDADDR: true, ResultADDRTYPE: true}, local)
	}
	return words, out
}

// String returns the rule in nft's syntax.
func (r rule) String() string {
	key := r.ip() + " daddr . meta l4proto . th dport"
	if r.by == nameNodePorts || r.by == nameNodePortGuards {
		key = "meta l4proto . th dport"
	}
	if r.by == nameClusterIPs {
		key = r.ip() + " daddr"
	}
	words, _ := r.matches()
	add := func(w ...string) { words = append(words, w...) }
	switch {
	case r.mark != 0:
		add(fmt.Sprintf("meta mark set meta mark | %#x", r.mark))
	case r.ctMark != 0:
		add(fmt.Sprintf("ct mark set ct mark | %#x", r.ctMark))
	case r.to.IsValid():
		add("snat", r.ip(), "prefix to", r.to.String())
	case r.by == "":
		add(string(r.verdict))
	case !r.redirects():
		add(key, "vmap", "@"+r.by)
	case r.redirectAddr.IsValid():
		add("meta l4proto { tcp, udp, sctp } dnat to", r.redirectAddr.String(), ":", key, "map", "@"+r.by)
	default:
		add("meta l4proto { tcp, udp, sctp } redirect to :", key, "map", "@"+r.by)
	}
	return strings.Join(words, " ")
}

// exprs returns the rule's expressions in the form that nft uses.
func (r rule) exprs(conn *nftables.Conn, table *nftables.Table, sets map[string]*nftables.Set) ([]expr.Any, error) {
	_, out := r.matches()
	switch {
	case r.mark != 0:
		return append(out, &expr.Meta{Key: expr.MetaKeyMARK, Register: 1}, addBits(r.mark),
			&expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: 1}), nil
	case r.ctMark != 0:
		return append(out, &expr.Ct{Key: expr.CtKeyMARK, Register: 1}, addBits(r.ctMark),
			&expr.Ct{Key: expr.CtKeyMARK, SourceRegister: true, Register: 1}), nil
	case r.to.IsValid():
		return append(out, &expr.Immediate{Register: 1, Data: r.to.Addr().AsSlice()}, &expr.Immediate{Register: 2, Data: redirect.LastOf(r.to).AsSlice()},
			&expr.NAT{Type: expr.NATTypeSourceNAT, Family: uint32(table.Family), RegAddrMin: 1, RegAddrMax: 2, Prefix: true}), nil
	case r.verdict == verdictReject:
		code := uint8(3) // ICMP port unreachable
		if r.ip6 {
			code = 4
		}
		return append(out, &expr.Reject{Type: unix.NFT_REJECT_ICMP_UNREACH, Code: code}), nil
	case r.by == "":
		return append(out, r.verdict.marshal()), nil
	case !r.redirects():
		out = append(out, r.key(4)...)
		return append(out, &expr.Lookup{SourceRegister: 1, SetName: r.by, SetID: sets[r.by].ID, IsDestRegSet: true}), nil
	}
	// nft accepts the rule from a file only if it checks that there is a transport header.
	carried := &nftables.Set{Table: table, Anonymous: true, Constant: true, KeyType: nftables.TypeInetProto}
	if err := conn.AddSet(carried, []nftables.SetElement{{Key: []byte{byte(portal.TCP)}}, {Key: []byte{byte(portal.UDP)}}, {Key: []byte{byte(portal.SCTP)}}}); err != nil {
		return nil, err
	}
	out = append(out, &expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Lookup{SourceRegister: 1, SetName: carried.Name, SetID: carried.ID})
	lookup := func(register uint32) {
		out = append(out, r.key(register32(register))...)
		out = append(out, &expr.Lookup{SourceRegister: register, SetName: r.by, SetID: sets[r.by].ID, DestRegister: register, IsDestRegSet: true})
	}
	if !r.redirectAddr.IsValid() {
		lookup(1)
		return append(out, &expr.Redir{RegisterProtoMin: 1, Flags: unix.NF_NAT_RANGE_PROTO_SPECIFIED}), nil
	}
	out = append(out, &expr.Immediate{Register: 1, Data: r.redirectAddr.AsSlice()})
	lookup(2)
	return append(out, &expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(table.Family), RegAddrMin: 1, RegProtoMin: 2, Specified: true}), nil
}

// The kernel's registers 1 to 4, of 16 bytes, are also 16 registers of 4 bytes, with the numbers 8 to 23 (NFT_REG32_00
// to NFT_REG32_15). usher counts the latter from 4. register32 returns the count at which a 16-byte register begins.
func register32(register uint32) uint32 { return 4 * register }

// register returns the number of the 4-byte register for a count. If a 16-byte register begins there, register returns
// that one's number, as nft does.
func register(count uint32) uint32 {
	if count%4 == 0 {
		return count / 4
	}
	return unix.NFT_REG32_00 + count - 4
}

// key loads the packet's lookup key, each part into the next register from count on.
func (r rule) key(count uint32) (out []expr.Any) {
	if r.by == namePortals || r.by == nameGuards || r.by == nameClusterIPs {
		size, offset := addrIn(r.ip6, false)
		out = append(out, &expr.Payload{DestRegister: register(count), Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: size})
		count += size / 4
	}
	if r.by == nameClusterIPs {
		return out
	}
	return append(out, &expr.Meta{Key: expr.MetaKeyL4PROTO, Register: register(count)},
		&expr.Payload{DestRegister: register(count + 1), Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2})
}

// addBits sets the bits of mark in register 1.
func addBits(mark uint32) expr.Any {
	return &expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: binaryutil.NativeEndian.PutUint32(^mark), Xor: binaryutil.NativeEndian.PutUint32(mark)}
}

// addrIn returns the size and offset of an address in the IP header.
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
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: size},
		masked(net.CIDRMask(p.Bits(), p.Addr().BitLen())),
		equals(p.Addr().AsSlice()),
	}
}

// masked clears the bits of register 1 that are not set in mask.
func masked(mask []byte) expr.Any {
	size := len(mask)
	return &expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: uint32(size), Mask: mask, Xor: make([]byte, size)}
}

func equals(data []byte) expr.Any { return &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: data} }

func notZero(size int) expr.Any {
	return &expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: make([]byte, size)}
}
