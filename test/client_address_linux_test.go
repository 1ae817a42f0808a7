package test

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/types"

	"github.com/usherproxy/usher/proxy/admin/api"
	"github.com/usherproxy/usher/test/lab"
)

// These specs verify the client address that an endpoint sees.
var _ = Describe("An endpoint", func() {
	for _, portal := range []string{"iptables", "nftables"} {
		for _, family := range []string{"IPv4", "IPv6"} {
			Describe(fmt.Sprintf("behind the %s portal, over %s,", portal, family), func() { clientAddressSpecs(portal, family == "IPv6") })
		}
	}
})

// seenLab is a node with Pods on a bridge, a Pod behind a dedicated interface, a host
// outside, and a Pod on another node. Every endpoint address has a TCP and a UDP
// server that returns the source address it sees.
type seenLab struct {
	*lab.Lab
	six      bool
	services string // the folder of manifests
	u        *usher
	// Clients: two Pods on the bridge, the Pod with a dedicated interface, the host outside,
	// the Pod on the other node, and the node.
	neighbours [2]seenHost
	routed     seenHost
	outside    seenHost
	elsewhere  seenHost
	node       seenHost
}

// seenHost is a host and the address that it uses in these specs.
type seenHost struct {
	ns   *lab.Namespace
	addr netip.Addr
	d    *lab.Dialer
}

const seenPort = 8080

func newSeenLab(six bool) *seenLab {
	GinkgoHelper()
	l := &seenLab{Lab: lab.New(), six: six, services: manifestsDir()}
	l.Node.Output("sh", "-c", `ip link add cni0 type bridge; ip link set cni0 up
		ip addr add 10.245.0.1/24 dev cni0; ip addr add fd00:245::1/64 dev cni0 nodad
		echo 1 >/proc/sys/net/ipv4/ip_forward; echo 1 >/proc/sys/net/ipv6/conf/all/forwarding
		echo 1 >/proc/sys/net/ipv4/conf/all/rp_filter`)
	for i := range l.neighbours {
		port := fmt.Sprint("port", i)
		ns := l.AddHost(port)
		l.Node.Output("ip", "link", "set", port, "master", "cni0", "up")
		ns.Output("sh", "-c", fmt.Sprintf(`ip addr add 10.245.0.%[1]d/24 dev eth0; ip addr add fd00:245::%[1]d/64 dev eth0 nodad; ip link set eth0 up
			ip route add default via 10.245.0.1; ip -6 route add default via fd00:245::1`, i+2))
		l.neighbours[i] = l.host(ns, fmt.Sprintf("10.245.0.%d", i+2), fmt.Sprintf("fd00:245::%d", i+2))
	}
	ns := l.AddHost("veth9")
	l.Node.Output("sh", "-c", `ip link set veth9 up; ip addr add 169.254.1.1/32 dev veth9; ip addr add fe80::1/64 dev veth9 nodad
		ip route add 10.245.1.9/32 dev veth9; ip -6 route add fd00:245:1::9/128 dev veth9`)
	ns.Output("sh", "-c", `ip addr add 10.245.1.9/32 dev eth0; ip addr add fd00:245:1::9/128 dev eth0 nodad; ip link set eth0 up
		ip route add 169.254.1.1 dev eth0 scope link; ip route add default via 169.254.1.1; ip -6 route add default via fe80::1 dev eth0`)
	l.Node.WaitForCarrier("cni0", "port0", "port1", "veth9") // specs compare their state in the kernel
	l.routed = l.host(ns, "10.245.1.9", "fd00:245:1::9")
	l.Outside.Output("sh", "-c", `ip addr add 10.246.0.2/32 dev lo; ip addr add fd00:246::2/128 dev lo nodad`)
	l.outside = l.host(l.Outside, lab.Outside4, lab.Outside6)
	l.elsewhere = l.host(l.Outside, "10.246.0.2", "fd00:246::2")
	l.node = l.host(l.Node, "10.245.0.1", "fd00:245::1")
	for _, h := range []seenHost{l.neighbours[0], l.neighbours[1], l.routed, l.elsewhere, l.node} {
		h.serve()
	}
	return l
}

