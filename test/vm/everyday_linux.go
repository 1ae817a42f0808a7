//lint:file-ignore ST1001 checks are specs, and read like those in test files

package vm

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/netip"
	"regexp"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gbytes"
	"github.com/onsi/gomega/gexec"

	"github.com/usherproxy/usher/test/lab"
)

// everydayChecks cover a node's everyday work, with each portal: they show whether a kernel or CPU is suitable.
var everydayChecks = func() (all []Check) {
	for _, portal := range []string{"iptables", "nftables", "address"} {
		all = append(all, Check{fmt.Sprintf("TCP and UDP over IPv4 and IPv6 through the %s portal: served, retried, complete, and taken over", portal),
			func() { everyday(portal) }})
	}
	return all
}()

// startTCPEcho starts a TCP server that sends the client address it sees, and then echoes the data.
func startTCPEcho(ns *lab.Namespace, addr netip.Addr) netip.AddrPort {
	GinkgoHelper()
	l := ns.Listen(netip.AddrPortFrom(addr, 8080).String())
	lab.Serve(l, func(c net.Conn) {
		fmt.Fprintln(c, c.RemoteAddr().(*net.TCPAddr).IP)
		_, _ = io.Copy(c, c) // until the client sends EOF
	})
	return l.Addr().(*net.TCPAddr).AddrPort()
}

// conversation is a connection to a server that startTCPEcho started.
type conversation struct {
	*net.TCPConn
	in   *bufio.Reader
	sees string // the client address that the server sees
}

func converse(from *lab.Namespace, local string, to netip.AddrPort) conversation {
	GinkgoHelper()
	c, err := from.NewDialer(1).Dial(local, to.String(), patience)
	Expect(err).NotTo(HaveOccurred(), from.Name)
	DeferCleanup(c.Close)
	Expect(c.SetDeadline(time.Now().Add(patience))).To(Succeed())
	in := bufio.NewReader(c)
	line, err := in.ReadString('\n')
	Expect(err).NotTo(HaveOccurred(), from.Name)
	return conversation{c, in, line[:len(line)-1]}
}

// end sends the last data, and expects it back, followed by EOF.
func (c conversation) end(last []byte) {
	GinkgoHelper()
	Expect(c.SetDeadline(time.Now().Add(patience))).To(Succeed())
	go func() {
		_, _ = c.Write(last) // missing data is detected below
		_ = c.CloseWrite()
	}()
	got, err := io.ReadAll(c.in)
	Expect(err).NotTo(HaveOccurred())
	Expect(bytes.Equal(got, last)).To(BeTrue(), "%d of %d bytes came back", len(got), len(last))
}

// newClient connects the node with a Pod that has a dedicated interface there.
func newClient(n *node) *lab.Namespace {
	GinkgoHelper()
	client := n.AddHost("to-client")
	addresses(n.Node, "to-client", "10.245.0.1/24", "fd00:245::1/64")
	addresses(client, "eth0", "10.245.0.2/24", "fd00:245::2/64")
	route(client, "default", "10.245.0.1", "default", "fd00:245::1")
	forwards(n.Node)
	return client
}

// client returns the address of the Pod that newClient connects.
func (f family) client() netip.Addr {
	if f.vip.Is4() {
		return netip.MustParseAddr("10.245.0.2")
	}
	return netip.MustParseAddr("fd00:245::2")
}

func everyday(portal string) {
	node := newNode(ipv4)
	client := newClient(node)
	var checks []*familyCheck
	for _, ip := range families {
		checks = append(checks, newFamilyCheck(node.of(ip)))
	}
	flags := []string{"--portal=" + portal, "--cluster-cidr=10.244.0.0/15,fd00:244::/31"}
	node.start(flags...)
	first := node.usher
	Expect(string(first.Err.Contents())).NotTo(ContainSubstring("level=error"))

	var open []conversation
	for _, c := range checks {
		c.served()
		if portal != "address" {
			Expect(converse(client, "", c.tcp.vip).sees).To(Equal(c.ip.client().String()), "the client's own address")
		}
		open = append(open, converse(node.Pods, "", c.tcp.vip))
	}
	for _, c := range checks {
		for _, s := range []service{c.tcp, c.udp} {
			Expect(string(first.Out.Contents())).To(MatchRegexp(`attempt 1 → ` + regexp.QuoteMeta(s.endpoints[0].String()) + ` .*connection refused`))
		}
	}
	node.start(append(flags, "--take-over")...)
	Eventually(first.Err).WithTimeout(eventually).Should(gbytes.Say("has taken over"))
	for i, c := range checks {
		converse(node.Outside, "", c.tcp.vip).end([]byte("to the successor"))
		open[i].end(bulk)
	}
	Eventually(first).WithTimeout(eventually).Should(gexec.Exit(0))
}

// bulk is large enough to be spliced.
var bulk = bytes.Repeat([]byte("0123456789abcde"), 2<<20/15)

// familyCheck has a TCP and a UDP Service of one family. The first endpoint of each refuses.
type familyCheck struct {
	*node
	tcp, udp service
}

func newFamilyCheck(n *node) *familyCheck {
	GinkgoHelper()
	tcp := service{name: "web" + n.ip.option, vip: netip.AddrPortFrom(n.ip.vip, 80), protocol: "TCP",
		endpoints: []netip.AddrPort{netip.AddrPortFrom(n.ip.pod(2), 8080), startTCPEcho(n.Pods, n.ip.pod(1))}}
	udp := dns(netip.AddrPortFrom(n.ip.pod(2), 5300), startEcho(n.Pods, n.ip.pod(1)))
	udp.name, udp.vip = udp.name+n.ip.option, netip.AddrPortFrom(n.ip.vip.Next(), 53)
	n.put(tcp)
	n.put(udp)
	return &familyCheck{n, tcp, udp}
}

// served expects that both Services are served to Pods, to the node and from outside.
func (c *familyCheck) served() {
	GinkgoHelper()
	for _, from := range []*lab.Namespace{c.Pods, c.Node, c.Outside} {
		converse(from, "", c.tcp.vip).end(bulk)
		for _, size := range []int{1, 1473, 65507} {
			sent := bytes.Repeat([]byte{byte(size)}, size)
			got, err := exchange(dialUDP(from, c.udp), sent)
			Expect(err).NotTo(HaveOccurred(), "%s, %s, %d bytes", c.ip.name, from.Name, size)
			Expect(bytes.Equal(got, sent)).To(BeTrue(), "%s, %s, %d bytes", c.ip.name, from.Name, size)
		}
	}
}
