package nftables

import (
	"crypto/sha256"
	"encoding/base32"
	"net/netip"
	"slices"
	"strings"

	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/portal/kernel"
	"github.com/usherproxy/usher/portal/redirect"
)

// The nftables mode has a dedicated table in each family. Services are elements of its maps; only their Sources add
// chains. In nft's syntax:
//
//	table ip usher {
//	  map portals          { type ipv4_addr . inet_proto . inet_service : inet_service }   VIP → local port
//	  map guards           { type ipv4_addr . inet_proto . inet_service : verdict }        VIP → clients to drop
//	  map cluster-ips      { type ipv4_addr : inet_service }                               other ports of cluster IPs → 0
//	  map node-ports       { type inet_proto . inet_service : inet_service }
//	  map node-port-guards { type inet_proto . inet_service : verdict }
//
//	  chain prerouting { type nat hook prerouting priority dstnat - 10; jump portals }
//	  chain output     { type nat hook output     priority dstnat - 10
//	    meta mark & 0x1000 == 0x1000 return
//	    jump portals
//	  }
//	  chain portals {
//	    ip daddr . meta l4proto . th dport vmap @guards
//	    meta l4proto { tcp, udp, sctp } dnat to 192.0.0.117 : ip daddr . meta l4proto . th dport map @portals
//	    meta l4proto { tcp, udp, sctp } dnat to 192.0.0.117 : ip daddr map @cluster-ips
//	    fib daddr type local jump node-ports
//	  }
//	  chain node-ports { … the same without address, in node-ports and node-port-guards }
//
//	  chain sent    { type route hook output priority mangle
//	    meta mark & 0x1000 == 0x1000 ct state new ct mark set ct mark | 0x1000
//	    ct direction reply ct mark & 0x1000 == 0x1000 meta mark set meta mark | 0x1001
//	  }
//	  chain answers { type filter hook prerouting priority mangle
//	    ct direction reply ct mark & 0x1000 == 0x1000 meta mark set meta mark | 0x1000
//	  }
//	  chain aliases { type nat hook postrouting priority srcnat - 10
//	    ip saddr 198.18.1.0/24 meta mark & 0x1000 == 0x1000 snat ip prefix to 10.1.1.0/24
//	  }
//
//	  chain listeners { type filter hook input priority mangle
//	    ip daddr 192.0.0.117 socket transparent 1 return; with ip6 also: frag frag-off != 0 return
//	    ip daddr 192.0.0.117 tcp dport != 0 tcp flags & (fin | syn | rst | ack) == syn drop
//	    ip daddr 192.0.0.117 udp dport != 0 drop
//	  }
//
//	  chain service-cidrs-output  { type filter hook output priority filter
//	    fib daddr type local return
//	    ip daddr 10.96.0.0/16 ct state new reject
//	  }
//	  chain service-cidrs-forward { … the same in forward }
//
//	  chain outside        { fib saddr type local return; iifname "cali*" return; ip saddr 10.1.0.0/24 return; drop }
//	  chain from-192.0.2.0-24        { ip saddr 192.0.2.0/24 return; drop }
//	  chain inside-from-192.0.2.0-24 { jump outside; ip saddr 192.0.2.0/24 return; drop }
//	}
//
// So a first packet costs the same with one Service and with ten thousand, and a change is a transaction over the
// elements that differ. The kernel accepts no second element with the same key: an element that changes is deleted and
// added in the same transaction, and no packet sees it missing.
//
// The redirect address and port 0 for rejected targets are those of mode iptables; see layout.go there. Kernels before
// 5.9 refuse an nft reject in prerouting, and all kernels refuse it in a nat chain.
//
// Packets are dropped in the nat chains, which see only the first packet of each connection, so open connections
// continue. nft allows this; iptables does not.
//
// The chain listeners is for redirect.Setting.OwnOnly; layout.go of mode iptables says why other packets pass.
//
// The chains sent, answers and aliases are for endpoints that see their clients' own addresses: see
// redirect/origin_linux.go. If the kernel does not support prefixes in snat (before 5.8), there is no chain aliases.
//
// The chains service-cidrs-… exist while service CIDRs are known. They reject packets that neither usher nor another
// proxy has redirected, and so have a later priority. Packets to addresses of this node pass, and so do untracked
// packets: NodeLocal DNSCache listens on a cluster IP.
//
// The priority dstnat - 10 puts usher before all programs that change destinations at the usual priority, such as
// iptables. So no jump has to be kept in front. Of the nat chains of a hook, the first that sets a destination decides.
const (
	nameTable = "usher"

	namePortals        = "portals" // a map and a chain
	nameGuards         = "guards"
	nameClusterIPs     = "cluster-ips"
	nameNodePorts      = "node-ports" // a map and a chain
	nameNodePortGuards = "node-port-guards"

	namePrerouting = "prerouting"
	nameOutput     = "output"
	nameOutside    = "outside"

	nameListeners = "listeners"

	nameSent    = "sent"
	nameAnswers = "answers"
	nameAliases = "aliases"

	nameCIDRsOutput  = "service-cidrs-output"
	nameCIDRsForward = "service-cidrs-forward"
)

