package iptables

import (
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/portal/redirect"
)

// chainPrefix begins the name of each of usher's chains. Any chain with this prefix is usher's, whichever version or
// process created it.
const chainPrefix = "USHER-"

// contents is usher's part of one table, wanted or installed: chains by name with their rules, and the jumps into them
// from other chains.
type contents struct {
	chains map[string][]spec
	jumps  []jumpRule
}

// jumpRule is a rule that jumps from another chain into one of usher's.
type jumpRule struct {
	chain    string // the chain that has the rule
	position int    // the rule's number in that chain, from 1; 0 if it was not read from the kernel
	spec     spec
	raw      string // as printed by iptables-save, without "-A CHAIN"; "" if it was not read
}

// plain returns the jump as if it had not been read from the kernel.
func (j jumpRule) plain() jumpRule { return jumpRule{chain: j.chain, spec: j.spec} }

// parseSave parses the output of iptables-save into contents by table. It skips other lines, such as the warnings that
// the nft variant prints.
func parseSave(text string) map[string]*contents {
	tables := map[string]*contents{}
	var table *contents
	position := map[string]int{}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		switch {
		case line == "" || line[0] == '#':
		case line[0] == '*':
			table = &contents{chains: map[string][]spec{}}
			tables[line[1:]] = table
			clear(position)
		case table == nil:
		case line[0] == ':':
			if name, _, _ := strings.Cut(line[1:], " "); strings.HasPrefix(name, chainPrefix) {
				table.chains[name] = nil
			}
		case strings.HasPrefix(line, "-A "):
			chain, raw, _ := strings.Cut(line[len("-A "):], " ")
			position[chain]++
			if strings.HasPrefix(chain, chainPrefix) {
				table.chains[chain] = append(table.chains[chain], parseSpec(words(raw)))
			} else if strings.Contains(raw, chainPrefix) {
				if s := parseSpec(words(raw)); strings.HasPrefix(s.jump, chainPrefix) {
					table.jumps = append(table.jumps, jumpRule{chain, position[chain], s, raw})
				}
			}
		}
	}
	return tables
}

// incompatible matches the line that iptables-nft-save prints in place of a table that has nftables rules which it does
// not understand. Its exit status is then 0.
var incompatible = regexp.MustCompile("(?m)^# Table `(.+)' is incompatible")

// unreadable returns the tables in tableNames that iptables-save could not show in its output.
func unreadable(text string) (tables []string) {
	for _, match := range incompatible.FindAllStringSubmatch(text, -1) {
		if slices.Contains(tableNames, match[1]) {
			tables = append(tables, match[1])
		}
	}
	return tables
}

// words splits a rule as iptables-restore does: at spaces outside double quotes, with backslash as escape.
func words(line string) []string {
	out := make([]string, 0, 20)
	for line != "" {
		if line[0] == ' ' {
			line = line[1:]
			continue
		}
		end := strings.IndexByte(line, ' ')
		if end < 0 {
			end = len(line)
		}
		if strings.IndexByte(line[:end], '"') < 0 && strings.IndexByte(line[:end], '\\') < 0 {
			out = append(out, line[:end])
			line = line[end:]
			continue
		}
		word, rest := quotedWord(line)
		out, line = append(out, word), rest
	}
	return out
}

func quotedWord(line string) (word, rest string) {
	var b strings.Builder
	quoted := false
	for i := 0; i < len(line); i++ {
		switch c := line[i]; {
		case c == '"':
			quoted = !quoted
		case c == '\\' && i+1 < len(line):
			i++
			b.WriteByte(line[i])
		case c == ' ' && !quoted:
			return b.String(), line[i:]
		default:
			b.WriteByte(c)
		}
	}
	return b.String(), ""
}

// allRules returns the rules of all chains.
func allRules(chains map[string][]spec) []spec {
	return slices.Concat(slices.Collect(maps.Values(chains))...)
}

// rulesInTables returns the portal rules that the tables of a family implement.
func rulesInTables(tables map[string]*contents, family portal.Family) map[portal.Target]portal.Rule {
	rules := map[portal.Target]portal.Rule{}
	if nat := tables[tableNAT]; nat != nil {
		for _, s := range allRules(nat.chains) {
			if t, ok := s.target(family); ok && s.toPort >= 0 {
				r := portal.Rule{Target: t, LocalPort: uint16(s.toPort), Comment: s.comment}
				if s.toPort == redirect.RejectPort {
					r.Action = portal.Reject
				}
				rules[t] = r
			}
		}
	}
	if mangle := tables[tableMangle]; mangle != nil {
		for _, s := range allRules(mangle.chains) {
			t, ok := s.target(family)
			if !ok {
				continue
			}
			r := rules[t]
			r.Target, r.Comment = t, s.comment
			switch s.jump {
			case "DROP", chainOutside:
				r.Action = portal.Drop
			default:
				r.Sources = sourcesLetIn(mangle.chains[s.jump])
			}
			rules[t] = r
		}
	}
	return rules
}

// sourcesLetIn returns the networks that a chain does not drop.
func sourcesLetIn(chain []spec) portal.Sources {
	var networks []netip.Prefix
	for _, s := range chain {
		if s.jump == "RETURN" && s.Src.IsValid() {
			networks = append(networks, s.Src)
		}
	}
	return portal.SourcesOf(networks)
}

// target returns the target whose packets s matches. ok is false if s matches packets of several targets.
func (s spec) target(family portal.Family) (t portal.Target, ok bool) {
	if s.proto == 0 || s.ports.IsZero() || s.ports.First != s.ports.Last || s.Dst.IsValid() && !s.Dst.IsSingleIP() {
		return t, false
	}
	t = portal.Target{Protocol: s.proto, Addr: family.Any(), Port: s.ports.First}
	if s.Dst.IsValid() {
		t.Addr = s.Dst.Addr()
	}
	return t, true
}
