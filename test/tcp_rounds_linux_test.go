package test

import (
	"fmt"
	"net/netip"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/usherproxy/usher/test/lab"
)

var _ = Describe("Nodes whose endpoints are node ports of each other, with", func() {
	for _, portal := range []string{"iptables", "nftables", "address"} {
		It("the "+portal+" portal, open a bounded number of TCP connections for one client", func() { roundsSpec(portal) })
	}
})

func roundsSpec(portal string) {
	if portal == "iptables" {
		missing("iptables")
	}
	l := lab.New()
	forward(l.Node) // for the router below
	pod, node, outside := l.Pods.NewDialer(1), l.Node.NewDialer(1), l.Outside.NewDialer(1)
	at := func(addr string, port uint16) []netip.AddrPort {
		return []netip.AddrPort{netip.AddrPortFrom(netip.MustParseAddr(addr), port)}
	}
	// Each Service that loops has a counterpart whose endpoint merely listens on the number of a node port.
	var vips, others [2]string
	dirs := [2]string{manifestsDir(), manifestsDir()}
	for i, nodes := range [][2]string{{lab.NodeOut4, lab.Outside4}, {lab.NodeOut6, lab.Outside6}} {
		port := uint16(30080 + i)
		web := service{name: fmt.Sprint("round", i), clusterIP: []string{"10.96.0.10", "fd00:10:96::10"}[i], port: 80,
			portFields: fmt.Sprint(", nodePort: ", port), spec: "  type: NodePort\n"}
		other := service{name: fmt.Sprint("other", i), clusterIP: []string{"10.96.0.11", "fd00:10:96::11"}[i], port: 80,
			endpoints: []netip.AddrPort{startBackend(l.Pods, []netip.Addr{lab.Pod(1), lab.Pod6(1)}[i], port).addr}}
		for on, dir := range dirs {
			web.endpoints = at(nodes[1-on], port)
			web.write(dir)
			other.write(dir)
		}
		vips[i], others[i] = web.vip(), other.vip()
	}
	startUsher(l.Node, dirs[0], "--portal="+portal)
	startUsher(l.Outside, dirs[1], "--portal="+portal)
	count := func(name string) float64 { return metric(node, name) + metric(outside, name) }

	for i, vip := range vips {
		before := count("usher_connections_accepted_total")
		_, err := ask(pod, vip)
		Expect(err).To(reset, vip)
		Expect(count("usher_connections_accepted_total")-before).To(And(BeNumerically(">", 8), BeNumerically("<", 1000)), "64 is the Pod's hop limit, and a slow answer adds an attempt; %s", vip)
		Eventually(func() float64 { return count("usher_connections_open") }).WithTimeout(30 * time.Second).Should(BeZero())

		Expect(ask(pod, others[i])).Error().NotTo(HaveOccurred())
		Expect(ask(outside, others[i])).Error().NotTo(HaveOccurred(), "the endpoint is behind a router, the node")
	}
	Expect(count(`usher_connections_closed_total{end="attempts-failed"}`)).To(BeNumerically(">=", len(vips)), "the last connection of each chain")
}
