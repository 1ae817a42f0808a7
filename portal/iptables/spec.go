package iptables

import (
	"fmt"
	"math"
	"net/netip"
	"strconv"
	"strings"

	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/portal/redirect"
)

// spec is one iptables rule. It has a field for everything that usher writes. So two rules are the same exactly if
// their specs are equal, however the installed iptables prints them. Anything else in a rule is stored in other and
// makes it differ from every wanted rule.
type spec struct {
	redirect.Match                  // -s and -d; -i; -m addrtype --src-type LOCAL, --dst-type LOCAL
	proto          portal.Protocol  // -p; 0 is every protocol
	ports          portal.PortRange // --dport; the zero range is every port
	port0          bool             // --dport 0
	whole          bool             // -m multiport --dports, which matches only the first fragment
	fresh          bool             // -m conntrack --ctstate NEW
	translated     bool             // -m conntrack --ctstate DNAT
	unmarked       uint32           // -m mark ! --mark M/M; 0 is every packet
	marked         uint32           // -m mark --mark M/M; 0 is every packet
	transparent    bool             // -m socket --transparent --nowildcard
	syn            bool             // -m tcp --syn
	answers        uint32           // -m connmark --mark M/M, -m conntrack --ctdir REPLY; 0 is every packet
	comment        string           // -m comment --comment
	jump           string           // -j: a chain, DNAT, REDIRECT, DROP, ACCEPT, REJECT, RETURN, MARK, CONNMARK or NETMAP
	set            uint32           // MARK or CONNMARK --set-xmark M/M
	netmap         netip.Prefix     // NETMAP --to
	to             netip.Addr       // the address in DNAT --to-destination
	toPort         int              // the port there, or in REDIRECT --to-ports; -1 if there is none
	other          string           // all words that the other fields do not represent
}

// jumpTo returns a spec that sends everything to a chain.
func jumpTo(chain string) spec { return spec{jump: chain, toPort: -1} }

// String returns the rule in the form of iptables-save, without "-A CHAIN".
func (s spec) String() string {
	words := make([]string, 0, 16)
	add := func(w ...string) { words = append(words, w...) }
	addIf := func(is bool, w ...string) {
		if is {
			add(w...)
		}
	}
	mark := func(m uint32) string { return fmt.Sprintf("%#x/%#x", m, m) }
	addIf(s.Src.IsValid(), "-s", s.Src.String())
	addIf(s.Dst.IsValid(), "-d", s.Dst.String())
	addIf(s.In != "", "-i", string(s.In))
	addIf(s.proto != 0, "-p", s.proto.String())
	if !s.ports.IsZero() {
		if s.whole {
			add("-m multiport --dports")
		} else {
			add("-m", s.proto.String(), "--dport")
		}
		ports := strconv.Itoa(int(s.ports.First))
		if s.ports.Last != s.ports.First {
			ports += ":" + strconv.Itoa(int(s.ports.Last))
		}
		add(ports)
	}
	addIf(s.port0, "-m", s.proto.String(), "--dport 0")
	addIf(s.syn, "-m tcp --tcp-flags FIN,SYN,RST,ACK SYN")
	addIf(s.transparent, "-m socket --transparent --nowildcard")
	addIf(s.SrcLocal, "-m addrtype --src-type LOCAL")
	addIf(s.DstLocal, "-m addrtype --dst-type LOCAL")
	addIf(s.fresh, "-m conntrack --ctstate NEW")
	addIf(s.translated, "-m conntrack --ctstate DNAT")
	addIf(s.unmarked != 0, "-m mark ! --mark", mark(s.unmarked))
	addIf(s.marked != 0, "-m mark --mark", mark(s.marked))
	addIf(s.answers != 0, "-m connmark --mark", mark(s.answers), "-m conntrack --ctdir REPLY")
	addIf(s.comment != "", "-m comment --comment", `"`+s.comment+`"`)
	add("-j", s.jump)
	switch {
	case s.to.IsValid():
		add("--to-destination", netip.AddrPortFrom(s.to, uint16(s.toPort)).String())
	case s.toPort >= 0:
		add("--to-ports", strconv.Itoa(s.toPort))
	case s.set != 0:
		add("--set-xmark", mark(s.set))
	case s.netmap.IsValid():
		add("--to", s.netmap.String())
	}
	addIf(s.other != "", s.other)
	return strings.Join(words, " ")
}

