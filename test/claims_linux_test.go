package test

import (
	"net/netip"
	"os"
	"path/filepath"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/usherproxy/usher/test/lab"
)

var _ = Describe("an address that one Service has as an external IP, and then another as its cluster IP", func() {
	for _, portal := range []string{"iptables", "nftables", "address"} {
		It("is the cluster IP's while there is one, with the "+portal+" portal", func() {
			if portal == "iptables" {
				missing("iptables")
			}
			l := lab.New()
			pod := l.Pods.NewDialer(2)
			first, second := startBackend(l.Pods, lab.Pod(1), 8080).addr, startBackend(l.Pods, lab.Pod(2), 8080).addr
			dir := manifestsDir()
			service{name: "first", clusterIP: "10.96.0.11", port: 80, spec: "  externalIPs: [10.96.0.12]\n", endpoints: []netip.AddrPort{first}}.write(dir)
			u := startUsher(l.Node, dir, "--portal="+portal)
			answers := func(vip string) func() (netip.AddrPort, error) {
				return func() (netip.AddrPort, error) { return ask(pod, vip) }
			}
			Eventually(answers("10.96.0.12:80")).WithTimeout(10 * time.Second).Should(Equal(first))

			service{name: "second", clusterIP: "10.96.0.12", port: 80, endpoints: []netip.AddrPort{second}}.write(dir)
			Eventually(answers("10.96.0.12:80")).WithTimeout(10 * time.Second).Should(Equal(second))
			Expect(answers("10.96.0.11:80")()).To(Equal(first))

			Expect(os.Remove(filepath.Join(dir, "second.yaml"))).To(Succeed())
			Eventually(answers("10.96.0.12:80")).WithTimeout(10 * time.Second).Should(Equal(first))
			u.stop()
		})
	}
})
