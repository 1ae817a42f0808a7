package portal

import (
	"net/netip"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

func TestPortal(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "portal")
}

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