// maxComment is the longest comment that nft accepts in a file (NFTNL_UDATA_COMMENT_MAXLEN is 128 with the terminating
// zero).
const maxComment = 127

// rule is one rule. Equal rules have the same effect.
type rule struct {
	redirect.Match        // saddr and daddr; iifname; fib saddr type local, fib daddr type local
	marked         uint32 // meta mark & M == M; 0 is every packet
	fresh          bool   // ct state new
	transparent    bool   // socket transparent 1
	later          bool   // frag frag-off != 0: a fragment of IPv6 that is not the first
	// opens matches packets that can open a flow to a port other than 0: TCP's SYN, any datagram of UDP; 0 is every
	// packet.
	opens   portal.Protocol
	answers uint32 // ct direction reply, ct mark & M == M; 0 is every packet
	// by is the map in which the rule looks up the packet's target; the element that it finds decides. Without a map,
	// verdict decides.
	by      string
	verdict verdict
	// Instead of a verdict, the rule sets a mark of the packet or its connection, or the prefix of its source address.
	mark, ctMark uint32
	to           netip.Prefix
	redirectAddr netip.Addr // with a map of ports: the new destination; if invalid, the rule is a redirect
	ip6          bool
}

// verdict is "drop", "reject", "return" or "jump CHAIN".
type verdict string

const (
	verdictDrop   verdict = "drop"
	verdictReturn verdict = "return"
	verdictReject verdict = "reject" // only in filter chains
)

func jumpTo(chain string) verdict { return verdict("jump " + chain) }

// chain returns the chain that the verdict jumps to, or "".
func (v verdict) chain() string {
	chain, is := strings.CutPrefix(string(v), "jump ")
	if !is {
		return ""
	}
	return chain
}

// redirects reports whether the rule redirects: its map contains ports.
func (r rule) redirects() bool {
	return r.by == namePortals || r.by == nameClusterIPs || r.by == nameNodePorts
}

// fixedOrder is the order in which the fixed chains are created and listed.
var fixedOrder = []string{namePrerouting, nameOutput, namePortals, nameNodePorts, nameOutside, nameListeners, nameSent, nameAnswers, nameAliases, nameCIDRsOutput, nameCIDRsForward}

// fixedChains returns the chains of one family that exist whatever the Services are.
func fixedChains(family portal.Family, at redirect.Setting) map[string][]rule {
	six := family.Is6()
	to := func(chain string) []rule { return []rule{{verdict: jumpTo(chain), ip6: six}} }
	lookup := func(guards, ports string) []rule {
		return []rule{{by: guards, ip6: six}, {by: ports, redirectAddr: at.RedirectAddr, ip6: six}}
	}
	portals := append(lookup(nameGuards, namePortals), rule{by: nameClusterIPs, redirectAddr: at.RedirectAddr, ip6: six})
	// VIPs come first, so that a VIP that is also an address of the node keeps its own element.
	for _, m := range at.NodeAddresses(family) {
		portals = append(portals, rule{Match: m, verdict: jumpTo(nameNodePorts), ip6: six})
	}
	output := to(namePortals)
	if at.Mark != 0 {
		output = append([]rule{{marked: at.Mark, verdict: verdictReturn, ip6: six}}, output...)
	}
	fixed := map[string][]rule{
		namePrerouting: to(namePortals),
		nameOutput:     output,
		namePortals:    portals,
		nameNodePorts:  lookup(nameNodePortGuards, nameNodePorts),
		nameOutside:    dropAllBut(family, at.Insiders(family)),
	}
	if at.OwnOnly && at.RedirectAddr.IsValid() {
		redirectAddr := redirect.Match{Dst: netip.PrefixFrom(at.RedirectAddr, at.RedirectAddr.BitLen())}
		fixed[nameListeners] = []rule{
			{Match: redirectAddr, transparent: true, verdict: verdictReturn, ip6: six},
			{Match: redirectAddr, opens: portal.TCP, verdict: verdictDrop, ip6: six},
			{Match: redirectAddr, opens: portal.UDP, verdict: verdictDrop, ip6: six},
		}
		if six {
			// The node's own datagrams of more than 65,487 bytes arrive as fragments: conntrack, which saw them leave,
			// does not reassemble them. In all but the first, dport reads part of the IP header (seen on Linux 6.18).
			fixed[nameListeners] = slices.Insert(fixed[nameListeners], 1, rule{Match: redirectAddr, later: true, verdict: verdictReturn, ip6: true})
		}
	}
	if len(at.ServiceCIDRs) > 0 && !at.NoReject {
		rules := []rule{{Match: redirect.Match{DstLocal: true}, verdict: verdictReturn, ip6: six}}
		for _, p := range at.ServiceCIDRs {
			rules = append(rules, rule{Match: redirect.Match{Dst: p}, fresh: true, verdict: verdictReject, ip6: six})
		}
		fixed[nameCIDRsOutput], fixed[nameCIDRsForward] = rules, rules
	}
	if !at.Answers {
		return fixed
	}
	fixed[nameSent] = []rule{
		{marked: at.Mark, fresh: true, ctMark: at.Mark, ip6: six},
		{answers: at.Mark, mark: kernel.AnswerMark(at.Mark), ip6: six},
	}
	fixed[nameAnswers] = []rule{{answers: at.Mark, mark: at.Mark, ip6: six}}
	if !at.NoAliases {
		fixed[nameAliases] = nil
		for _, a := range at.Aliases {
			fixed[nameAliases] = append(fixed[nameAliases], rule{Match: redirect.Match{Src: a.As}, marked: at.Mark, to: a.Of, ip6: six})
		}
	}
	return fixed
}

