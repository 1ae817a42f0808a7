package iptables

import (
	"maps"
	"math"
	"net/netip"
	"slices"

	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/portal/kernel"
	"github.com/usherproxy/usher/portal/redirect"
)

// The tables and chains. In nat:
//
//	PREROUTING ─┐
//	            ├─► USHER-PORTALS ─► USHER-10.96.0.0-16 ─► … DNAT to 192.0.0.117
//	OUTPUT ─────┘         └────────► USHER-NODEPORTS    ─► … DNAT to 192.0.0.117
//
// but from OUTPUT only what does not have the mark of usher's own packets to endpoints:
// those never come back to usher, wherever they go;
//
// and, only while a rule says Drop or has Sources, in mangle:
//
//	PREROUTING ─┐ new                          ┌─► DROP
//	            ├───────────► USHER-DROP ─► … ─┼─► USHER-OUTSIDE ─► DROP, but for this node's
//	OUTPUT ─────┘ connections                  └─► USHER-FROM-192.0.2.0-24 ─► DROP, but for those
//
// For endpoints that see their clients' own addresses (redirect/origin_linux.go), once
// there was any rule,
//
//	mangle OUTPUT      ─► USHER-SENT     ─► CONNMARK usher's own packets; MARK answers to them
//	mangle PREROUTING  ─► USHER-ANSWERS  ─► MARK answers to them
//	nat    POSTROUTING ─► USHER-ALIASES  ─► NETMAP
//
// And for redirect.Setting.OwnOnly,
//
//	mangle INPUT ─► USHER-LISTENERS ─► RETURN to usher's sockets; DROP what would open a flow to another
//
// So that a host firewall lets in what rules redirect, in filter:
//
//	filter INPUT ─► USHER-ACCEPT ─┬─► ACCEPT to the landing, if its destination was changed
//	                              ├─► … without a landing: ACCEPT to usher's ports, if it was changed
//	                              └─► … ACCEPT to health check node ports
//
// Nothing else can be reached by it: what a host sends to the landing itself goes by the host's own rules.
//
// USHER-LISTENERS has the first place there, so that no other rule accepts the packet first. TCP's other segments
// belong to a connection that was let in, or are answered by a reset. The kernel looks up no
// socket of SCTP there. Port 0, of rejected targets, is answered.
//
// While service CIDRs are known,
//
//	filter OUTPUT ──┐ new
//	filter FORWARD ─┴───────► USHER-SERVICE-CIDRS ─► RETURN to addresses of this node; REJECT the others
//	                  connections
//
// That is after all proxies of the node could redirect the packet. What is not tracked is left alone:
// NodeLocal DNSCache listens on a cluster IP.
//
// A chain that holds no more rules than a packet may well be compared with one
// by one is flat. A larger one is split by the next bits of what tells its
// rules apart, address before protocol before port, and then holds only jumps.
// With 10,000 Services a first packet meets some 60 rules instead of 10,000.
//
// Packets go to the listener's port by DNAT to an address of usher's own, its
// landing. REDIRECT would be the usual way: it takes an address of the interface
// that a packet came in by. But where that interface has no IPv4 address, such
// as the host's end of a Pod's veth with Calico or the AWS VPC CNI, REDIRECT
// drops the packet (nf_nat_redirect_ipv4). An address that the node has anyhow
// would do, but it may change; then all rules would have to, and connections in
// flight would end. REDIRECT stays for where there can be no landing, and for
// who chooses it (Options.IPTablesTarget): SCTP is not served then, since it needs one
// address for an association's whole life, and one that its clients can use: see
// kernel/landing.go.
//
// Reject is a DNAT to port 0, or, where iptables takes none, REDIRECT. No socket
// can be bound to that port, so the kernel answers as for any closed one: TCP
// reset, ICMP port unreachable, SCTP abort.
// A REJECT in the filter table would be the usual way, but forwarded packets
// only meet it where the node forwards at all: with net.ipv4.ip_forward=0 a
// Pod's connection would hang instead of being refused.
//
// Drop is in mangle since nat may not drop, and there since mangle PREROUTING
// is met by all that comes in, whether or not it would be forwarded. Only new
// connections are dropped, so that those in flight go on when a Service loses
// its last local endpoint. This node itself is an exception only where a rule
// says so by its LocalPort: kube-proxy also drops what the node sends for an
// internalTrafficPolicy that finds no local endpoint, or from an address that
// is not in loadBalancerSourceRanges.
const (
	tableNAT    = "nat"
	tableMangle = "mangle"
	tableFilter = "filter"

	chainPortals   = chainPrefix + "PORTALS"
	chainDrop      = chainPrefix + "DROP"
	chainOutside   = chainPrefix + "OUTSIDE"
	chainNodePorts = chainPrefix + "NODEPORTS"

	chainListeners = chainPrefix + "LISTENERS"
	chainAccept    = chainPrefix + "ACCEPT"

	chainSent    = chainPrefix + "SENT"
	chainAnswers = chainPrefix + "ANSWERS"
	chainAliases = chainPrefix + "ALIASES"

	chainCIDRs = chainPrefix + "SERVICE-CIDRS"
)

