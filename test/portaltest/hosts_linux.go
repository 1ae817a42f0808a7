package portaltest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"time"
	"unsafe"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/portal/kernel"
	"github.com/usherproxy/usher/proxy/forward"
	"github.com/usherproxy/usher/test/lab"
)

// Host is a network namespace that represents a host.
type Host struct {
	ns   *lab.Namespace
	Mark int // of packets that Ask and AskFrom send
}

// NewHost creates a host with only a loopback interface, which is up. The host
// is removed when the spec ends.
func NewHost() *Host {
	GinkgoHelper()
	lab.Long()
	if os.Geteuid() != 0 {
		Skip("needs root to make network namespaces")
	}
	return &Host{ns: lab.NewNamespace("host")}
}

// Do runs f on a thread in this host's namespace.
func (h *Host) Do(f func()) {
	GinkgoHelper()
	h.ns.Do(func() error {
		defer GinkgoRecover()
		f()
		return nil
	})
}

// Sh runs a shell command on this host and returns its output.
func (h *Host) Sh(command string) string {
	GinkgoHelper()
	var out []byte
	h.Do(func() {
		var err error
		out, err = exec.Command("sh", "-c", command).CombinedOutput()
		Expect(err).NotTo(HaveOccurred(), "%s: %s", command, out)
	})
	return string(out)
}

// Connect connects a new interface of h to the new eth0 of other by a veth pair.
func (h *Host) Connect(name string, other *Host) {
	GinkgoHelper()
	h.ns.Connect(name, other.ns)
}

// Net is a node with one Pod behind a veth. The node's default route also
// points to the Pod, so that the node has a route for VIPs.
type Net struct {
	Node, Pod *Host
}

func NewNet() *Net {
	GinkgoHelper()
	n := &Net{NewHost(), NewHost()}
	n.Node.Connect("pod0", n.Pod)
	n.Node.Sh(`ip addr add 10.1.0.1/24 dev pod0; ip addr add fd01::1/64 dev pod0 nodad; ip link set pod0 up
		ip route add default via 10.1.0.2`)
	n.Pod.Sh(`ip addr add 10.1.0.2/24 dev eth0; ip addr add fd01::2/64 dev eth0 nodad; ip link set eth0 up
		ip route add default via 10.1.0.1; ip -6 route add default via fd01::1`)
	n.Node.Sh(`ip -6 route add default via fd01::2`)
	n.settled(1)
	return n
}

// settled waits until the routes of the node's veth pairs show that these are up. The
// routes change until then, and specs compare them.
func (n *Net) settled(cables int) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		g.Expect(n.Node.Sh("ip route show table all")).NotTo(ContainSubstring("linkdown"))
		g.Expect(strings.Count(n.Node.Sh("ip -6 route show table local"), "local fe80:")).To(Equal(cables))
	}).WithTimeout(10 * time.Second).Should(Succeed())
}

// AddOutside returns a host outside of the node's network that reaches VIPs through
// the node, which is 10.2.0.1 and fd02::1 there.
func (n *Net) AddOutside() *Host {
	GinkgoHelper()
	outside := NewHost()
	n.Node.Connect("up0", outside)
	n.Node.Sh(`ip addr add 10.2.0.1/24 dev up0; ip addr add fd02::1/64 dev up0 nodad; ip link set up0 up`)
	outside.Sh(`ip addr add 10.2.0.2/24 dev eth0; ip addr add fd02::2/64 dev eth0 nodad; ip link set eth0 up
		ip route add default via 10.2.0.1; ip -6 route add default via fd02::1`)
	n.settled(2)
	return outside
}

