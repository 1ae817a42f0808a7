package portal

import (
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"math/bits"
	"net/netip"
	"slices"
	"strings"
)

// The tables and chains. In nat:
//
//	PREROUTING ─┐
//	            ├─► USHER-PORTALS ─► USHER-10.96.0.0-16 ─► … REDIRECT
//	OUTPUT ─────┘         └────────► USHER-NODEPORTS    ─► … REDIRECT
//
// and, only while a rule says Drop, in mangle:
//
//	PREROUTING, new connections ─► USHER-DROP ─► … DROP
//
// A chain that holds no more rules than a packet may well be compared with one
// by one is flat. A larger one is split by the next bits of what tells its
// rules apart, address before protocol before port, and then holds only jumps.
// With 10,000 Services a first packet meets some 60 rules instead of 10,000.
//
// Reject is a REDIRECT to port 0. No socket can be bound to it, so the kernel
// answers as for any closed port: TCP reset, ICMP port unreachable, SCTP abort.
// A REJECT in the filter table would be the usual way, but forwarded packets
// only meet it where the node forwards at all: with net.ipv4.ip_forward=0 a
// Pod's connection would hang instead of being refused.
//
// Drop is in mangle since nat may not drop, and there since mangle PREROUTING
// is met by all that comes in, whether or not it would be forwarded. It is not
// met by what the node itself sends. Only new connections are dropped, so that
// those in flight go on when a Service loses its last local endpoint.
const (
	tableNAT    = "nat"
	tableMangle = "mangle"

	chainPortals   = chainPrefix + "PORTALS"
	chainDrop      = chainPrefix + "DROP"
	chainNodePorts = chainPrefix + "NODEPORTS"

	// rejectPort is the port to which rejected targets are redirected.
	rejectPort = 0
)

// maxFlat is how many rules a chain holds before it is split. At some 20 ns to
// 50 ns a comparison this bounds what a chain costs to about a microsecond.
const maxFlat = 32

// splitBits is how many bits of an address or port one level of chains tells
// apart: a chain of jumps has at most 2^splitBits of them.
const splitBits = 4

// maxChainName is the longest chain name that iptables takes
// (XT_EXTENSION_MAXNAMELEN is 29 with the terminating zero).
const maxChainName = 28

// matches says which matches the kernel and the iptables at hand have.
type matches struct {
	comment  bool
	addrtype bool
	// local are the node's own addresses, by which node ports are recognised
	// where addrtype is missing.
	local []netip.Prefix
}

// table is what usher wants to have in one iptables table.
type table struct {
	chains map[string][]spec
	jumps  []wantedJump
}

// wantedJump is a jump from a chain of iptables' own into one of ours.
type wantedJump struct {
	chain string
	spec  spec
}

// layOut says which chains of which tables hold which rules. rules must be in
// the order of compareTargets, all of one family, and valid. A table that is
// not needed is not in the result.
func layOut(rules []Rule, have matches) map[string]*table {
	nat := &layouter{have: have, chains: map[string][]spec{}, spec: redirectSpec}
	drop := &layouter{have: have, chains: map[string][]spec{}, spec: dropSpec}
	for _, r := range rules {
		if r.Action != Drop || r.LocalPort != 0 {
			nat.rules = append(nat.rules, r)
		}
		if r.Action == Drop {
			drop.rules = append(drop.rules, r)
		}
	}
	tables := map[string]*table{}
	if len(nat.rules) > 0 {
		nat.root(chainPortals)
		jump := jumpTo(chainPortals)
		if have.comment {
			jump.comment = "usher: portals of Services"
		}
		tables[tableNAT] = &table{chains: nat.chains, jumps: []wantedJump{{"PREROUTING", jump}, {"OUTPUT", jump}}}
	}
	if len(drop.rules) > 0 {
		drop.root(chainDrop)
		jump := jumpTo(chainDrop)
		jump.fresh = true
		if have.comment {
			jump.comment = "usher: Services without endpoints on this node"
		}
		tables[tableMangle] = &table{chains: drop.chains, jumps: []wantedJump{{"PREROUTING", jump}}}
	}
	return tables
}

// redirectSpec is what stands in nat for r.
func redirectSpec(r Rule) spec {
	s := matchSpec(r)
	s.jump, s.toPort = "REDIRECT", int(r.LocalPort)
	if r.Action == Reject {
		s.toPort = rejectPort
	}
	return s
}

// dropSpec is what stands in mangle for r.
func dropSpec(r Rule) spec {
	s := matchSpec(r)
	s.jump = "DROP"
	return s
}

func matchSpec(r Rule) spec {
	t := r.Target
	s := spec{proto: t.Protocol, ports: PortRange{t.Port, t.Port}, comment: r.Comment, toPort: -1}
	if !t.Addr.IsUnspecified() {
		s.dst = netip.PrefixFrom(t.Addr, t.Addr.BitLen())
	}
	return s
}

// layouter builds the chains of one table.
type layouter struct {
	have   matches
	rules  []Rule
	spec   func(Rule) spec
	chains map[string][]spec
}

