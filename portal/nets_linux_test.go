package portal

import (
	"context"
	"net/netip"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

var (
	vip4, vip6         = netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("fd96::10")
	web4, web6         = Target{TCP, vip4, 80}, Target{TCP, vip6, 80}
	dns4, dns6         = Target{UDP, vip4, 53}, Target{UDP, vip6, 53}
	webNode4, webNode6 = Target{TCP, IPv4.Any(), 30080}, Target{TCP, IPv6.Any(), 30080}
	nodeIP4, nodeIP6   = netip.MustParseAddr("10.1.0.1"), netip.MustParseAddr("fd01::1")
	localhost4         = netip.MustParseAddr("127.0.0.1")
	background         = context.Background()
)

// soon is how long to wait for an answer that is not to come.
const soon = 200 * time.Millisecond

// open makes a portal on the node, where there are no portals of other modes.
func (n *testNet) open(mode Mode, opts Options) Portal {
	GinkgoHelper()
	var p Portal
	n.node.do(func() {
		var err error
		p, err = mode.New(background, opts)
		Expect(err).NotTo(HaveOccurred())
	})
	return p
}

// publish opens the listeners for targets and the portal to them.
func (n *testNet) publish(p Portal, word string, targets ...Target) (binds []Bind, rules []Rule) {
	GinkgoHelper()
	binds = p.Listen("default/web", targets)
	for i, b := range binds {
		port := n.node.serve(b, word)
		binds[i].Addr = netip.AddrPortFrom(b.Addr.Addr(), port)
		for _, t := range b.Targets {
			rules = append(rules, Rule{Target: t, LocalPort: port, Comment: "default/" + word + ":http"})
		}
	}
	n.apply(p, rules, nil)
	return binds, rules
}

func (n *testNet) apply(p Portal, set []Rule, gone []Target) {
	GinkgoHelper()
	n.node.do(func() { Expect(p.Apply(background, set, gone)).To(Succeed()) })
}

func (n *testNet) check(p Portal) int {
	GinkgoHelper()
	var repaired int
	n.node.do(func() {
		var err error
		repaired, err = p.Check(background)
		Expect(err).NotTo(HaveOccurred())
	})
	return repaired
}

func (n *testNet) remove(p Portal) {
	GinkgoHelper()
	n.node.do(func() { Expect(p.Remove(background)).To(Succeed()) })
}

func at(t Target, addr netip.Addr) Target { t.Addr = addr; return t }