// AddBarePod returns a Pod behind an interface of the node that has no IPv4
// address, as Calico and the AWS VPC CNI create them: the node has a route for
// each Pod, and the Pod's IPv4 gateway is an address that no interface has.
func (n *Net) AddBarePod(number int, kind BareKind) *Host {
	GinkgoHelper()
	pod := NewHost()
	name := fmt.Sprintf("bare%d", number)
	n.Node.Connect(name, pod)
	script := func(text string) string {
		return strings.NewReplacer("$IF", name, "$N", fmt.Sprint(number)).Replace(text)
	}
	mac := func(h *Host, name string) (address string) {
		h.Do(func() {
			link, err := net.InterfaceByName(name)
			Expect(err).NotTo(HaveOccurred())
			address = link.HardwareAddr.String()
		})
		return address
	}
	n.Node.Sh(script("sysctl -qw net.ipv4.conf.$IF.rp_filter=1"))
	if kind == StaticNeighbours {
		n.Node.Sh(script("ip link set $IF addrgenmode none"))
	} else {
		n.Node.Sh(script("sysctl -qw net.ipv4.conf.$IF.proxy_arp=1; ip addr add fe80::1/64 dev $IF nodad"))
	}
	n.Node.Sh(script("ip link set $IF up; ip route add 10.1.9.$N/32 dev $IF; ip -6 route add fd01:9::$N/128 dev $IF"))
	pod.Sh(script(`ip addr add 10.1.9.$N/32 dev eth0; ip addr add fd01:9::$N/128 dev eth0 nodad; ip link set eth0 up
		ip route add 169.254.1.1 dev eth0 scope link; ip route add default via 169.254.1.1; ip -6 route add default via fe80::1 dev eth0`))
	if kind == StaticNeighbours {
		pod.Sh("ip neigh add 169.254.1.1 dev eth0 lladdr " + mac(n.Node, name) + "; ip neigh add fe80::1 dev eth0 lladdr " + mac(n.Node, name))
		n.Node.Sh(script("ip neigh add fd01:9::$N dev $IF lladdr ") + mac(pod, "eth0"))
	}
	return pod
}

// BareKind is how neighbors are resolved on an interface without addresses.
type BareKind int

const (
	ProxyARP         BareKind = iota // as with Calico, which needs forwarding
	StaticNeighbours                 // as with the AWS VPC CNI
)

// Serve opens the listener for b on this host. It answers each TCP connection
// with word and the original destination, and each datagram with word. It returns
// the port.
func (h *Host) Serve(b portal.Bind, word string) uint16 {
	GinkgoHelper()
	var port uint16
	protocol := b.Targets[0].Protocol
	config := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		var err error
		if e := raw.Control(func(fd uintptr) {
			err = errors.Join(
				unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_FREEBIND, 1),
				unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_PKTINFO, 1),
				unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1))
			if b.Transparent {
				err = errors.Join(err, forward.SetTransparent(int(fd), b.Addr.Addr()))
			}
			if b.Addr.Addr().Is6() {
				err = errors.Join(err, unix.SetsockoptInt(int(fd), unix.SOL_IPV6, unix.IPV6_RECVPKTINFO, 1))
			}
		}); e != nil {
			return e
		}
		return err
	}}
	four := "6"
	if b.Addr.Addr().Is4() {
		four = "4"
	}
	h.Do(func() {
		if protocol == portal.UDP {
			conn, err := config.ListenPacket(context.Background(), "udp"+four, b.Addr.String())
			Expect(err).NotTo(HaveOccurred())
			DeferCleanup(func() { conn.Close() })
			port = conn.LocalAddr().(*net.UDPAddr).AddrPort().Port()
			go answer(conn.(*net.UDPConn), word)
			return
		}
		l, err := config.Listen(context.Background(), "tcp"+four, b.Addr.String())
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(func() { l.Close() })
		port = l.Addr().(*net.TCPAddr).AddrPort().Port()
		lab.Serve(l, func(conn net.Conn) {
			dst, err := kernel.OriginalDst(conn.(*net.TCPConn))
			if err != nil {
				io.WriteString(conn, word+" "+err.Error())
			} else {
				io.WriteString(conn, word+" "+dst.String())
			}
		})
	})
	return port
}

