package test

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gbytes"

	"github.com/usherproxy/usher/test/lab"
)

// If a VIP is an address of the node, connections from the node's own processes have the VIP as their source.
var _ = Describe("A load balancer's IP that is an address of the node, with the portal", func() {
	for _, portal := range []string{"iptables", "nftables", "address"} {
		It(portal+": serves the node's processes as local clients if a source range has a node address", func() {
			nodeVIPSpec(portal, netip.MustParseAddr("203.0.113.10"), netip.MustParseAddr("2001:db8:1::10"))
		})
	}
})

// An ingress on bare metal is often set up like this: its process listens at a node address that is also its Service's
// external IP.
var _ = Describe("A host-network endpoint at an external IP of its Service, with the portal", func() {
	for _, portal := range []string{"iptables", "nftables"} { // with address, usher would need the port on which the process listens
		It(portal+": is served over IPv4 and IPv6, and usher's connections to it do not loop back", func() {
			if portal == "iptables" {
				missing("iptables")
			}
			l, dir := lab.New(), manifestsDir()
			var services []service
			var ingresses []*backend
			for ip, clusterIP := range map[string]string{"203.0.113.10": "10.96.0.10", "2001:db8:1::10": "fd00:10:96::10"} {
				addr := netip.MustParseAddr(ip)
				l.Node.Output("ip", "addr", "add", netip.PrefixFrom(addr, addr.BitLen()).String(), "dev", "lo")
				Eventually(func() string { return l.Node.Output("ip", "addr", "show", "dev", "lo") }).ShouldNot(ContainSubstring("tentative"))
				ingress := startBackend(l.Node, addr, 443)
				web := service{name: fmt.Sprintf("web-%d", len(services)), clusterIP: clusterIP, port: 443, spec: "  externalIPs: [\"" + ip + "\"]\n", endpoints: []netip.AddrPort{ingress.addr}}
				web.write(dir)
				services, ingresses = append(services, web), append(ingresses, ingress)
			}
			u := startUsher(l.Node, dir, "--portal="+portal, "--node-name=this", "--trace")
			for i, web := range services {
				ingress := ingresses[i]
				for _, from := range []*lab.Namespace{l.Node, l.Pods, l.Outside} {
					client := from.NewDialer(1)
					Expect(ask(client, web.vip())).To(Equal(ingress.addr))
					Expect(ask(client, ingress.addr.String())).To(Equal(ingress.addr))
				}
				Expect(ingress.connections()).To(Equal(6))
			}
			Expect(strings.Count(string(u.Out.Contents()), " established with ")).To(BeNumerically("<=", 12), "one per client")
			Expect(string(u.Err.Contents())).NotTo(ContainSubstring("is not served"), "the endpoint itself serves that address")
		})
	}
})

var _ = Describe("An external IP that is an address of the node, with the portal", func() {
	for _, portal := range []string{"iptables", "nftables", "address"} {
		for _, ip := range []string{lab.NodeOut4, lab.NodeOut6} {
			It(portal+", "+ip+": does not take ports of node ports, usher or other processes", func() {
				nodePortsSpec(portal, netip.MustParseAddr(ip))
			})
		}
	}

	It("nftables: takes a process's port with --claim-node-addresses", func() {
		l, dir := lab.New(), manifestsDir()
		startBackend(l.Node, netip.IPv4Unspecified(), 22)
		pod := startBackend(l.Pods, lab.Pod(1), 8080).addr
		service{name: "ssh", clusterIP: "10.96.0.22", port: 22, spec: "  externalIPs: [" + lab.NodeOut4 + "]\n", endpoints: []netip.AddrPort{pod}}.write(dir)
		startUsher(l.Node, dir, "--portal=nftables", "--claim-node-addresses")
		Expect(ask(l.Outside.NewDialer(1), lab.NodeOut4+":22")).To(Equal(pod))
	})
})

func nodePortsSpec(portal string, ip netip.Addr) {
	if portal == "iptables" {
		missing("iptables")
	}
	l, dir := lab.New(), manifestsDir()
	outside, anyAddr, clusterIPs, pods := l.Outside.NewDialer(2), netip.IPv4Unspecified(), "10.96.0.", []netip.Addr{lab.Pod(1), lab.Pod(2)}
	if ip.Is6() {
		anyAddr, clusterIPs, pods = netip.IPv6Unspecified(), "fd00:10:96::", []netip.Addr{lab.Pod6(1), lab.Pod6(2)}
	}
	sshd := startBackend(l.Node, anyAddr, 22).addr
	thief, honest := startBackend(l.Pods, pods[0], 8080).addr, startBackend(l.Pods, pods[1], 8080).addr
	at := func(port int) string { return net.JoinHostPort(ip.String(), strconv.Itoa(port)) }
	answers := func(port int) func() (netip.AddrPort, error) {
		return func() (netip.AddrPort, error) { return ask(outside, at(port)) }
	}
	healthy := func() error {
		c, err := outside.Dial("", at(10256), 30*time.Second)
		if err != nil {
			return err
		}
		defer c.Close()
		if err := c.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
			return err
		}
		if _, err := c.Write([]byte("GET /livez HTTP/1.0\r\n\r\n")); err != nil {
			return err
		}
		answer := make([]byte, 12)
		if _, err := io.ReadFull(c, answer); err != nil || string(answer) != "HTTP/1.0 200" {
			return fmt.Errorf("%q, %v", answer, err)
		}
		return nil
	}
	for i, port := range []int{22, 80, 10256, 30080} {
		endpoints := []netip.AddrPort{thief}
		if port == 22 { // the process's own address as an endpoint must not let clients reach the other one
			endpoints = append(endpoints, netip.AddrPortFrom(ip, 22))
		}
		service{name: "thief-" + strconv.Itoa(port), clusterIP: clusterIPs + strconv.Itoa(10+i), port: port, spec: "  externalIPs: [\"" + ip.String() + "\"]\n", endpoints: endpoints}.write(dir)
	}
	u := startUsher(l.Node, dir, "--portal="+portal, "--healthz-address=[::]:10256", "--portal-check-interval=200ms")
	Expect(answers(80)()).To(Equal(thief), "a free port")
	Expect(answers(30080)()).To(Equal(thief), "not a node port yet")
	for range 4 {
		Expect(answers(22)()).To(Equal(sshd))
	}
	Expect(healthy()).To(Succeed())

	By("adding a node port")
	nodePort := service{name: "honest", clusterIP: clusterIPs + "20", port: 80, portFields: ", nodePort: 30080", spec: "  type: NodePort\n", endpoints: []netip.AddrPort{honest}}
	nodePort.write(dir)
	Eventually(answers(30080)).WithTimeout(time.Minute).Should(Equal(honest))
	Eventually(u.Err).WithTimeout(30 * time.Second).Should(gbytes.Say("NodeAddressInUse"))
	Expect(ask(l.Node.NewDialer(1), net.JoinHostPort(clusterIPs+"13", "30080"))).To(Equal(thief), "the cluster IP with the port of the node port")

	By("removing the node port")
	Expect(os.Remove(filepath.Join(dir, "honest.yaml"))).To(Succeed())
	Eventually(answers(30080)).WithTimeout(time.Minute).Should(Equal(thief))
	if portal == "address" { // usher listens on the port itself
		return
	}
	By("starting a process that listens on the port")
	late := startBackend(l.Node, ip, 80).addr
	Eventually(answers(80)).WithTimeout(time.Minute).Should(Equal(late))
	Expect(answers(22)()).To(Equal(sshd))
	Expect(healthy()).To(Succeed())
}