// tableNames are the tables that may have chains of usher.
var tableNames = []string{tableNAT, tableMangle, tableFilter}

// maxFlat is how many rules a chain holds before it is split. At some 20 ns to
// 50 ns a comparison this bounds what a chain costs to about a microsecond.
const maxFlat = 32

// splitBits is how many bits of an address or port one level of chains tells
// apart: a chain of jumps has at most 2^splitBits of them.
const splitBits = 4

// maxChainName is the longest chain name that iptables takes
// (XT_EXTENSION_MAXNAMELEN is 29 with the terminating zero).
const maxChainName = 28

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

// anywhere reports whether it does not matter what is in front of the jump: what it
// leads to sets marks, which nobody else there asks for. Nor is a place in the table filter, which
// CNI plugins want, worth a contest.
func (w wantedJump) anywhere() bool {
	return w.last() || w.spec.jump == chainCIDRs || w.spec.jump == chainAccept
}

// last reports whether the jump is put in behind what is there.
func (w wantedJump) last() bool { return w.spec.jump == chainSent || w.spec.jump == chainAnswers }

// layOut says which chains of which tables hold which rules. rules must be in
// the order of Target.Compare, all of one family, and valid. A table that is
// not needed is not in the result.
func layOut(rules []portal.Rule, at redirect.Setting) map[string]*table {
	nat := &layouter{at: at, chains: map[string][]spec{}}
	nat.specs = nat.redirect
	drop := &layouter{at: at, chains: map[string][]spec{}}
	drop.specs = drop.drop
	for _, r := range rules {
		if r.Action != portal.Drop || r.LocalPort != 0 {
			nat.rules = append(nat.rules, r)
		}
		if r.Action == portal.Drop || r.Sources != (portal.Sources{}) {
			drop.rules = append(drop.rules, r)
		}
	}
	tables := map[string]*table{}
	if len(nat.rules) > 0 {
		nat.root(chainPortals)
		tables[tableNAT] = nat.table(chainPortals, spec{comment: "usher: portals of Services"}, 0)
	}
	if len(drop.rules) > 0 {
		drop.root(chainDrop)
		tables[tableMangle] = drop.table(chainDrop, spec{fresh: true, comment: "usher: clients that Services do not admit"}, at.Mark)
	}
	return tables
}

// addChain adds a chain to a table, and the jump to it, which may have a comment.
func addChain(tables map[string]*table, at redirect.Setting, name, from string, jump spec, specs []spec) {
	t := tables[name]
	if t == nil {
		t = &table{chains: map[string][]spec{}}
		tables[name] = t
	}
	if !at.Comment {
		jump.comment = ""
	}
	t.chains[jump.jump], t.jumps = specs, append(t.jumps, wantedJump{from, jump})
}

// addListeners adds what lets only usher's sockets receive what rules lead to the landing.
func addListeners(tables map[string]*table, at redirect.Setting) {
	if !at.OwnOnly || !at.Landing.IsValid() {
		return
	}
	jump := jumpTo(chainListeners)
	jump.Dst, jump.comment = netip.PrefixFrom(at.Landing, at.Landing.BitLen()), "usher: its listeners only"
	ports := portal.PortRange{First: 1, Last: math.MaxUint16}
	addChain(tables, at, tableMangle, "INPUT", jump, []spec{
		{transparent: true, jump: "RETURN", toPort: -1},
		{proto: portal.TCP, ports: ports, syn: true, jump: "DROP", toPort: -1},
		// The node's own datagrams of more than 65,487 bytes come over IPv6 as fragments: conntrack, which saw
		// them go out, does not put them together again. In the later ones --dport of iptables-nft takes
		// the IP header for a port (seen on Linux 6.18).
		{proto: portal.UDP, ports: ports, whole: true, jump: "DROP", toPort: -1},
	})
}