// answer sends word to each client, from the destination address of the
// client's datagram.
func answer(conn *net.UDPConn, word string) {
	buffer, oob := make([]byte, 100), make([]byte, 100)
	for {
		_, n, _, from, err := conn.ReadMsgUDPAddrPort(buffer, oob)
		if err != nil {
			return
		}
		messages, err := unix.ParseSocketControlMessage(oob[:n])
		if err != nil {
			return
		}
		for _, m := range messages {
			switch {
			case m.Header.Level == unix.SOL_IP && m.Header.Type == unix.IP_PKTINFO:
				info := *(*unix.Inet4Pktinfo)(unsafe.Pointer(&m.Data[0]))
				info.Ifindex = 0
				conn.WriteMsgUDPAddrPort([]byte(word), unix.PktInfo4(&info), from)
			case m.Header.Level == unix.SOL_IPV6 && m.Header.Type == unix.IPV6_PKTINFO:
				info := *(*unix.Inet6Pktinfo)(unsafe.Pointer(&m.Data[0]))
				info.Ifindex = 0
				conn.WriteMsgUDPAddrPort([]byte(word), unix.PktInfo6(&info), from)
			}
		}
	}
}

// Ask connects to t from this host and returns the server's reply, "refused",
// "silence" or another error.
func (h *Host) Ask(t portal.Target) string {
	GinkgoHelper()
	return h.AskFrom(t, 0, ReplyTimeout)
}

func (h *Host) AskFrom(t portal.Target, localPort int, patience time.Duration) string {
	GinkgoHelper()
	var answer string
	h.Do(func() {
		dialer := net.Dialer{Timeout: patience, Control: func(_, _ string, raw syscall.RawConn) (err error) {
			return errors.Join(raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, h.Mark) }), err)
		}}
		if localPort != 0 {
			dialer.LocalAddr = &net.UDPAddr{Port: localPort}
		}
		conn, err := dialer.Dial(t.Protocol.String(), netip.AddrPortFrom(t.Addr, t.Port).String())
		if err == nil {
			defer conn.Close()
			conn.SetDeadline(time.Now().Add(patience))
			if t.Protocol == portal.UDP {
				_, err = io.WriteString(conn, "?")
			}
			if err == nil {
				buffer := make([]byte, 200)
				var n int
				n, err = conn.Read(buffer)
				answer = string(buffer[:n])
			}
		}
		var timeout net.Error
		switch {
		case err == nil:
		case errors.Is(err, syscall.ECONNREFUSED):
			answer = "refused"
		case errors.As(err, &timeout) && timeout.Timeout():
			answer = "silence"
		default:
			answer = err.Error()
		}
	})
	return answer
}

// Counters matches the parts of the output of iptables-save, nft and ip that change by themselves.
var Counters = regexp.MustCompile(`(?m)\[\d+:\d+\]|packets \d+ bytes \d+|valid_lft \S+ preferred_lft \S+|^#.*\n`)

// legacyEmpty matches an empty table of the legacy variant. Listing creates such a table,
// which stays until its module is unloaded. So it is no trace of a portal.
var legacyEmpty = regexp.MustCompile(`(?m)^\*\w+\n(:[A-Z]+ ACCEPT \n)+COMMIT\n`)

// State returns everything that a portal could leave behind on this host.
func (h *Host) State() string {
	GinkgoHelper()
	var all strings.Builder
	for _, command := range []string{
		"iptables-nft-save; ip6tables-nft-save", "nft list ruleset",
		"iptables-legacy-save; ip6tables-legacy-save",
		"ip route show table all; ip -6 route show table all; ip rule; ip -6 rule", "ip addr",
	} {
		out := Counters.ReplaceAllString(h.Sh(command+" 2>/dev/null || true"), "")
		if strings.Contains(command, "legacy") {
			out = legacyEmpty.ReplaceAllString(out, "")
		}
		all.WriteString("== " + command + "\n" + out)
	}
	return all.String()
}