func (l *seenLab) host(ns *lab.Namespace, four, six string) seenHost {
	GinkgoHelper()
	if l.six {
		four = six
	}
	return seenHost{ns, netip.MustParseAddr(four), ns.NewDialer(2)}
}

// serve sends each client the source address that the host sees.
func (h seenHost) serve() {
	GinkgoHelper()
	at := netip.AddrPortFrom(h.addr, seenPort).String()
	lab.Serve(h.ns.Listen(at), func(c net.Conn) { fmt.Fprintln(c, c.RemoteAddr()) })
	lab.ServeUDP(h.ns.ListenUDP(at), func(_ []byte, from netip.AddrPort) []byte { return []byte(from.String()) })
}

// start starts usher with a TCP and a UDP Service for each endpoint. Endpoint number i has
// the node ports 30000+i and 30100+i.
func (l *seenLab) start(portal string, args ...string) {
	GinkgoHelper()
	if portal == "iptables" {
		missing("iptables")
	}
	for i, h := range l.endpoints() {
		node := "this"
		if h.addr == l.elsewhere.addr {
			node = "other"
		}
		for protocol, offset := range map[string]int{"TCP": 0, "UDP": 100} {
			service{name: fmt.Sprint(strings.ToLower(protocol), i), clusterIP: l.clusterIP(protocol, i), port: 80, protocol: protocol,
				spec: "  type: NodePort\n", portFields: fmt.Sprintf(", nodePort: %d", 30000+offset+i),
				endpoints: []netip.AddrPort{netip.AddrPortFrom(h.addr, seenPort)}, node: node}.write(l.services)
		}
	}
	l.u = startUsher(l.Node, l.services, append([]string{"--portal=" + portal, "--node-name=this", "--cluster-cidr=10.245.0.0/16,fd00:245::/32"}, args...)...)
}

func (l *seenLab) endpoints() []seenHost {
	return []seenHost{l.neighbours[0], l.neighbours[1], l.routed, l.elsewhere, l.node}
}

func (l *seenLab) clusterIP(protocol string, i int) string {
	service := map[string]int{"TCP": 1, "UDP": 2}[protocol]*10 + i
	if l.six {
		return fmt.Sprintf("fd00:10:96::%d", service)
	}
	return fmt.Sprintf("10.96.0.%d", service)
}

// seenBy returns the address that an endpoint sees for a client, or the zero Addr if TCP
// and UDP differ. The client uses the cluster IP, or the node port if it is not on this
// node.
func (l *seenLab) seenBy(endpoint, client seenHost) netip.Addr {
	GinkgoHelper()
	var seen [2]netip.AddrPort
	for i, h := range l.endpoints() {
		if h.addr != endpoint.addr {
			continue
		}
		tcp, udp := net.JoinHostPort(l.clusterIP("TCP", i), "80"), net.JoinHostPort(l.clusterIP("UDP", i), "80")
		if client.ns == l.Outside {
			nodeOut := lab.NodeOut4
			if l.six {
				nodeOut = lab.NodeOut6
			}
			tcp, udp = net.JoinHostPort(nodeOut, fmt.Sprint(30000+i)), net.JoinHostPort(nodeOut, fmt.Sprint(30100+i))
		}
		var err error
		seen[0], err = askFrom(client.d, client.addr.String(), tcp)
		Expect(err).NotTo(HaveOccurred(), "TCP from %s by %s to %s", client.addr, tcp, endpoint.addr)
		seen[1], err = askWho(client.d, client.addr.String(), udp)
		Expect(err).NotTo(HaveOccurred(), "UDP from %s by %s to %s", client.addr, udp, endpoint.addr)
	}
	if seen[0].Addr() != seen[1].Addr() { // it changed between the two requests
		return netip.Addr{}
	}
	return seen[0].Addr()
}

