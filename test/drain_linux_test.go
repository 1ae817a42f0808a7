package test

import (
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gbytes"

	"github.com/usherproxy/usher/test/lab"
)

var _ = Describe("added and removed endpoints, with the portal", func() {
	for _, portal := range []string{"iptables", "nftables", "address"} {
		It(portal+": keep, drain and end connections, over IPv4 and IPv6", func() {
			if portal == "iptables" {
				missing("iptables")
			}
			l, dir := lab.New(), manifestsDir()
			services := []service{{name: "four", clusterIP: clusterIP}, {name: "six", clusterIP: "fd00:10:96::10"}}
			for i, at := range []func(int) netip.Addr{lab.Pod, lab.Pod6} {
				services[i].port = 80
				services[i].endpoints = []netip.AddrPort{startBackend(l.Pods, at(1), 8080).addr, startBackend(l.Pods, at(2), 8080).addr}
				services[i].write(dir)
			}
			u := startUsher(l.Node, dir, "--portal="+portal, "--trace")
			for _, s := range services {
				By("testing " + s.name)
				specifyDraining(l, u, s)
			}
		})
	}

	DescribeTable("address: a new endpoint's share grows during slow start",
		func(vip string, at func(int) netip.Addr) {
			const length = 12 * time.Second
			l, dir := lab.New(), manifestsDir()
			pod := l.Pods.NewDialer(4)
			web := service{name: "web", clusterIP: vip, port: 80, metadata: fmt.Sprintf(`, annotations: {usher.io/slow-start: %s}`, length)}
			web.endpoints = []netip.AddrPort{startBackend(l.Pods, at(1), 8080).addr}
			web.write(dir)
			startUsher(l.Node, dir, "--portal=address")
			Expect(ask(pod, web.vip())).To(Equal(web.endpoints[0]))
			fresh := startBackend(l.Pods, at(2), 8080)
			web.endpoints = append(web.endpoints, fresh.addr)
			web.write(dir)
			for fresh.connections() == 0 {
				Expect(ask(pod, web.vip())).Error().NotTo(HaveOccurred())
			}
			came := time.Now()
			// share measures at least 100 connections: a new endpoint may get its first one after several rotations.
			share := func(until time.Time) float64 {
				all, its := 0, 0
				for all < 100 || time.Now().Before(until) {
					endpoint, err := ask(pod, web.vip())
					Expect(err).NotTo(HaveOccurred())
					if all++; endpoint == fresh.addr {
						its++
					}
					time.Sleep(2 * time.Millisecond)
				}
				return float64(its) / float64(all)
			}
			first := share(came.Add(length / 4))
			out, _, _ := askUsher(l.Node, "get", "endpoints", "web")
			Expect(out).To(MatchRegexp(regexp.QuoteMeta(fresh.addr.String()) + ` +- +ready, \d+% of its share `))
			out, _, _ = askUsher(l.Node, "explain", "web")
			Expect(out).To(MatchRegexp(`new, at \d+% of its share \(slow start\)`))
			time.Sleep(time.Until(came.Add(length)))
			last := share(time.Now().Add(length / 8))
			AddReportEntry("shares of new connections", fmt.Sprintf("in the first quarter %.2f, afterwards %.2f", first, last))
			Expect(first).To(BeNumerically("<", 0.35))
			Expect(last).To(BeNumerically("~", 0.5, 0.02))
		},
		Entry("IPv4", clusterIP, lab.Pod),
		Entry("IPv6", "fd00:10:96::10", lab.Pod6),
	)
})

