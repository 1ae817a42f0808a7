package iptables

import (
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"math/bits"
	"net/netip"
	"strings"

	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/portal/redirect"
)

// fill puts rules, all of which are in p, into chain, or into chains below it.
func (l *layouter) fill(chain string, p place, rules []portal.Rule) {
	if len(rules) <= maxFlat {
		for _, r := range rules {
			l.chains[chain] = append(l.chains[chain], l.specs(r)...)
		}
		return
	}
	for _, part := range p.split(rules) {
		if len(part.rules) == 1 { // a separate chain would cost more than it saves
			l.fill(chain, part.place, part.rules)
			continue
		}
		name := part.place.chain()
		l.chains[chain] = append(l.chains[chain], part.place.spec(name))
		l.fill(name, part.place, part.rules)
	}
}

// place is a part of the space of targets. The zero place is all of it; zero fields match everything.
type place struct {
	prefix netip.Prefix
	proto  portal.Protocol
	ports  portal.PortRange
}

// part is a place with its rules.
type part struct {
	place place
	rules []portal.Rule
}

// split divides p, which has at least two rules, into at least two parts.
func (p place) split(rules []portal.Rule) []part {
	first, last := rules[0].Target, rules[len(rules)-1].Target
	if first.Addr != last.Addr {
		// Common bits are rounded down to a multiple of splitBits, so that parts stay where they are when rules are
		// added or removed.
		common := commonBits(first.Addr, last.Addr)
		length := common - common%splitBits + splitBits
		return group(rules, func(t portal.Target) place {
			prefix, _ := t.Addr.Prefix(length)
			return place{prefix: prefix}
		})
	}
	// One address from here on; that of node ports needs no match.
	if !first.Addr.IsUnspecified() {
		p.prefix = netip.PrefixFrom(first.Addr, first.Addr.BitLen())
	}
	if first.Protocol != last.Protocol {
		return group(rules, func(t portal.Target) place {
			return place{prefix: p.prefix, proto: t.Protocol}
		})
	}
	common := bits.LeadingZeros16(first.Port ^ last.Port)
	rest := 16 - (common - common%splitBits + splitBits)
	return group(rules, func(t portal.Target) place {
		low := t.Port >> rest << rest
		return place{prefix: p.prefix, proto: t.Protocol, ports: portal.PortRange{First: low, Last: low | (1<<rest - 1)}}
	})
}

// group splits rules where the place changes.
func group(rules []portal.Rule, where func(portal.Target) place) []part {
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

// spec returns the jump for packets in p to the chain of that name.
func (p place) spec(chain string) spec {
	s := jumpTo(chain)
	s.Dst, s.proto, s.ports = p.prefix, p.proto, p.ports
	return s
}

// chain returns a descriptive name for p's chain: USHER-10.96.0.0-16, USHER-tcp-30000-30015.
func (p place) chain() string {
	var words []string
	if p.prefix.IsValid() {
		words = append(words, redirect.PrefixWord(p.prefix))
	}
	if p.proto != 0 {
		words = append(words, p.proto.String())
	}
	if !p.ports.IsZero() {
		words = append(words, fmt.Sprint(p.ports.First), fmt.Sprint(p.ports.Last))
	}
	return chainName(words...)
}

// chainName joins words to a chain's name. If it is too long, it contains their hash instead.
func chainName(words ...string) string {
	name := chainPrefix + strings.Join(words, "-")
	if len(name) <= maxChainName {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	return chainPrefix + base32.StdEncoding.EncodeToString(sum[:10])
}

// commonBits returns the number of leading bits that a and b share, which differ and are of one family.
func commonBits(a, b netip.Addr) int {
	x, y := a.AsSlice(), b.AsSlice()
	i := 0
	for x[i] == y[i] {
		i++
	}
	return i*8 + bits.LeadingZeros8(x[i]^y[i])
}
