package portal

import (
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"net/netip"
	"strings"
)

// The nftables mode has a table of its own in each family, with the same chains
// whatever is served; what is served is elements of maps. In nft's words:
//
//	table ip usher {
//	  map portals          { type ipv4_addr . inet_proto . inet_service : inet_service }   VIP → local port
//	  map guards           { type ipv4_addr . inet_proto . inet_service : verdict }        VIP → who is dropped
//	  map node-ports       { type inet_proto . inet_service : inet_service }
//	  map node-port-guards { type inet_proto . inet_service : verdict }
//
//	  chain prerouting { type nat hook prerouting priority dstnat - 10; jump portals }
//	  chain output     { type nat hook output     priority dstnat - 10; meta mark & 0x2000 == 0x2000 return; jump portals }
//	  chain portals {
//	    ip daddr . meta l4proto . th dport vmap @guards
//	    meta l4proto { tcp, udp, sctp } dnat to 192.0.0.117 : ip daddr . meta l4proto . th dport map @portals
//	    fib daddr type local jump node-ports
//	  }
//	  chain node-ports { … the same without address, in node-ports and node-port-guards }
//
//	  chain outside        { fib saddr type local return; iifname "cali*" return; ip saddr 10.1.0.0/24 return; drop }
//	  chain from-192.0.2.0-24        { ip saddr 192.0.2.0/24 return; drop }
//	  chain inside-from-192.0.2.0-24 { jump outside; ip saddr 192.0.2.0/24 return; drop }
//	}
//
// So a first packet costs the same with one Service and with ten thousand, and a
// change is a transaction over the elements that differ. The kernel takes no
// second element with the same key: one that changes is deleted and added in
// the same transaction, and no packet sees it missing.
//
// The landing and port 0 for rejected targets are those of mode iptables; see
// layout.go. An nft reject would be refused by kernels before 5.9 in prerouting,
// and by all of them in a nat chain.
//
// Packets are dropped in the nat chains, which only see the first packet of each
// connection: those in flight go on. nft has nothing against that; iptables has.
//
// The priority puts usher before all who change destinations at the usual place,
// such as iptables, so no jump has to be kept in front. Of the nat chains of a
// hook the first that sets a destination decides.
const (
	nftTable = "usher"

	nftPortals        = "portals" // a map and a chain
	nftGuards         = "guards"
	nftNodePorts      = "node-ports" // a map and a chain
	nftNodePortGuards = "node-port-guards"

	nftPrerouting = "prerouting"
	nftOutput     = "output"
	nftOutside    = "outside"

	nftPriority = -110 // NF_IP_PRI_NAT_DST - 10
)

// maxNFTComment is the longest comment that nft takes in a file
// (NFTNL_UDATA_COMMENT_MAXLEN is 128 with the terminating zero).
const maxNFTComment = 127

// nftRule is one rule. Two rules do the same if they are equal.
type nftRule struct {
	match         // saddr and daddr; iifname; fib saddr type local, fib daddr type local
	marked uint32 // meta mark, with the same mask; 0 is every packet
	// by is the map in which the packet's target is looked up for what happens
	// to it; if there is none, the verdict does.
	by      string
	verdict nftVerdict
	landing netip.Addr // with a map of ports: where packets go; if invalid, redirect decides
	ip6     bool
}

// nftVerdict is "drop", "return" or "jump CHAIN".
type nftVerdict string

const (
	nftDrop   nftVerdict = "drop"
	nftReturn nftVerdict = "return"
)

func nftJump(chain string) nftVerdict { return nftVerdict("jump " + chain) }

// chain returns where the verdict jumps to, or "".
func (v nftVerdict) chain() string {
	chain, is := strings.CutPrefix(string(v), "jump ")
	if !is {
		return ""
	}
	return chain
}

// String returns the rule as nft would print it.
func (r nftRule) String() string {
	ip := "ip"
	if r.ip6 {
		ip = "ip6"
	}
	key := ip + " daddr . meta l4proto . th dport"
	if r.by == nftNodePorts || r.by == nftNodePortGuards {
		key = "meta l4proto . th dport"
	}
	var words []string
	add := func(w ...string) { words = append(words, w...) }
	if r.src.IsValid() {
		add(ip, "saddr", r.src.String())
	}
	if r.dst.IsValid() {
		add(ip, "daddr", r.dst.String())
	}
	if begin, many := strings.CutSuffix(string(r.in), "+"); many {
		add("iifname", `"`+begin+`*"`)
	} else if r.in != "" {
		add("iifname", `"`+begin+`"`)
	}
	if r.marked != 0 {
		add(fmt.Sprintf("meta mark & %#x == %#x", r.marked, r.marked))
	}
	if r.srcLocal {
		add("fib saddr type local")
	}
	if r.dstLocal {
		add("fib daddr type local")
	}
	switch {
	case r.by == "":
		add(string(r.verdict))
	case !r.leads():
		add(key, "vmap", "@"+r.by)
	case r.landing.IsValid():
		add("meta l4proto { tcp, udp, sctp } dnat to", r.landing.String(), ":", key, "map", "@"+r.by)
	default:
		add("meta l4proto { tcp, udp, sctp } redirect to :", key, "map", "@"+r.by)
	}
	return strings.Join(words, " ")
}

