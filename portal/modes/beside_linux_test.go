package modes

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/portal/address"
	"github.com/usherproxy/usher/portal/iptables"
	"github.com/usherproxy/usher/portal/nftables"
	. "github.com/usherproxy/usher/test/portaltest"
)

// choose creates a portal by the name of its mode, alongside those of other modes.
func choose(n *Net, mode string, opts portal.Options) portal.Portal {
	GinkgoHelper()
	var p portal.Portal
	n.Node.Do(func() {
		var err error
		p, err = New(Background, mode, opts)
		Expect(err).NotTo(HaveOccurred())
	})
	return p
}

var _ = Describe("the modes alongside each other", func() {
	var n *Net
	BeforeEach(func() { n = NewNet() })
	ours := func() string {
		return n.Node.Sh("ip route show table local proto 117; ip -6 route show table local proto 117")
	}
	list := func(n *Net) string { return n.Node.Sh("nft list table ip usher 2>/dev/null || true") }

	for _, variant := range []string{"nft", "legacy"} {
		Context("with iptables-"+variant, func() {
			opts := portal.Options{IPTablesVariant: variant}
			BeforeEach(func() {
				if _, err := exec.LookPath("iptables-" + variant); err != nil {
					Skip("needs iptables-" + variant)
				}
			})

			It("keep rules of other programs in a cleanup, and remove those of a crashed process", func() {
				n.Node.Sh(strings.ReplaceAll(`
					iptables -t nat -N KUBE-MARK-MASQ
					iptables -t nat -A POSTROUTING -s 10.0.0.0/8 -m comment --comment "to USHER-X \"y\"" -j MASQUERADE
					iptables -t nat -A PREROUTING -p 99 -j ACCEPT
					iptables -A INPUT -p 99 -j ACCEPT`, "iptables", "iptables-"+variant))
				before := n.Node.State()
				p := choose(n, iptables.Mode.Name, opts)
				n.Publish(p, "web", Web4, Web6)
				n.Apply(p, []portal.Rule{Drop(DNS4)}, nil)
				n.Node.Sh("ip route add local 10.96.9.9 dev lo table local proto 117")
				n.Node.Do(func() {
					removed, err := Cleanup(Background, nil)
					Expect(err).NotTo(HaveOccurred())
					Expect(removed).To(HaveLen(7), "nat, mangle and filter of both families, routes: %v", removed)
				})
				Expect(n.Node.State()).To(Equal(before))
				n.Node.Do(func() {
					Expect(Cleanup(Background, nil)).To(BeEmpty())
				})
			})
		})
	}

	It("report missing tools and kernel modules", func() {
		n := NewNet()
		path := os.Getenv("PATH")
		DeferCleanup(os.Setenv, "PATH", path)
		Expect(os.Setenv("PATH", GinkgoT().TempDir())).To(Succeed())
		n.Node.Do(func() {
			_, err := New(Background, iptables.Mode.Name, portal.Options{})
			Expect(err).To(MatchError(And(ContainSubstring("portal iptables does not work here"), ContainSubstring("install the iptables package"))))
			p, err := New(Background, Auto, portal.Options{})
			Expect(err).NotTo(HaveOccurred())
			Expect(p.Mode()).To(Equal(nftables.Mode.Name))

			// This is the output of iptables-nft for any command if the kernel has no nf_tables.
			complaint := "#!/bin/sh\necho 'iptables/1.8.9 Failed to initialize nft: Protocol not supported' >&2\nexit 1\n"
			Expect(os.WriteFile(filepath.Join(os.Getenv("PATH"), "iptables"), []byte(complaint), 0o755)).To(Succeed())
			_, err = New(Background, iptables.Mode.Name, portal.Options{})
			Expect(err).To(MatchError(And(ContainSubstring("modprobe nf_tables"), Not(ContainSubstring("install the iptables package")))))
		})
		Expect(os.Setenv("PATH", path)).To(Succeed())
		Expect(slices.Contains(Names(), choose(n, Auto, portal.Options{}).Mode())).To(BeTrue())
	})
	It("keep tables of other programs in a cleanup, and remove nftables rules of a crashed process", func() {
		n.Node.Sh(`nft 'table ip filter { chain input { type filter hook input priority 0; tcp dport 9 drop; }; }
			table inet usher { chain x { }; }
			table ip usher-too { map portals { type ipv4_addr : verdict; }; }'`)
		before := n.Node.State()
		n.Publish(choose(n, nftables.Mode.Name, portal.Options{}), "web", Web4, Web6)
		n.Node.Do(func() {
			removed, err := Cleanup(Background, nil)
			Expect(err).NotTo(HaveOccurred())
			Expect(removed).To(HaveExactElements("nftables: table ip usher", "nftables: table ip6 usher", ContainSubstring("2 local routes")))
		})
		Expect(n.Node.State()).To(Equal(before))
		n.Node.Do(func() { Expect(Cleanup(Background, nil)).To(BeEmpty()) })
	})

	It("include nftables, which auto selects if there is no iptables", func() {
		path := os.Getenv("PATH")
		DeferCleanup(os.Setenv, "PATH", path)
		Expect(os.Setenv("PATH", "/nowhere")).To(Succeed())
		p := choose(n, Auto, portal.Options{})
		Expect(p.Mode()).To(Equal(nftables.Mode.Name))
		n.Publish(p, "web", Web4)
		Expect(n.Pod.Ask(Web4)).To(Equal("web 10.96.0.10:80"))
		n.Remove(p)
	})

	for _, other := range []string{iptables.Mode.Name, address.Mode.Name} {
		It("let mode nftables replace, and be replaced by, mode "+other, func() {
			before := n.Node.State()
			n.Publish(choose(n, other, portal.Options{}), "old", Web4)
			p := choose(n, nftables.Mode.Name, portal.Options{})
			n.Publish(p, "new", Web4)
			Expect(n.Pod.Ask(Web4)).To(HavePrefix("new"))
			Expect(n.Node.Sh("iptables-nft-save; iptables-legacy-save")).NotTo(ContainSubstring("USHER"))
			Expect(n.Node.Sh("ip route show table local proto 117")).NotTo(ContainSubstring("10.96.0.10"))
			last := choose(n, other, portal.Options{})
			n.Publish(last, "last", To(portal.TCP, VIP4, 81))
			Expect(list(n)).To(BeEmpty())
			Expect(n.Pod.Ask(To(portal.TCP, VIP4, 81))).To(HavePrefix("last"))
			n.Remove(last)
			Expect(n.Node.State()).To(Equal(before))
		})
	}

	It("let mode address remove iptables rules, but keep the redirect address while it runs", func() {
		before := n.Node.State()
		n.Publish(choose(n, iptables.Mode.Name, portal.Options{}), "old", Web4)
		p := choose(n, address.Mode.Name, portal.Options{})
		n.Publish(p, "new", Web4)
		Expect(n.Check(p)).To(BeZero())
		Expect(ours()).To(ContainSubstring("192.0.0.117"))
		Expect(n.Pod.Ask(Web4)).To(HavePrefix("new"))
		n.Remove(p)
		Expect(n.Node.State()).To(Equal(before))
	})
})
