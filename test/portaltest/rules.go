package portaltest

import (
	"math/rand/v2"
	"net/netip"

	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/types"

	"github.com/usherproxy/usher/portal"
)

// To returns a target.
func To(p portal.Protocol, addr netip.Addr, port uint16) portal.Target {
	return portal.Target{Protocol: p, Addr: addr, Port: port}
}

// Target parses an address and port, such as "10.96.0.10:80".
func Target(p portal.Protocol, addrPort string) portal.Target {
	ap := netip.MustParseAddrPort(addrPort)
	return portal.Target{Protocol: p, Addr: ap.Addr(), Port: ap.Port()}
}

func Redirect(t portal.Target, port uint16) portal.Rule {
	return portal.Rule{Target: t, Action: portal.Redirect, LocalPort: port, Comment: "default/web:http"}
}

func Reject(t portal.Target) portal.Rule {
	return portal.Rule{Target: t, Action: portal.Reject, Comment: "default/none:http"}
}

func Drop(t portal.Target) portal.Rule {
	return portal.Rule{Target: t, Action: portal.Drop, Comment: "default/local:http"}
}

// Prefixes parses prefixes, such as "10.0.0.0/8".
func Prefixes(texts ...string) (list []netip.Prefix) {
	for _, t := range texts {
		list = append(list, netip.MustParsePrefix(t))
	}
	return list
}

// ManyRules returns n rules: three quarters are cluster IPs spread over
// 10.96.0.0/12, the others node ports.
func ManyRules(n int) []portal.Rule {
	random := rand.New(rand.NewPCG(1, 2))
	rules := map[portal.Target]portal.Rule{}
	for len(rules) < n {
		t := To(portal.TCP, netip.AddrFrom4([4]byte{10, 96 | byte(random.IntN(16)), byte(random.IntN(256)), byte(random.IntN(256))}), 80)
		if len(rules)%4 == 3 {
			t = To([]portal.Protocol{portal.TCP, portal.UDP}[random.IntN(2)], portal.IPv4.Any(), uint16(30000+random.IntN(2768)))
		}
		rules[t] = Redirect(t, uint16(10000+len(rules)))
	}
	return portal.InOrder(rules)
}

// BeDone matches a portal.Result without an error and without refused or moved rules.
func BeDone() types.GomegaMatcher {
	return And(HaveField("Refused", BeEmpty()), HaveField("Moved", BeEmpty()), HaveField("Err", BeNil()))
}
