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
// The jump from OUTPUT excludes packets with the mark of usher's own packets to endpoints: these never come back to
// usher, wherever they go.
//
// In mangle, only while a rule says Drop or has Sources:
//
//	PREROUTING ─┐ new                          ┌─► DROP
//	            ├───────────► USHER-DROP ─► … ─┼─► USHER-OUTSIDE ─► DROP, except clients on this node
//	OUTPUT ─────┘ connections                  └─► USHER-FROM-192.0.2.0-24 ─► DROP, except 192.0.2.0/24
//
// From the first rule on, for endpoints that see their clients' own addresses (redirect/origin_linux.go):
//
//	mangle OUTPUT      ─► USHER-SENT     ─► CONNMARK usher's own packets; MARK answers to them
//	mangle PREROUTING  ─► USHER-ANSWERS  ─► MARK answers to them
//	nat    POSTROUTING ─► USHER-ALIASES  ─► NETMAP
//
// For redirect.Setting.OwnOnly:
//
//	mangle INPUT ─► USHER-LISTENERS ─► RETURN packets for usher's sockets; DROP others that open a flow
//
// This jump is the first rule there, so that no other rule accepts the packet earlier. Other TCP segments pass: they
// belong to an accepted connection, or the kernel answers them with a reset. Port 0 passes, so that the kernel answers
// clients of rejected targets. SCTP passes, since the kernel looks up no SCTP socket there.
//
// So that a host firewall accepts redirected packets, in filter:
//
//	filter INPUT ─► USHER-ACCEPT ─┬─► ACCEPT packets for the redirect address whose destination was changed
//	                              ├─► … without a redirect address: ACCEPT such packets for usher's ports
//	                              └─► … ACCEPT packets for health check node ports
//
// It accepts nothing else: packets that another host sends directly to the redirect address are left to the node's
// other rules.
//
// While service CIDRs are known:
//
//	filter OUTPUT ──┐ new
//	filter FORWARD ─┴───────► USHER-SERVICE-CIDRS ─► RETURN to addresses of this node; REJECT the others
//	                  connections
//
// All proxies of the node can redirect a packet before it reaches this chain. Untracked packets pass: NodeLocal
// DNSCache listens on a cluster IP.
//
// A chain of at most maxFlat rules is flat: a packet is compared with each of them. A larger chain is split by the next
// bits in which its rules differ, address before protocol before port. It then holds jumps, and the rules that are
// alone in their part. With 10,000 Services a connection's first packet is compared with about 60 rules instead of
// 10,000.
//
// DNAT sends packets to the listener's port at the redirect address, a dedicated address of the node. REDIRECT is the
// usual way: it uses an address of the packet's incoming interface. But if that interface has no IPv4 address, REDIRECT
// drops the packet (nf_nat_redirect_ipv4). An example is the host's end of a Pod's veth with Calico or the AWS VPC CNI.
// Another address of the node could change: then all rules would have to change, and open connections would end.
// REDIRECT remains for nodes without a redirect address, and as an option (Options.IPTablesTarget). SCTP is not served
// then: an association needs one address for its whole life, which its clients can use; see kernel/addresses.go.
//
// Reject is a DNAT to port 0, or a REDIRECT if iptables does not accept that. No socket can be bound to port 0, so the
// kernel answers as for any closed port: TCP reset, ICMP port unreachable, SCTP abort. A REJECT in the filter table is
// the usual way, but forwarded packets pass that only if the node forwards: with net.ipv4.ip_forward=0 a Pod's
// connection would hang instead of being refused.
//
// Drop is in mangle, since rules in nat may not drop. It is in PREROUTING, since all incoming packets pass that chain,
// whether or not the node forwards them. It drops only new connections, so that open ones continue when a Service loses
// its last local endpoint. Only a rule with a LocalPort spares this node. kube-proxy, too, drops the node's own packets
// for an internalTrafficPolicy without a local endpoint, or from an address outside loadBalancerSourceRanges.
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

// tableNames are the tables that can have usher's chains.
var tableNames = []string{tableNAT, tableMangle, tableFilter}

// maxFlat is the number of rules at which a chain is split. At 20–50 ns a comparison this limits the cost of a chain to
// about 1 µs.
const maxFlat = 32

