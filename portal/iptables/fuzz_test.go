package iptables

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/portal/redirect"
	. "github.com/usherproxy/usher/test/portaltest"
	"github.com/usherproxy/usher/test/portaltest/redirects"
)

// FuzzParseSave passes possible output of iptables-save to parseSave, and the result to diff. For any rules on a
// node, one run of iptables-restore must install the wanted rules.
func FuzzParseSave(f *testing.F) {
	f.Add(saved)
	f.Add("*nat\n:USHER-PORTALS - [0:0]\n-A PREROUTING -j USHER-PORTALS\n-A PREROUTING -j USHER-PORTALS\nCOMMIT\n")
	f.Add("*mangle\n:USHER-DROP -\n-A OUTPUT -m conntrack --ctstate NEW -j USHER-DROP\n-A USHER-DROP -s 10.0.0.0/8 -j RETURN\n")
	f.Add("*nat\n-A USHER-X -d 1.2.3.4 -p tcp --dport 1:2 -j DNAT --to-destination [fd00::1]:0\n")
	local := Drop(Target(portal.TCP, "10.96.0.11:80"))
	local.LocalPort = 40002
	wanted := layOut([]portal.Rule{Redirect(Target(portal.TCP, "10.96.0.10:80"), 40001), local}, redirects.Usual)
	f.Fuzz(func(t *testing.T, text string) {
		installed := parseSave(text)
		rulesInTables(installed, portal.IPv4)
		for name, c := range installed {
			checkOurs(t, name, c)
		}
		for _, toFront := range []bool{true, false} {
			c := diff(installed, wanted, nil, toFront)
			now := restored(t, installed, c.script)
			if again := diff(now, wanted, nil, false); again.script != "" {
				t.Errorf("from\n%s\nby\n%s\nthere remains\n%s", text, c.script, again.script)
			}
		}
	})
}

// checkOurs checks that no foreign chains or jumps count as usher's.
func checkOurs(t *testing.T, table string, c *contents) {
	for chain := range c.chains {
		if !strings.HasPrefix(chain, chainPrefix) {
			t.Errorf("table %s: chain %q is not ours", table, chain)
		}
	}
	for _, j := range c.jumps {
		if strings.HasPrefix(j.chain, chainPrefix) || !strings.HasPrefix(j.spec.jump, chainPrefix) || strings.Contains(j.raw, "\n") {
			t.Errorf("table %s: %+v is no jump from elsewhere to us", table, j)
		}
	}
}

// restored applies a script to installed, as iptables-restore --noflush does.
func restored(t *testing.T, installed map[string]*contents, script string) map[string]*contents {
	now := map[string]*contents{}
	for name, c := range installed {
		now[name] = &contents{chains: maps.Clone(c.chains), jumps: slices.Clone(c.jumps)}
	}
	var table *contents
	for line := range strings.Lines(script) {
		line = strings.TrimSuffix(line, "\n")
		verb, rest, _ := strings.Cut(line, " ")
		chain, raw, _ := strings.Cut(rest, " ")
		switch {
		case line[0] == '*':
			if now[line[1:]] == nil {
				now[line[1:]] = &contents{chains: map[string][]spec{}}
			}
			table = now[line[1:]]
		case line[0] == ':':
			table.chains[verb[1:]] = nil
		case verb == "-A":
			table.chains[chain] = append(table.chains[chain], parseSpec(words(raw)))
		case verb == "-X":
			delete(table.chains, chain)
		case verb == "-D":
			i := slices.IndexFunc(table.jumps, func(j jumpRule) bool { return j.chain == chain && j.raw == raw })
			if i < 0 {
				t.Fatalf("%q finds nothing to delete", line)
			}
			table.jumps = slices.Delete(table.jumps, i, i+1)
		case verb == "-I":
			position, spec, _ := strings.Cut(raw, " ")
			n, err := strconv.Atoi(position)
			if err != nil {
				t.Fatalf("%q has no position", line)
			}
			table.jumps = append(table.jumps, jumpRule{chain, n, parseSpec(words(spec)), spec})
		case line != "COMMIT":
			t.Fatalf("%q is nothing for iptables-restore", line)
		}
	}
	return now
}

// FuzzParseSpec looks for rules that parse differently after they have been written again.
func FuzzParseSpec(f *testing.F) {
	for line := range strings.Lines(saved) {
		if _, rule, ok := strings.Cut(strings.TrimSpace(line), "-A "); ok {
			f.Add(rule)
		}
	}
	f.Add("X -i cali+ -j RETURN")
	f.Add(`X -s 10.0.0.0/8 -m addrtype --src-type LOCAL -j DNAT --to-destination [fd75:7368:6572::1]:0`)
	f.Fuzz(func(t *testing.T, line string) {
		s := parseSpec(words(line))
		if s.other != "" || s.comment != redirect.PlainComment(s.comment) || strings.ContainsAny(s.jump+string(s.In), " \"\\") ||
			s.jump == "" || s.proto == 0 && !s.ports.IsZero() {
			return // usher does not write such rules
		}
		if again := parseSpec(words(s.String())); again != s {
			t.Errorf("%q is %+v, but when written as %q it is %+v", line, s, s, again)
		}
	})
}