// explained returns the endpoint that 'usher explain' prints for a TCP client, with the source address it would see.
func (l *seenLab) explained(endpoint, client seenHost) api.Candidate {
	GinkgoHelper()
	i := slices.IndexFunc(l.endpoints(), func(h seenHost) bool { return h.addr == endpoint.addr })
	out, errs, code := askUsher(l.Node, "explain", fmt.Sprint("tcp", i), "--client="+client.addr.String(), "-o", "json")
	Expect(code).To(BeZero(), errs)
	var x api.Explanation
	Expect(json.Unmarshal([]byte(out), &x)).To(Succeed())
	Expect(x.Order).To(HaveLen(1))
	return x.Order[0]
}

// isNode matches the node's addresses.
func (l *seenLab) isNode() types.GomegaMatcher {
	return Satisfy(func(a netip.Addr) bool {
		return strings.Contains(l.Node.Output("ip", "-o", "addr"), " "+a.String()+"/")
	})
}

func clientAddressSpecs(portal string, six bool) {
	var l *seenLab
	BeforeEach(func() { l = newSeenLab(six) })

	It("sees its client's address if replies pass through this node, otherwise the node's address, as 'usher explain' predicts", func() {
		missing("nft")
		udp := l.clusterIP("UDP", 9)
		service{name: "refusing", clusterIP: udp, port: 80, protocol: "UDP", node: "this", endpoints: []netip.AddrPort{
			netip.AddrPortFrom(l.neighbours[1].addr, 9), netip.AddrPortFrom(l.neighbours[1].addr, seenPort),
		}}.write(l.services)
		tcp := l.clusterIP("TCP", 9)
		dead := l.host(l.neighbours[1].ns, "10.245.0.3", "fd00:245::3").addr
		service{name: "mixed", clusterIP: tcp, port: 80, node: "this", endpoints: []netip.AddrPort{
			netip.AddrPortFrom(l.neighbours[1].addr, seenPort), netip.AddrPortFrom(dead, 9), netip.AddrPortFrom(l.routed.addr, seenPort),
		}}.write(l.services)
		l.start(portal)
		neighbour, other := l.neighbours[0], l.neighbours[1]
		for _, client := range []seenHost{neighbour, l.routed} { // Pods of this node
			for _, endpoint := range []seenHost{other, l.elsewhere, l.node} {
				Expect(l.seenBy(endpoint, client)).To(Equal(client.addr), "%s → %s", client.addr, endpoint.addr)
			}
		}
		Expect(l.seenBy(l.routed, neighbour)).To(Equal(neighbour.addr))
		at, err := askFrom(l.outside.d, l.outside.addr.String(), net.JoinHostPort(map[bool]string{false: lab.NodeOut4, true: lab.NodeOut6}[six], "30000"))
		Expect(err).NotTo(HaveOccurred())
		Expect(at.Port()).To(And(BeNumerically(">=", 8192), BeNumerically("<", 32768)), "a port outside the client's ephemeral range")
		for _, client := range []seenHost{l.outside, l.elsewhere} {
			for _, endpoint := range []seenHost{neighbour, l.routed, l.node} {
				Expect(l.seenBy(endpoint, client)).To(Equal(client.addr), "%s → %s", client.addr, endpoint.addr)
			}
		}
		Expect(l.seenBy(l.elsewhere, l.outside)).To(l.isNode(), "neither is on this node")
		Expect(l.seenBy(neighbour, neighbour)).To(l.isNode(), "a Pod that connects to itself")
		Expect(l.seenBy(neighbour, l.node)).To(l.isNode(), "the node itself")

		By("predicting it")
		for _, c := range []struct {
			client, endpoint seenHost
			seen             string
		}{
			{neighbour, other, "client"}, {neighbour, l.routed, "client"}, {neighbour, l.elsewhere, "client"}, {neighbour, l.node, "client"},
			{neighbour, neighbour, "node-hairpin"}, {l.node, other, "node-itself"},
			{l.outside, other, "client"}, {l.outside, l.node, "client"}, {l.outside, l.elsewhere, "node-elsewhere"},
		} {
			isClient := Equal(c.client.addr)
			if c.seen != "client" {
				isClient = l.isNode()
			}
			Expect(l.explained(c.endpoint, c.client)).To(HaveField("Source", c.seen), "%s → %s", c.client.addr, c.endpoint.addr)
			Expect(l.seenBy(c.endpoint, c.client)).To(isClient, "%s → %s", c.client.addr, c.endpoint.addr)
		}
		out, errs, _ := askUsher(l.Node, "explain", "tcp3")
		Expect(out).To(ContainSubstring("the endpoint sees its client's own address if the client is a Pod on this node or the endpoint is on this node, else this node's"), errs)

		By("over UDP after another endpoint has refused")
		for _, client := range []seenHost{neighbour, l.routed, l.outside} {
			for range 4 {
				seen, err := askWho(client.d, client.addr.String(), net.JoinHostPort(udp, "80"))
				Expect(err).NotTo(HaveOccurred())
				Expect(seen.Addr()).To(Equal(client.addr))
			}
		}

		By("in thousands of connections, many of them retried after a dead endpoint")
		const workers, each = 200, 20
		var wrong atomic.Pointer[string]
		var group sync.WaitGroup
		d := neighbour.ns.NewDialer(workers)
		for range workers {
			group.Go(func() {
				for range each {
					seen, err := ask(d, net.JoinHostPort(tcp, "80"))
					if err != nil || seen.Addr() != neighbour.addr {
						text := fmt.Sprint(seen, " ", err)
						wrong.Store(&text)
					}
				}
			})
		}
		group.Wait()
		Expect(wrong.Load()).To(BeNil())

		By("with a firewall that allows only some clients by address, as with a NetworkPolicy")
		ip := map[bool]string{false: "ip", true: "ip6"}[six]
		other.ns.Output("nft", "add table inet netpol; add chain inet netpol input { type filter hook input priority filter; policy drop; }; "+
			"add rule inet netpol input meta l4proto icmpv6 accept; add rule inet netpol input "+ip+" saddr "+l.routed.addr.String()+" accept")
		Expect(l.seenBy(other, l.routed)).To(Equal(l.routed.addr))
		c, err := neighbour.d.Dial("", net.JoinHostPort(l.clusterIP("TCP", 1), "80"), 5*time.Second)
		if err == nil {
			_, err = readName(c)
			c.Close()
		}
		Expect(err).To(HaveOccurred())
		Expect(l.seenBy(other, l.routed)).To(Equal(l.routed.addr))
	})

	It("sees the client's address again after rules and routes were flushed", func() {
		l.start(portal, "--portal-check-interval=1s")
		neighbour, other := l.neighbours[0], l.neighbours[1]
		Expect(l.seenBy(other, neighbour)).To(Equal(neighbour.addr))
		before := lab.State(l.Node)
		l.Node.Output("sh", "-c", `nft flush ruleset
			for f in -4 -6; do for p in 115 116 117 118; do ip $f rule del pref $p; done; ip $f route flush table 117117; done`)
		Eventually(func() string { return lab.State(l.Node) }).WithTimeout(time.Minute).Should(Equal(before))
		Expect(l.seenBy(other, neighbour)).To(Equal(neighbour.addr))
		Expect(l.seenBy(neighbour, l.outside)).To(Equal(l.outside.addr))
	})

	It("sees the client's address on a bridge that comes up after usher has started", func() {
		l.Node.Output("ip", "link", "set", "cni0", "down")
		l.Node.Output("sh", "-c", "ip addr flush dev cni0")
		l.start(portal)
		l.Node.Output("sh", "-c", `ip link set cni0 up; ip addr add 10.245.0.1/24 dev cni0; ip addr add fd00:245::1/64 dev cni0 nodad`)
		neighbour, other := l.neighbours[0], l.neighbours[1]
		Eventually(func() netip.Addr { return l.seenBy(other, neighbour) }).WithTimeout(time.Minute).Should(Equal(neighbour.addr))
	})

	It("sees the node's address for clients on its bridge while bridge netfilter is off", func() {
		bridgeNetfilter := func(on int) {
			l.Node.Output("sh", "-c", fmt.Sprintf("for f in iptables ip6tables; do echo %d >/proc/sys/net/bridge/bridge-nf-call-$f; done", on))
		}
		bridgeNetfilter(0)
		l.start(portal)
		neighbour, other := l.neighbours[0], l.neighbours[1]
		Expect(l.seenBy(other, neighbour)).To(l.isNode())
		Expect(l.seenBy(other, l.routed)).To(Equal(l.routed.addr), "not on the bridge")
		bridgeNetfilter(1)
		Eventually(func() netip.Addr { return l.seenBy(other, neighbour) }).WithTimeout(time.Minute).Should(Equal(neighbour.addr))
	})

	It("sees the node's address with --client-address=node, and cleanup leaves no kernel state", func() {
		before := lab.State(l.Node)
		l.start(portal, "--client-address=node")
		neighbour, other := l.neighbours[0], l.neighbours[1]
		Expect(l.seenBy(other, neighbour)).To(l.isNode())
		Expect(lab.State(l.Node)).NotTo(ContainSubstring("117117"))
		l.u.stop()
		l.start(portal)
		Expect(l.seenBy(other, neighbour)).To(Equal(neighbour.addr))
		l.u.stop()
		l.Node.Do(exec.Command(usherBinary, "cleanup").Run)
		Expect(lab.State(l.Node)).To(Equal(before))
	})

	It("sees the client's address despite src_valid_mark, AWS VPC CNI rules and flannel masquerading", func() {
		// WireGuard's wg-quick sets src_valid_mark; the AWS VPC CNI adds such rules for Pods on additional interfaces.
		l.Node.Output("sh", "-c", `echo 1 >/proc/sys/net/ipv4/conf/all/src_valid_mark
			ip rule add pref 512 to 10.245.0.0/16 lookup main; for p in 10.245.0.2 10.245.1.9; do ip rule add pref 1536 from $p lookup 99; done; ip route add default via `+lab.Outside4+` table 99`)
		missing("iptables")
		// flannel's last rule
		l.Node.Output("iptables", "-t", "nat", "-A", "POSTROUTING", "!", "-s", "10.244.0.0/15", "-d", "10.244.0.0/15", "-j", "MASQUERADE")
		l.Node.Output("ip6tables", "-t", "nat", "-A", "POSTROUTING", "!", "-s", "fd00:244::/31", "-d", "fd00:244::/31", "-j", "MASQUERADE")
		l.start(portal)
		neighbour, other := l.neighbours[0], l.neighbours[1]
		for _, client := range []seenHost{neighbour, l.routed} {
			Expect(l.seenBy(other, client)).To(Equal(client.addr))
			Expect(l.seenBy(l.elsewhere, client)).To(Equal(client.addr))
		}
	})

	It("sees the node's address if the CNI masquerades egress, and 'usher diagnose' reports it", func() {
		missing("iptables")
		tables, network := "iptables", "10.245.0.0/16"
		if six {
			tables, network = "ip6tables", "fd00:245::/32"
		}
		l.Node.Output(tables, "-t", "nat", "-A", "POSTROUTING", "-s", network, "-o", "to-outside", "-j", "MASQUERADE")
		l.start(portal)
		Expect(l.seenBy(l.elsewhere, l.routed)).To(l.isNode())
		out, _, code := askUsher(l.Node, "diagnose")
		Expect(code).To(Equal(1), out)
		Expect(strings.Join(strings.Fields(out), " ")).To(ContainSubstring("endpoint " + netip.AddrPortFrom(l.elsewhere.addr, seenPort).String() + " does not see its client's address"))
		Expect(l.seenBy(l.neighbours[1], l.neighbours[0])).To(Equal(l.neighbours[0].addr))
	})
}
