package portal

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

// choose makes a portal by the name of its mode, beside those of other modes.
func choose(n *testNet, mode string, opts Options) Portal {
	GinkgoHelper()
	var p Portal
	n.node.do(func() {
		var err error
		p, err = New(background, mode, opts)
		Expect(err).NotTo(HaveOccurred())
	})
	return p
}

var _ = Describe("the modes beside each other", func() {
	var n *testNet
	BeforeEach(func() { n = newTestNet() })
	ours := func() string {
		return n.node.sh("ip route show table local proto 117; ip -6 route show table local proto 117")
	}
	list := func(n *testNet) string { return n.node.sh("nft list table ip usher 2>/dev/null || true") }

	for _, variant := range []string{"nft", "legacy"} {
		Context("with iptables-"+variant, func() {
			opts := Options{IPTablesVariant: variant}
			BeforeEach(func() {
				if _, err := exec.LookPath("iptables-" + variant); err != nil {
					Skip("needs iptables-" + variant)
				}
			})

			It("leaves what others had, and removes what a process that died has left", func() {
				n.node.sh(strings.ReplaceAll(`
					iptables -t nat -N KUBE-MARK-MASQ
					iptables -t nat -A POSTROUTING -s 10.0.0.0/8 -m comment --comment "to USHER-X \"y\"" -j MASQUERADE
					iptables -t nat -A PREROUTING -p 99 -j ACCEPT
					iptables -A INPUT -p 99 -j ACCEPT`, "iptables", "iptables-"+variant))
				before := n.node.state()
				p := choose(n, iptablesMode.Name, opts)
				n.publish(p, "web", web4, web6)
				n.apply(p, []Rule{drop(dns4)}, nil)
				n.node.sh("ip route add local 10.96.9.9 dev lo table local proto 117")
				n.node.do(func() {
					removed, err := Cleanup(background, nil)
					Expect(err).NotTo(HaveOccurred())
					Expect(removed).To(HaveLen(4), "nat and mangle, nat of IPv6, routes: %v", removed)
				})
				Expect(n.node.state()).To(Equal(before))
				n.node.do(func() {
					Expect(Cleanup(background, nil)).To(BeEmpty())
				})
			})
		})
	}

	It("says what is missing", func() {
		n := newTestNet()
		path := os.Getenv("PATH")
		DeferCleanup(os.Setenv, "PATH", path)
		Expect(os.Setenv("PATH", GinkgoT().TempDir())).To(Succeed())
		n.node.do(func() {
			_, err := New(background, iptablesMode.Name, Options{})
			Expect(err).To(MatchError(And(ContainSubstring("portal iptables does not work here"), ContainSubstring("install the iptables package"))))
			p, err := New(background, Auto, Options{})
			Expect(err).NotTo(HaveOccurred())
			Expect(p.Mode()).To(Equal(nftablesMode.Name))

			// As iptables-nft does where the kernel has no nf_tables, whatever is asked.
			complaint := "#!/bin/sh\necho 'iptables/1.8.9 Failed to initialize nft: Protocol not supported' >&2\nexit 1\n"
			Expect(os.WriteFile(filepath.Join(os.Getenv("PATH"), "iptables"), []byte(complaint), 0o755)).To(Succeed())
			_, err = New(background, iptablesMode.Name, Options{})
			Expect(err).To(MatchError(And(ContainSubstring("modprobe nf_tables"), Not(ContainSubstring("install the iptables package")))))
		})
		Expect(os.Setenv("PATH", path)).To(Succeed())
		Expect(slices.Contains(Modes(), choose(n, Auto, Options{}).Mode())).To(BeTrue())
	})
	It("leaves what others had, and removes what a process with mode nftables that died has left", func() {
		n.node.sh(`nft 'table ip filter { chain input { type filter hook input priority 0; tcp dport 9 drop; }; }
			table inet usher { chain x { }; }
			table ip usher-too { map portals { type ipv4_addr : verdict; }; }'`)
		before := n.node.state()
		n.publish(choose(n, nftablesMode.Name, Options{}), "web", web4, web6)
		n.node.do(func() {
			removed, err := Cleanup(background, nil)
			Expect(err).NotTo(HaveOccurred())
			Expect(removed).To(HaveExactElements("nftables: table ip usher", "nftables: table ip6 usher", ContainSubstring("2 local routes")))
		})
		Expect(n.node.state()).To(Equal(before))
		n.node.do(func() { Expect(Cleanup(background, nil)).To(BeEmpty()) })
	})

	It("is chosen where there is no iptables", func() {
		path := os.Getenv("PATH")
		DeferCleanup(os.Setenv, "PATH", path)
		Expect(os.Setenv("PATH", "/nowhere")).To(Succeed())
		p := choose(n, Auto, Options{})
		Expect(p.Mode()).To(Equal(nftablesMode.Name))
		n.publish(p, "web", web4)
		Expect(n.pod.ask(web4)).To(Equal("web 10.96.0.10:80"))
		n.remove(p)
	})

	for _, other := range []string{iptablesMode.Name, addressMode.Name} {
		It("follows and is followed by mode "+other, func() {
			before := n.node.state()
			n.publish(choose(n, other, Options{}), "old", web4)
			p := choose(n, nftablesMode.Name, Options{})
			n.publish(p, "new", web4)
			Expect(n.pod.ask(web4)).To(HavePrefix("new"))
			Expect(n.node.sh("iptables-nft-save; iptables-legacy-save")).NotTo(ContainSubstring("USHER"))
			Expect(n.node.sh("ip route show table local proto 117")).NotTo(ContainSubstring("10.96.0.10"))
			last := choose(n, other, Options{})
			n.publish(last, "last", Target{TCP, vip4, 81})
			Expect(list(n)).To(BeEmpty())
			Expect(n.pod.ask(Target{TCP, vip4, 81})).To(HavePrefix("last"))
			n.remove(last)
			Expect(n.node.state()).To(Equal(before))
		})
	}

	It("takes out the rules that mode iptables left, but while it runs not the landing of connections in flight", func() {
		before := n.node.state()
		n.publish(choose(n, iptablesMode.Name, Options{}), "old", web4)
		p := choose(n, addressMode.Name, Options{})
		n.publish(p, "new", web4)
		Expect(n.check(p)).To(BeZero())
		Expect(ours()).To(ContainSubstring("192.0.0.117"))
		Expect(n.pod.ask(web4)).To(HavePrefix("new"))
		n.remove(p)
		Expect(n.node.state()).To(Equal(before))
	})
})
