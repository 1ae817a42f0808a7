package portal

import (
	"math/rand/v2"
	"net/netip"
)

// target reads "10.96.0.10:80" as a target.
func target(p Protocol, addrPort string) Target {
	ap := netip.MustParseAddrPort(addrPort)
	return Target{Protocol: p, Addr: ap.Addr(), Port: ap.Port()}
}

func redirect(t Target, port uint16) Rule {
	return Rule{Target: t, Action: Redirect, LocalPort: port, Comment: "default/web:http"}
}

func reject(t Target) Rule { return Rule{Target: t, Action: Reject, Comment: "default/none:http"} }

func drop(t Target) Rule { return Rule{Target: t, Action: Drop, Comment: "default/local:http"} }

// prefixes reads "10.0.0.0/8" as a prefix.
func prefixes(texts ...string) (list []netip.Prefix) {
	for _, t := range texts {
		list = append(list, netip.MustParsePrefix(t))
	}
	return list
}

// manyRules returns n rules: three quarters are cluster IPs spread over
// 10.96.0.0/12, the others node ports.
func manyRules(n int) []Rule {
	random := rand.New(rand.NewPCG(1, 2))
	rules := map[Target]Rule{}
	for len(rules) < n {
		t := Target{TCP, netip.AddrFrom4([4]byte{10, 96 | byte(random.IntN(16)), byte(random.IntN(256)), byte(random.IntN(256))}), 80}
		if len(rules)%4 == 3 {
			t = Target{[]Protocol{TCP, UDP}[random.IntN(2)], IPv4.Any(), uint16(30000 + random.IntN(2768))}
		}
		rules[t] = redirect(t, uint16(10000+len(rules)))
	}
	return inOrder(rules)
}