// splitBits is the number of bits of an address or port that one level of chains distinguishes: a chain of jumps has at
// most 2^splitBits of them.
const splitBits = 4

// maxChainName is the maximum length of a chain's name (XT_EXTENSION_MAXNAMELEN is 29 with the terminating zero).
const maxChainName = 28

// anywhere reports whether other rules may precede the jump. They may precede a jump to a chain that sets marks, since
// they do not match these marks. In the table filter, CNI plugins also claim the first position; usher does not
// compete.
func (j jumpRule) anywhere() bool {
	return j.last() || j.spec.jump == chainCIDRs || j.spec.jump == chainAccept
}

// last reports whether the jump is added at the end of the chain.
func (j jumpRule) last() bool { return j.spec.jump == chainSent || j.spec.jump == chainAnswers }

// layOut returns the tables with their chains and rules. rules must be in the order of Target.Compare, all of one
// family, and valid. The result has no unneeded table.
func layOut(rules []portal.Rule, at redirect.Setting) map[string]*contents {
	nat := &layouter{at: at, chains: map[string][]spec{}}
	nat.specs = nat.redirect
	drop := &layouter{at: at, chains: map[string][]spec{}}
	drop.specs = drop.drop
	for _, r := range rules {
		if r.Action != portal.Drop || r.LocalPort != 0 {
			nat.rules = append(nat.rules, r)
		}
		if r.Action == portal.Drop || r.Sources != "" {
			drop.rules = append(drop.rules, r)
		}
	}
	tables := map[string]*contents{}
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
func addChain(tables map[string]*contents, at redirect.Setting, name, from string, jump spec, specs []spec) {
	t := tables[name]
	if t == nil {
		t = &contents{chains: map[string][]spec{}}
		tables[name] = t
	}
	if !at.Comment {
		jump.comment = ""
	}
	t.chains[jump.jump], t.jumps = specs, append(t.jumps, jumpRule{chain: from, spec: jump})
}

// addListeners adds the rules by which only usher's sockets receive packets redirected to the redirect address.
func addListeners(tables map[string]*contents, at redirect.Setting) {
	if !at.OwnOnly || !at.RedirectAddr.IsValid() {
		return
	}
	jump := jumpTo(chainListeners)
	jump.Dst, jump.comment = netip.PrefixFrom(at.RedirectAddr, at.RedirectAddr.BitLen()), "usher: its listeners only"
	ports := portal.PortRange{First: 1, Last: math.MaxUint16}
	addChain(tables, at, tableMangle, "INPUT", jump, []spec{
		{transparent: true, jump: "RETURN", toPort: -1},
		{proto: portal.TCP, ports: ports, syn: true, jump: "DROP", toPort: -1},
		// The node's own datagrams of more than 65,487 bytes arrive over IPv6 as fragments: conntrack, which saw them
		// leave, does not reassemble them. In all but the first, --dport of iptables-nft reads the IP header as a port
		// (seen on Linux 6.18).
		{proto: portal.UDP, ports: ports, whole: true, jump: "DROP", toPort: -1},
	})
}

// accepted returns the ports of this node that rules in INPUT accept: health check node ports, as rules without
// LocalPort, and the ports to which REDIRECT sends packets.
func accepted(rules map[portal.Target]portal.Rule, at redirect.Setting, family portal.Family) []portal.Rule {
	ports := map[portal.Target]portal.Rule{}
	for _, port := range at.HealthChecks {
		t := portal.Target{Protocol: portal.TCP, Addr: family.Any(), Port: port}
		ports[t] = portal.Rule{Target: t, Comment: "health checks"}
	}
	for _, r := range rules {
		t := portal.Target{Protocol: r.Target.Protocol, Addr: family.Any(), Port: r.LocalPort}
		switch {
		case r.Action == portal.Reject && (at.NoPort0 || !at.RedirectAddr.IsValid()):
			t.Port = redirect.RejectPort
			ports[t] = portal.Rule{Target: t, Action: portal.Reject}
		case r.Action != portal.Reject && r.LocalPort != 0 && !at.RedirectAddr.IsValid():
			ports[t] = portal.Rule{Target: t, LocalPort: r.LocalPort}
		}
	}
	return portal.InOrder(ports)
}

// addAccept adds the rules in INPUT that accept redirected packets and packets for ports, the result of accepted.
func addAccept(tables map[string]*contents, at redirect.Setting, ports []portal.Rule) {
	l := &layouter{at: at, chains: map[string][]spec{}}
	if at.RedirectAddr.IsValid() {
		to := redirect.Match{Dst: netip.PrefixFrom(at.RedirectAddr, at.RedirectAddr.BitLen())}
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

// addServiceCIDRs adds the rules that reject new connections to the service CIDRs that were not redirected.
func addServiceCIDRs(tables map[string]*contents, at redirect.Setting) {
	if len(at.ServiceCIDRs) == 0 || at.NoReject {
		return
	}
	specs := []spec{{Match: redirect.Match{DstLocal: true}, jump: "RETURN", toPort: -1}}
	for _, p := range at.ServiceCIDRs {
		specs = append(specs, spec{Match: redirect.Match{Dst: p}, jump: "REJECT", toPort: -1})
	}
	jump := jumpTo(chainCIDRs)
	jump.fresh, jump.comment = true, "usher: unused addresses of service CIDRs"
	for _, from := range []string{"OUTPUT", "FORWARD"} {
		addChain(tables, at, tableFilter, from, jump, specs)
	}
}

// addAnswers adds the rules for Setting.Answers. Once installed, they stay even without Services: open connections need
// them.
func addAnswers(tables map[string]*contents, at redirect.Setting) {
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
	specs  func(portal.Rule) []spec // the table's rules for a portal rule
	chains map[string][]spec
}

// table returns the table that l has built, with jumps to root from PREROUTING for incoming packets and from OUTPUT for
// the node's own. Both match as jump does; that from OUTPUT excludes usher's own packets, by their mark. Those to this
// node then come in by lo, still marked: the jump from PREROUTING excludes markIn, if not 0. A packet passes nat only
// once, so nat needs no markIn.
func (l *layouter) table(root string, jump spec, markIn uint32) *contents {
	jump.jump, jump.toPort = root, -1
	if !l.at.Comment {
		jump.comment = ""
	}
	in, out := jump, jump
	in.unmarked, out.unmarked = markIn, l.at.Mark
	return &contents{chains: l.chains, jumps: []jumpRule{{chain: "PREROUTING", spec: in}, {chain: "OUTPUT", spec: out}}}
}

// redirect returns nat's rules for r.
func (l *layouter) redirect(r portal.Rule) []spec {
	s := l.match(r)
	s.jump, s.toPort = "REDIRECT", int(r.LocalPort)
	if r.Action == portal.Reject {
		s.toPort = redirect.RejectPort
	}
	if l.at.RedirectAddr.IsValid() && !(l.at.NoPort0 && s.toPort == redirect.RejectPort) {
		s.jump, s.to = "DNAT", l.at.RedirectAddr
	}
	return []spec{s}
}

// drop returns mangle's rules for r: none if all clients may connect.
func (l *layouter) drop(r portal.Rule) (specs []spec) {
	s, family := l.match(r), portal.FamilyOf(r.Target.Addr)
	if r.Action == portal.Drop {
		s.jump = "DROP"
		if r.LocalPort == 0 {
			return []spec{s}
		}
		s.jump = chainOutside
		if l.chains[chainOutside] == nil {
			l.chains[chainOutside] = dropAllBut(l.at.Insiders(family))
		}
		specs = append(specs, s)
	}
	if networks, all := r.Sources.In(family); !all {
		words := []string{"FROM"}
		for _, n := range networks {
			words = append(words, redirect.PrefixWord(n))
		}
		s.jump = chainName(words...)
		l.chains[s.jump] = dropAllBut(redirect.FromEach(networks))
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

// dropAllBut returns rules that drop all packets except those that match one of these.
func dropAllBut(these []redirect.Match) []spec {
	var specs []spec
	for _, m := range these {
		specs = append(specs, spec{Match: m, jump: "RETURN", toPort: -1})
	}
	return append(specs, spec{jump: "DROP", toPort: -1})
}

// root lays out all rules below the chain called name: VIPs first, then node ports, so that a VIP that is also an
// address of the node keeps its own rule.
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