func nodeVIPSpec(portal string, ips ...netip.Addr) {
	if portal == "iptables" {
		missing("iptables")
	}
	l := lab.New()
	node, pod, dir := l.Node.NewDialer(2), l.Pods.NewDialer(2), manifestsDir()
	const local = "  externalTrafficPolicy: Local\n"
	vip := func(ip netip.Addr, port int) string { return net.JoinHostPort(ip.String(), strconv.Itoa(port)) }
	endpoint := func(ip netip.Addr) netip.AddrPort { // TCP and UDP
		if ip.Is6() {
			return netip.AddrPortFrom(lab.Pod6(1), 5300)
		}
		return netip.AddrPortFrom(lab.Pod(1), 5300)
	}
	// services writes the Services of an address, which admit only clients in ranges.
	services := func(ip netip.Addr, ranges string) {
		GinkgoHelper()
		name, clusterIPs := "four", []string{"10.96.0.10", "10.96.0.11"}
		if ip.Is6() {
			name, clusterIPs = "six", []string{"fd00:10:96::10", "fd00:10:96::11"}
		}
		spec := "  type: LoadBalancer\n" + local + "  loadBalancerSourceRanges: [\"" + ranges + "\"]\nstatus: {loadBalancer: {ingress: [{ip: \"" + ip.String() + "\"}]}}\n"
		service{name: "udp-" + name, clusterIP: clusterIPs[0], port: 53, protocol: "UDP", spec: spec, endpoints: []netip.AddrPort{endpoint(ip)}}.write(dir)
		service{name: "tcp-" + name, clusterIP: clusterIPs[1], port: 80, spec: spec, endpoints: []netip.AddrPort{endpoint(ip)}}.write(dir)
	}
	for _, ip := range ips {
		l.Node.Output("ip", "addr", "add", netip.PrefixFrom(ip, ip.BitLen()).String(), "dev", "lo")
		startEcho(l.Pods, endpoint(ip).Addr())
		startBackend(l.Pods, endpoint(ip).Addr(), endpoint(ip).Port())
		services(ip, map[bool]string{false: lab.NodeOut4 + "/32", true: lab.NodeOut6 + "/128"}[ip.Is6()])
	}
	u := startUsher(l.Node, dir, "--portal="+portal, "--node-name=this")
	for _, ip := range ips {
		c, err := node.DialUDP("", vip(ip, 53))
		Expect(err).NotTo(HaveOccurred())
		Expect(c.LocalAddr().String()).To(HavePrefix(strings.TrimSuffix(vip(ip, 53), "53")), "the source address of the node's processes")
		Expect(exchange(c, []byte(who), 30*time.Second)).To(BeEquivalentTo(endpoint(ip).String()))
		Expect(ask(node, vip(ip, 80))).To(Equal(endpoint(ip)))
		other, err := pod.DialUDP("", vip(ip, 53))
		Expect(err).NotTo(HaveOccurred())
		Expect(exchange(other, []byte(who), 300*time.Millisecond)).Error().To(MatchError(os.ErrDeadlineExceeded), "the Pod is in no range")

		By("rejecting the node at " + ip.String() + " if no range has one of its addresses")
		services(ip, map[bool]string{false: "198.51.100.0/24", true: "2001:db8:2::/64"}[ip.Is6()])
		Eventually(func() error {
			c, err := node.Dial("", vip(ip, 80), 300*time.Millisecond)
			if err != nil {
				return err
			}
			defer c.Close()
			_, err = readName(c)
			return err
		}).WithTimeout(10 * time.Second).ShouldNot(Succeed())
		Eventually(func() error {
			_, err := exchange(c, []byte(who), 300*time.Millisecond)
			return err
		}).WithTimeout(10 * time.Second).Should(MatchError(os.ErrDeadlineExceeded))
		Expect(u.ExitCode()).To(Equal(-1), "usher still runs")
	}
}