// root lays out all rules below the chain called name: VIPs first, then node
// ports, so that a VIP that is also an address of the node keeps its own rule.
func (l *layouter) root(name string) {
	isVIP := func(r Rule) bool { return !r.Target.Addr.IsUnspecified() }
	// Unspecified addresses sort before all others.
	split := slices.IndexFunc(l.rules, isVIP)
	if split < 0 {
		split = len(l.rules)
	}
	nodePorts, vips := l.rules[:split], l.rules[split:]

	l.chains[name] = nil
	l.fill(name, place{}, vips)
	if len(nodePorts) == 0 {
		return
	}
	l.fill(chainNodePorts, place{}, nodePorts)
	jump := jumpTo(chainNodePorts)
	if l.have.addrtype {
		jump.local = true
		l.chains[name] = append(l.chains[name], jump)
		return
	}
	for _, prefix := range l.have.local {
		jump.dst = prefix
		l.chains[name] = append(l.chains[name], jump)
	}
}

// fill puts rules, all of which are in p, into chain, or into chains below it.
func (l *layouter) fill(chain string, p place, rules []Rule) {
	if len(rules) <= maxFlat {
		for _, r := range rules {
			s := l.spec(r)
			if !l.have.comment {
				s.comment = ""
			}
			l.chains[chain] = append(l.chains[chain], s)
		}
		return
	}
	for _, part := range p.split(rules) {
		if len(part.rules) == 1 { // a chain of its own would cost more than it saves
			l.fill(chain, part.place, part.rules)
			continue
		}
		name := part.place.chain()
		l.chains[chain] = append(l.chains[chain], part.place.spec(name))
		l.fill(name, part.place, part.rules)
	}
}

// place is a part of the space of targets. The zero place is all of it, and
// what is zero in it stands for everything.
type place struct {
	prefix netip.Prefix
	proto  Protocol
	ports  PortRange
}

// part is a place with the rules in it.
type part struct {
	place place
	rules []Rule
}

// split divides p, which holds two rules or more, into at least two parts.
func (p place) split(rules []Rule) []part {
	first, last := rules[0].Target, rules[len(rules)-1].Target
	if first.Addr != last.Addr {
		// Ending at a multiple of splitBits whatever the rules have in common
		// keeps the parts where they are when rules come and go.
		common := commonBits(first.Addr, last.Addr)
		length := common - common%splitBits + splitBits
		return group(rules, func(t Target) place {
			prefix, _ := t.Addr.Prefix(length)
			return place{prefix: prefix}
		})
	}
	// One address from here on; that of node ports matches by itself.
	if !first.Addr.IsUnspecified() {
		p.prefix = netip.PrefixFrom(first.Addr, first.Addr.BitLen())
	}
	if first.Protocol != last.Protocol {
		return group(rules, func(t Target) place {
			return place{prefix: p.prefix, proto: t.Protocol}
		})
	}
	common := commonPortBits(first.Port, last.Port)
	rest := 16 - (common - common%splitBits + splitBits)
	return group(rules, func(t Target) place {
		low := t.Port >> rest << rest
		return place{prefix: p.prefix, proto: t.Protocol, ports: PortRange{low, low | (1<<rest - 1)}}
	})
}

// group cuts rules where the place changes.
func group(rules []Rule, where func(Target) place) []part {
	var parts []part
	start := 0
	for i := 1; i <= len(rules); i++ {
		if i == len(rules) || where(rules[i].Target) != where(rules[start].Target) {
			parts = append(parts, part{where(rules[start].Target), rules[start:i]})
			start = i
		}
	}
	return parts
}

// spec returns the jump to the chain of that name for what is in p.
func (p place) spec(chain string) spec {
	s := jumpTo(chain)
	s.dst, s.proto, s.ports = p.prefix, p.proto, p.ports
	return s
}

// chain names the chain that holds what is in p, so that people see what it is
// for where that fits: USHER-10.96.0.0-16, USHER-tcp-30000-30015.
func (p place) chain() string {
	var words []string
	if p.prefix.IsValid() {
		addr := strings.ReplaceAll(p.prefix.Addr().String(), ":", "_") // nft takes no colon in a name
		words = append(words, addr, fmt.Sprint(p.prefix.Bits()))
	}
	if p.proto != 0 {
		words = append(words, p.proto.String())
	}
	if !p.ports.isZero() {
		words = append(words, fmt.Sprint(p.ports.First), fmt.Sprint(p.ports.Last))
	}
	name := chainPrefix + strings.Join(words, "-")
	if len(name) <= maxChainName {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	return chainPrefix + base32.StdEncoding.EncodeToString(sum[:10])
}

// commonBits returns how many leading bits a and b, of one family, share.
func commonBits(a, b netip.Addr) int {
	x, y := a.AsSlice(), b.AsSlice()
	for i := range x {
		if diff := x[i] ^ y[i]; diff != 0 {
			return i*8 + bits.LeadingZeros8(diff)
		}
	}
	return len(x) * 8
}

func commonPortBits(a, b uint16) int {
	if hi := uint8((a ^ b) >> 8); hi != 0 {
		return bits.LeadingZeros8(hi)
	}
	return 8 + bits.LeadingZeros8(uint8(a^b))
}