// accepted returns the ports of this node that rules in INPUT let in: health check node ports, as rules without LocalPort, and,
// for what is not led to the landing, those that rules redirect to.
func accepted(rules map[portal.Target]portal.Rule, at redirect.Setting, family portal.Family) []portal.Rule {
	ports := map[portal.Target]portal.Rule{}
	for _, port := range at.HealthChecks {
		t := portal.Target{Protocol: portal.TCP, Addr: family.Any(), Port: port}
		ports[t] = portal.Rule{Target: t, Comment: "health checks"}
	}
	for _, r := range rules {
		t := portal.Target{Protocol: r.Target.Protocol, Addr: family.Any(), Port: r.LocalPort}
		switch {
		case r.Action == portal.Reject && (at.NoPort0 || !at.Landing.IsValid()):
			t.Port = redirect.RejectPort
			ports[t] = portal.Rule{Target: t, Action: portal.Reject}
		case r.Action != portal.Reject && r.LocalPort != 0 && !at.Landing.IsValid():
			ports[t] = portal.Rule{Target: t, LocalPort: r.LocalPort}
		}
	}
	return portal.InOrder(ports)
}

// addAccept adds what lets in what rules redirect, and what accepted returned, whatever else is in INPUT.
func addAccept(tables map[string]*table, at redirect.Setting, ports []portal.Rule) {
	l := &layouter{at: at, chains: map[string][]spec{}}
	if at.Landing.IsValid() {
		to := redirect.Match{Dst: netip.PrefixFrom(at.Landing, at.Landing.BitLen())}
		l.chains[chainAccept] = []spec{{Match: to, translated: true, jump: "ACCEPT", toPort: -1}}
	}
	l.specs = func(r portal.Rule) []spec {
		s := l.match(r)
		s.port0 = r.Action == portal.Reject
		s.translated, s.jump = s.port0 || r.LocalPort != 0, "ACCEPT"
		return []spec{s}
	}
	if l.fill(chainAccept, place{}, ports); len(l.chains) == 0 || at.NoAccept {
		return
	}
	jump := jumpTo(chainAccept)
	jump.comment = "usher: redirected packets and health checks"
	addChain(tables, at, tableFilter, "INPUT", jump, nil)
	maps.Copy(tables[tableFilter].chains, l.chains)
}

// addServiceCIDRs adds what rejects new connections to the service CIDRs that were not redirected.
func addServiceCIDRs(tables map[string]*table, at redirect.Setting) {
	if len(at.ServiceCIDRs) == 0 || at.NoReject {
		return
	}
	var specs []spec
	if at.AddrType {
		specs = append(specs, spec{Match: redirect.Match{DstLocal: true}, jump: "RETURN", toPort: -1})
	}
	for _, p := range at.ServiceCIDRs {
		specs = append(specs, spec{Match: redirect.Match{Dst: p}, jump: "REJECT", toPort: -1})
	}
	jump := jumpTo(chainCIDRs)
	jump.fresh, jump.comment = true, "usher: unused addresses of service CIDRs"
	for _, from := range []string{"OUTPUT", "FORWARD"} {
		addChain(tables, at, tableFilter, from, jump, specs)
	}
}

// addAnswers adds what is there whatever is served, once something was: connections in
// flight need it.
func addAnswers(tables map[string]*table, at redirect.Setting) {
	if !at.Answers {
		return
	}
	add := func(name, from, to string, specs []spec) {
		jump := jumpTo(to)
		jump.comment = "usher: clients' own addresses"
		addChain(tables, at, name, from, jump, specs)
	}
	add(tableMangle, "OUTPUT", chainSent, []spec{
		{marked: at.Mark, fresh: true, jump: "CONNMARK", set: at.Mark, toPort: -1},
		{answers: at.Mark, jump: "MARK", set: kernel.AnswerMark(at.Mark), toPort: -1},
	})
	add(tableMangle, "PREROUTING", chainAnswers, []spec{{answers: at.Mark, jump: "MARK", set: at.Mark, toPort: -1}})
	if at.NoAliases {
		return
	}
	var specs []spec
	for _, a := range at.Aliases {
		specs = append(specs, spec{Match: redirect.Match{Src: a.As}, marked: at.Mark, jump: "NETMAP", netmap: a.Of, toPort: -1})
	}
	add(tableNAT, "POSTROUTING", chainAliases, specs)
}

