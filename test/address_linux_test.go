package test

import (
	"net"
	"net/netip"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/usherproxy/usher/test/lab"
)

var _ = Describe("The address portal on a node with a process on *:80", func() {
	It("names the process, serves other ports, and serves port 80 once the process has ended", func() {
		l, dir := lab.New(), manifestsDir()
		pod, pod6 := startBackend(l.Pods, lab.Pod(1), 8080).addr, startBackend(l.Pods, lab.Pod6(1), 8080).addr
		var everywhere net.Listener
		l.Node.Do(func() (err error) {
			everywhere, err = net.Listen("tcp", ":80")
			return err
		})
		services := []service{
			{name: "four", clusterIP: "10.96.0.10", port: 80, endpoints: []netip.AddrPort{pod}},
			{name: "six", clusterIP: "fd00:10:96::10", port: 80, endpoints: []netip.AddrPort{pod6}},
			{name: "other", clusterIP: "10.96.0.11", port: 443, endpoints: []netip.AddrPort{pod}},
		}
		for _, s := range services {
			s.write(dir)
		}
		u := startUsher(l.Node, dir, "--portal=address", "--portal-check-interval=200ms")
		said := string(u.Err.Contents())
		Expect(said).To(MatchRegexp(`cannot listen on 10\.96\.0\.10:80: address already in use: \S+ \(process \d+\) listens on`))
		Expect(said).To(MatchRegexp(`Processes that listen on all addresses .*10\.96\.0\.10:80/tcp with \S+ \(process \d+\) on`))
		client := l.Pods.NewDialer(1)
		Expect(ask(client, services[2].vip())).To(Equal(pod))

		Expect(everywhere.Close()).To(Succeed())
		for _, s := range services {
			Eventually(func() (netip.AddrPort, error) { return ask(client, s.vip()) }).WithTimeout(time.Minute).Should(Equal(s.endpoints[0]))
		}
	})
})
