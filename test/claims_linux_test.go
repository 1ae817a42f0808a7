package test

import (
	"net/netip"
	"os"
	"path/filepath"
	"syscall"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/usherproxy/usher/test/lab"
)

var _ = Describe("a client that connects before its Service exists", func() {
	for _, portal := range []string{"iptables", "nftables", "address"} {
		It("is connected by a retransmitted SYN; an external IP may become another's cluster IP, with the "+portal+" portal", func() {
			if portal == "iptables" {
				missing("iptables")
			}
			l, dir := lab.New(), manifestsDir()
			forward(l.Node) // the node's default gateway is a router outside that drops the SYNs
			startBackend(l.Pods, lab.Pod(1), 8080)
			startBackend(l.Pods, lab.Pod6(1), 8080)
			write := func(name, ip4, ip6 string) {
				GinkgoHelper()
				service{name: name, clusterIP: ip4, port: 80, endpoints: []netip.AddrPort{netip.AddrPortFrom(lab.Pod(1), 8080)}}.write(dir)
				service{name: name + "6", clusterIP: ip6, port: 80, endpoints: []netip.AddrPort{netip.AddrPortFrom(lab.Pod6(1), 8080)}}.write(dir)
			}
			write("other", "10.96.0.11", "fd00:10:96::11") // its rules enable conntrack
			u := startUsher(l.Node, dir, "--portal="+portal)

			vips := []string{"10.96.0.12:80", "[fd00:10:96::12]:80"}
			connected := make(chan error, len(vips))
			client := l.Pods.NewDialer(len(vips))
			for _, vip := range vips {
				go func() {
					c, err := client.Dial("", vip, 25*time.Second)
					if err == nil {
						c.Close()
					}
					connected <- err
				}()
			}
			for _, tracked := range []string{"ipv4", "ipv6"} {
				if portal != "address" {
					Eventually(func() string { return l.Node.Output("cat", "/proc/net/nf_conntrack") }).WithTimeout(30 * time.Second).
						Should(MatchRegexp(tracked + " .* SYN_SENT .*[:.]0{0,2}12 "))
				}
			}
			write("web", "10.96.0.12", "fd00:10:96::12")
			for range vips {
				Eventually(connected).WithTimeout(30 * time.Second).Should(Receive(Not(HaveOccurred())))
			}

			By("serving the Service with the cluster IP while that exists")
			pod := l.Pods.NewDialer(2)
			first, second := netip.AddrPortFrom(lab.Pod(1), 8080), startBackend(l.Pods, lab.Pod(2), 8080).addr
			service{name: "first", clusterIP: "10.96.0.21", port: 80, spec: "  externalIPs: [10.96.0.22]\n", endpoints: []netip.AddrPort{first}}.write(dir)
			answers := func(vip string) func() (netip.AddrPort, error) {
				return func() (netip.AddrPort, error) { return ask(pod, vip) }
			}
			Eventually(answers("10.96.0.22:80")).WithTimeout(30 * time.Second).Should(Equal(first))

			service{name: "second", clusterIP: "10.96.0.22", port: 80, endpoints: []netip.AddrPort{second}}.write(dir)
			Eventually(answers("10.96.0.22:80")).WithTimeout(30 * time.Second).Should(Equal(second))
			Expect(answers("10.96.0.21:80")()).To(Equal(first))

			Expect(os.Remove(filepath.Join(dir, "second.yaml"))).To(Succeed())
			Eventually(answers("10.96.0.22:80")).WithTimeout(30 * time.Second).Should(Equal(first))
			u.stop()
		})
	}
})

var _ = Describe("a client that connects while another program has flushed the rules", func() {
	It("is connected by a retransmitted SYN after the repair", func() {
		missing("iptables")
		l, dir := lab.New(), manifestsDir()
		forward(l.Node)
		startBackend(l.Pods, lab.Pod(1), 8080)
		service{name: "web", clusterIP: "10.96.0.12", port: 80, endpoints: []netip.AddrPort{netip.AddrPortFrom(lab.Pod(1), 8080)}}.write(dir)
		u := startUsher(l.Node, dir, "--portal=iptables")
		Expect(u.Session.Command.Process.Signal(syscall.SIGSTOP)).To(Succeed())
		l.Node.Output("iptables", "-t", "nat", "-F")
		connected := make(chan error, 1)
		client := l.Pods.NewDialer(1)
		go func() {
			c, err := client.Dial("", "10.96.0.12:80", 25*time.Second)
			if err == nil {
				c.Close()
			}
			connected <- err
		}()
		Eventually(func() string { return l.Node.Output("cat", "/proc/net/nf_conntrack") }).WithTimeout(30 * time.Second).
			Should(MatchRegexp("ipv4 .* SYN_SENT .*dst=10.96.0.12 "))
		Expect(u.Session.Command.Process.Signal(syscall.SIGCONT)).To(Succeed())
		Eventually(connected).WithTimeout(30 * time.Second).Should(Receive(Not(HaveOccurred())))
	})
})