// layouter builds the chains of one table.
type layouter struct {
	at     redirect.Setting
	rules  []portal.Rule
	specs  func(portal.Rule) []spec // what stands in the table for a rule
	chains map[string][]spec
}

// table returns what l has built, with jumps that match as jump does from
// where all packets come by: PREROUTING for those that come in, OUTPUT for
// those of the node itself. What usher sends to this node itself comes in by lo, and
// has its mark still; but the nat table is not asked a second time. markIn is the
// mark for those.
func (l *layouter) table(root string, jump spec, markIn uint32) *table {
	jump.jump, jump.toPort = root, -1
	if !l.at.Comment {
		jump.comment = ""
	}
	in, out := jump, jump
	in.unmarked, out.unmarked = markIn, l.at.Mark
	return &table{chains: l.chains, jumps: []wantedJump{{"PREROUTING", in}, {"OUTPUT", out}}}
}

// redirect returns what stands in nat for r.
func (l *layouter) redirect(r portal.Rule) []spec {
	s := l.match(r)
	s.jump, s.toPort = "REDIRECT", int(r.LocalPort)
	if r.Action == portal.Reject {
		s.toPort = redirect.RejectPort
	}
	if l.at.Landing.IsValid() && !(l.at.NoPort0 && s.toPort == redirect.RejectPort) {
		s.jump, s.to = "DNAT", l.at.Landing
	}
	return []spec{s}
}

// drop returns what stands in mangle for r: nothing if all may connect.
func (l *layouter) drop(r portal.Rule) (specs []spec) {
	s := l.match(r)
	if r.Action == portal.Drop {
		s.jump = "DROP"
		if r.LocalPort == 0 {
			return []spec{s}
		}
		s.jump = l.outside(portal.FamilyOf(r.Target.Addr))
		specs = append(specs, s)
	}
	if networks, all := r.Sources.In(portal.FamilyOf(r.Target.Addr)); !all {
		s.jump = l.from(networks)
		specs = append(specs, s)
	}
	return specs
}

// match returns a spec that matches packets for r's target.
func (l *layouter) match(r portal.Rule) spec {
	t := r.Target
	s := spec{proto: t.Protocol, ports: portal.PortRange{First: t.Port, Last: t.Port}, toPort: -1}
	if !t.Addr.IsUnspecified() {
		s.Dst = netip.PrefixFrom(t.Addr, t.Addr.BitLen())
	}
	if l.at.Comment {
		s.comment = r.Comment
	}
	return s
}

// outside returns the chain that drops all but what comes from this node.
func (l *layouter) outside(family portal.Family) string {
	if l.chains[chainOutside] != nil {
		return chainOutside
	}
	l.chains[chainOutside] = dropAllBut(l.at.Insiders(family))
	return chainOutside
}

// from returns the chain that drops all but what comes from these networks.
func (l *layouter) from(networks []netip.Prefix) string {
	words := []string{"FROM"}
	for _, n := range networks {
		words = append(words, redirect.PrefixWord(n))
	}
	name := chainName(words...)
	l.chains[name] = dropAllBut(redirect.FromEach(networks))
	return name
}

// dropAllBut lets pass what matches one of these.
func dropAllBut(these []redirect.Match) []spec {
	var specs []spec
	for _, m := range these {
		specs = append(specs, spec{Match: m, jump: "RETURN", toPort: -1})
	}
	return append(specs, spec{jump: "DROP", toPort: -1})
}

// root lays out all rules below the chain called name: VIPs first, then node
// ports, so that a VIP that is also an address of the node keeps its own rule.
func (l *layouter) root(name string) {
	isVIP := func(r portal.Rule) bool { return !r.Target.Addr.IsUnspecified() }
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
	for _, m := range l.at.NodeAddresses(portal.FamilyOf(nodePorts[0].Target.Addr)) {
		l.chains[name] = append(l.chains[name], spec{Match: m, jump: chainNodePorts, toPort: -1})
	}
}