// dropAllBut returns rules that drop all packets except those that match one of these.
func dropAllBut(family portal.Family, these []redirect.Match) (rules []rule) {
	for _, m := range these {
		rules = append(rules, rule{Match: m, verdict: verdictReturn, ip6: family.Is6()})
	}
	return append(rules, rule{verdict: verdictDrop, ip6: family.Is6()})
}

// mapKey identifies an element of a map. A target has up to two elements: its local port, and a guard, which is a
// verdict on its clients. A target without protocol and port is a cluster IP.
type mapKey struct {
	target portal.Target
	guard  bool
}

// inMap returns the name of the map.
func (k mapKey) inMap() string {
	switch node := k.target.Addr.IsUnspecified(); {
	case k.isAddress():
		return nameClusterIPs
	case node && k.guard:
		return nameNodePortGuards
	case node:
		return nameNodePorts
	case k.guard:
		return nameGuards
	}
	return namePortals
}

// isAddress reports whether the element is for all ports of an address that have no other element.
func (k mapKey) isAddress() bool { return k.target.Protocol == 0 }

// mapValue is an element's value.
type mapValue struct {
	port    uint16  // in a map of ports; 0 rejects
	verdict verdict // in a map of guards
	comment string
}

// elementsOf returns the elements for a rule. If one of them jumps to a chain that is not fixed, elementsOf also
// returns that chain and its rules.
func elementsOf(r portal.Rule) (elements map[mapKey]mapValue, chain string, rules []rule) {
	family := portal.FamilyOf(r.Target.Addr)
	comment := r.Comment
	if len(comment) > maxComment {
		comment = strings.TrimSpace(comment[:maxComment])
	}
	elements = map[mapKey]mapValue{}
	if r.Action != portal.Drop || r.LocalPort != 0 {
		port := r.LocalPort
		if r.Action == portal.Reject {
			port = redirect.RejectPort
		}
		elements[mapKey{target: r.Target}] = mapValue{port: port, comment: comment}
	}
	verdict, chain, rules := guardOf(r, family)
	if verdict != "" {
		elements[mapKey{target: r.Target, guard: true}] = mapValue{verdict: verdict, comment: comment}
	}
	return elements, chain, rules
}

// guardOf returns the verdict on clients before they are redirected, or "" if there is none. chain and rules are as for
// elementsOf.
func guardOf(r portal.Rule, family portal.Family) (verdict verdict, chain string, rules []rule) {
	networks, all := r.Sources.In(family)
	switch {
	case r.Action == portal.Drop && r.LocalPort == 0, !all && len(networks) == 0:
		return verdictDrop, "", nil
	case all && r.Action == portal.Drop:
		return jumpTo(nameOutside), "", nil
	case all:
		return "", "", nil
	}
	words := []string{"from"}
	for _, n := range networks {
		words = append(words, redirect.PrefixWord(n))
	}
	rules = dropAllBut(family, redirect.FromEach(networks))
	if r.Action == portal.Drop {
		words = append([]string{"inside"}, words...)
		rules = append([]rule{{verdict: jumpTo(nameOutside), ip6: family.Is6()}}, rules...)
	}
	chain = chainName(words)
	return jumpTo(chain), chain, rules
}

// chainName joins words to a chain's name. If it is too long, it contains their hash instead.
func chainName(words []string) string {
	const longest = 64
	name := strings.Join(words, "-")
	if len(name) <= longest {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	return "from-" + strings.ToLower(base32.StdEncoding.EncodeToString(sum[:10]))
}