// specifyDraining changes the two endpoints of a Service.
func specifyDraining(l *lab.Lab, u *usher, web service) {
	pod := l.Pods.NewDialer(16)
	stays, leaves := web.endpoints[0], web.endpoints[1]
	// serve makes usher serve endpoints, and waits until usher's trace matches seen.
	serve := func(drain, seen string, endpoints ...netip.AddrPort) {
		GinkgoHelper()
		web.endpoints, web.metadata = endpoints, ""
		if drain != "" {
			web.metadata = ", annotations: {usher.io/drain-timeout: " + drain + "}"
		}
		web.write(u.manifests)
		Eventually(u.Out).WithTimeout(30 * time.Second).Should(gbytes.Say(seen))
	}
	connect := func(to netip.AddrPort) *net.TCPConn {
		GinkgoHelper()
		for range 10 {
			c, err := pod.Dial("", web.vip(), 10*time.Second)
			Expect(err).NotTo(HaveOccurred())
			DeferCleanup(c.Close)
			if name, err := readName(c); err == nil && name == to {
				return c
			}
		}
		Fail("no connection to " + to.String())
		return nil
	}
	talk := func(c *net.TCPConn) error {
		_ = c.SetDeadline(time.Now().Add(10 * time.Second))
		if _, err := c.Write([]byte("x")); err != nil {
			return err
		}
		_, err := c.Read(make([]byte, 1))
		return err
	}
	// ends waits until usher resets the idle connection silent, and returns the time since began.
	ends := func(silent *net.TCPConn, began time.Time) time.Duration {
		GinkgoHelper()
		Expect(silent.SetReadDeadline(time.Now().Add(20 * time.Second))).To(Succeed())
		Expect(silent.Read(make([]byte, 1))).Error().To(reset)
		return time.Since(began)
	}
	removed, added := "endpoint .*:8080 removed", "endpoint .*:8080 added"

	By("keeping connections without a drain timeout")
	first, other := connect(leaves), connect(stays)
	serve("", removed, stays)
	Consistently(func() error { return talk(first) }).WithTimeout(2 * time.Second).Should(Succeed())

	By("keeping a connection whose endpoint returns within the drain timeout")
	serve("1h", web.name+":main.* changed", stays)
	serve("1h", added, stays, leaves)
	serve("1s", web.name+":main.* changed", stays, leaves)
	Consistently(func() error { return talk(first) }).WithTimeout(3 * time.Second).Should(Succeed())

	By("ending an idle and a busy connection after the drain timeout")
	drained := sample(l.Node.NewDialer(1), `usher_connections_closed_total{end="endpoint-drained"}`)
	before := drained()
	silent := connect(leaves)
	began := time.Now()
	serve("1s", removed, stays)
	talks := make(chan error, 1)
	go func() {
		for {
			if err := talk(first); err != nil {
				talks <- err
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
	}()
	Expect(ends(silent, began)).To(BeNumerically(">=", time.Second))
	Eventually(talks).WithTimeout(30 * time.Second).Should(Receive(reset))
	Expect(time.Since(began)).To(BeNumerically(">=", time.Second))
	Eventually(drained).WithTimeout(30 * time.Second).Should(BeEquivalentTo(before + 2))
	Eventually(u.Out).WithTimeout(30 * time.Second).Should(gbytes.Say("closed after .*: endpoint-drained"))

	By("ending a connection to a terminating endpoint")
	serve("1s", added, stays, leaves)
	terminates := connect(leaves)
	began = time.Now()
	web.endpoints = []netip.AddrPort{stays, leaves}
	text := web.yaml()
	i := strings.LastIndex(text, "ready: true")
	writeFile(filepath.Join(u.manifests, web.name+".yaml"), text[:i]+"ready: false, serving: true, terminating: true"+text[i+len("ready: true"):])
	Eventually(u.Out).WithTimeout(30 * time.Second).Should(gbytes.Say("endpoint .*:8080 is now terminating"))
	out, _, _ := askUsher(l.Node, "explain", web.name)
	Expect(out).To(ContainSubstring("its connections end 1.0 s after termination started"))
	Expect(ends(terminates, began)).To(BeNumerically(">=", time.Second))

	Expect(talk(other)).To(Succeed())
	out, _, _ = askUsher(l.Node, "get", "services", web.name, "-o", "wide")
	Expect(out).To(ContainSubstring("drain-timeout=1s, "))
}