// parseSpec parses the words of a rule after "-A CHAIN".
func parseSpec(words []string) spec {
	s := spec{toPort: -1}
	var other []string
	match, reply, wildcard := "", false, true
	for i := 0; i < len(words); i++ {
		word, value := words[i], ""
		if i+1 < len(words) {
			value = words[i+1]
		}
		known := true
		switch word {
		case "-s":
			s.Src, known = parsePrefix(value)
		case "-d":
			s.Dst, known = parsePrefix(value)
		case "-i":
			s.In = portal.Interfaces(value)
		case "-p":
			s.proto, known = parseProtocol(value)
		case "-m":
			switch match = value; value {
			case "tcp", "udp", "sctp", "multiport", "addrtype", "conntrack", "mark", "connmark", "comment", "socket":
			default:
				known = false
			}
		case "--dport", "--dports":
			s.ports, known = portal.ParsePorts(value)
			s.port0, s.whole = value == "0", word == "--dports"
		case "--tcp-flags":
			if known = value == "FIN,SYN,RST,ACK" && i+2 < len(words) && words[i+2] == "SYN"; known {
				s.syn = true
				i++
			}
		case "--transparent":
			s.transparent = true
			continue
		case "--nowildcard":
			wildcard = false
			continue
		case "--src-type":
			s.SrcLocal, known = true, value == "LOCAL"
		case "--dst-type":
			s.DstLocal, known = true, value == "LOCAL"
		case "--ctstate":
			s.fresh, s.translated = value == "NEW", value == "DNAT"
			known = s.fresh || s.translated
		case "--ctdir":
			reply, known = true, value == "REPLY"
		case "--mark":
			if match == "connmark" {
				s.answers, known = parseMark(value)
			} else {
				s.marked, known = parseMark(value)
			}
		case "--set-xmark":
			s.set, known = parseMark(value)
		case "--to":
			s.netmap, known = parsePrefix(value)
		case "!":
			if known = value == "--mark" && match == "mark" && i+2 < len(words); known {
				i++
				s.unmarked, known = parseMark(words[i+1])
			}
		case "--comment":
			s.comment = value
		case "-j":
			s.jump = value
		case "--reject-with": // the default is printed, too
			known = value == "icmp-port-unreachable" || value == "icmp6-port-unreachable"
		case "--to-destination":
			to, err := netip.ParseAddrPort(value)
			if known = err == nil; known {
				s.to, s.toPort = to.Addr(), int(to.Port())
			}
		case "--to-ports":
			port, err := strconv.ParseUint(value, 10, 16)
			if known = err == nil; known {
				s.toPort = int(port)
			}
		default:
			// One unknown word; the next is parsed by itself.
			other = append(other, word)
			continue
		}
		if !known {
			other = append(other, word, value)
		}
		i++
	}
	if reply != (s.answers != 0) {
		other = append(other, "--ctdir")
	}
	if wildcard == s.transparent {
		other = append(other, "--nowildcard")
	}
	s.other = strings.Join(other, " ")
	return s
}

// parsePrefix parses the value of -s or -d. Some versions of iptables omit a prefix length that covers the whole
// address. Masks that are not a prefix length are invalid.
func parsePrefix(s string) (netip.Prefix, bool) {
	if addr, err := netip.ParseAddr(s); err == nil {
		return netip.PrefixFrom(addr, addr.BitLen()), true
	}
	prefix, err := netip.ParsePrefix(s)
	return prefix, err == nil
}

// parseProtocol parses the value of -p: a name or, if /etc/protocols does not have it, a number.
func parseProtocol(s string) (portal.Protocol, bool) {
	switch s {
	case "tcp", "6":
		return portal.TCP, true
	case "udp", "17":
		return portal.UDP, true
	case "sctp", "132":
		return portal.SCTP, true
	}
	return 0, false
}

// parseMark parses the value of --mark or --set-xmark. It accepts only a mask that equals the mark. iptables-save omits
// a mask of all bits.
func parseMark(s string) (mark uint32, ok bool) {
	value, mask, masked := strings.Cut(s, "/")
	v, err := strconv.ParseUint(value, 0, 32)
	return uint32(v), err == nil && v != 0 && (mask == value || !masked && v == math.MaxUint32)
}