// leads tells whether the map holds ports.
func (r nftRule) leads() bool { return r.by == nftPortals || r.by == nftNodePorts }

// nftOrder is the order in which the fixed chains are made, and listed.
var nftOrder = []string{nftPrerouting, nftOutput, nftPortals, nftNodePorts, nftOutside}

// nftFixed returns the chains that are always there, in one family.
func nftFixed(family Family, at setting) map[string][]nftRule {
	six := family.Is6()
	to := func(chain string) []nftRule { return []nftRule{{verdict: nftJump(chain), ip6: six}} }
	lookup := func(guards, ports string) []nftRule {
		return []nftRule{{by: guards, ip6: six}, {by: ports, landing: at.landing, ip6: six}}
	}
	portals := lookup(nftGuards, nftPortals)
	// VIPs come first, so that one that is also an address of the node keeps its
	// own element.
	for _, m := range at.nodeAddresses(family) {
		portals = append(portals, nftRule{match: m, verdict: nftJump(nftNodePorts), ip6: six})
	}
	output := to(nftPortals)
	if at.mark != 0 {
		output = append([]nftRule{{marked: at.mark, verdict: nftReturn, ip6: six}}, output...)
	}
	return map[string][]nftRule{
		nftPrerouting: to(nftPortals),
		nftOutput:     output,
		nftPortals:    portals,
		nftNodePorts:  lookup(nftNodePortGuards, nftNodePorts),
		nftOutside:    nftDropAllBut(family, at.insiders(family)),
	}
}

// nftDropAllBut lets pass what matches one of these.
func nftDropAllBut(family Family, these []match) (rules []nftRule) {
	for _, m := range these {
		rules = append(rules, nftRule{match: m, verdict: nftReturn, ip6: family.Is6()})
	}
	return append(rules, nftRule{verdict: nftDrop, ip6: family.Is6()})
}

// nftKey tells which element of which map: a target has up to two, one among
// the ports and one among the guards.
type nftKey struct {
	target Target
	guard  bool
}

// inMap returns the name of the map.
func (k nftKey) inMap() string {
	switch node := k.target.Addr.IsUnspecified(); {
	case node && k.guard:
		return nftNodePortGuards
	case node:
		return nftNodePorts
	case k.guard:
		return nftGuards
	}
	return nftPortals
}

// nftValue is what an element holds beside its key.
type nftValue struct {
	port    uint16     // among the ports; 0 rejects
	verdict nftVerdict // among the guards
	comment string
}

// nftElements returns the elements for a rule, and the chain that one of them
// jumps to, if any.
func nftElements(r Rule) (elements map[nftKey]nftValue, chain string, rules []nftRule) {
	family := FamilyOf(r.Target.Addr)
	comment := r.Comment
	if len(comment) > maxNFTComment {
		comment = strings.TrimSpace(comment[:maxNFTComment])
	}
	elements = map[nftKey]nftValue{}
	if r.Action != Drop || r.LocalPort != 0 {
		port := r.LocalPort
		if r.Action == Reject {
			port = rejectPort
		}
		elements[nftKey{target: r.Target}] = nftValue{port: port, comment: comment}
	}
	verdict, chain, rules := nftGuard(r, family)
	if verdict != "" {
		elements[nftKey{target: r.Target, guard: true}] = nftValue{verdict: verdict, comment: comment}
	}
	return elements, chain, rules
}

// nftGuard returns what happens to clients before they are redirected.
func nftGuard(r Rule, family Family) (verdict nftVerdict, chain string, rules []nftRule) {
	networks, all := r.Sources.in(family)
	switch {
	case r.Action == Drop && r.LocalPort == 0, !all && len(networks) == 0:
		return nftDrop, "", nil
	case all && r.Action == Drop:
		return nftJump(nftOutside), "", nil
	case all:
		return "", "", nil
	}
	words := []string{"from"}
	for _, n := range networks {
		words = append(words, prefixWord(n))
	}
	rules = nftDropAllBut(family, fromEach(networks))
	if r.Action == Drop {
		words = append([]string{"inside"}, words...)
		rules = append([]nftRule{{verdict: nftJump(nftOutside), ip6: family.Is6()}}, rules...)
	}
	chain = nftChainName(words)
	return nftJump(chain), chain, rules
}

// nftChainName makes a chain's name of words, or of their hash where they are too
// long for people.
func nftChainName(words []string) string {
	const longest = 64
	name := strings.Join(words, "-")
	if len(name) <= longest {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	return "from-" + strings.ToLower(base32.StdEncoding.EncodeToString(sum[:10]))
}
