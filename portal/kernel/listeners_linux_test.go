package kernel

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/usherproxy/usher/portal"
)

var _ = Describe("the listening sockets", func() {
	It("are listed with their process, for TCP and UDP", func() {
		l, err := net.Listen("tcp4", "127.0.0.1:0")
		Expect(err).NotTo(HaveOccurred())
		defer l.Close()
		packets, err := net.ListenPacket("udp6", "[::1]:0")
		Expect(err).NotTo(HaveOccurred())
		defer packets.Close()
		me := HaveField("Process", HaveSuffix(fmt.Sprintf(" (process %d)", os.Getpid())))
		Expect(Listeners()).To(ContainElements(
			And(HaveField("Protocol", portal.TCP), HaveField("At", netip.MustParseAddrPort(l.Addr().String())), HaveField("Mine", true), me),
			And(HaveField("Protocol", portal.UDP), HaveField("At", netip.MustParseAddrPort(packets.LocalAddr().String())), HaveField("Mine", true), me)))
		at := netip.MustParseAddrPort(l.Addr().String())
		Expect(Holder(portal.Target{Protocol: portal.TCP, Addr: at.Addr(), Port: at.Port()}, nil)).To(HaveSuffix(fmt.Sprintf("(process %d) listens on %s", os.Getpid(), at)))
	})

	It("are listed without characters of the process name that control a terminal", func() {
		before, err := os.ReadFile("/proc/self/comm")
		Expect(err).NotTo(HaveOccurred())
		Expect(os.WriteFile("/proc/self/comm", []byte("a\x1b[2J\ns\u202ed\x07"), 0)).To(Succeed())
		defer os.WriteFile("/proc/self/comm", before, 0)
		l, err := net.Listen("tcp4", "127.0.0.1:0")
		Expect(err).NotTo(HaveOccurred())
		defer l.Close()
		at := netip.MustParseAddrPort(l.Addr().String())
		Expect(Listeners()).To(ContainElement(And(HaveField("At", at), HaveField("Process", fmt.Sprintf("a\ufffd[2J\ufffds\ufffdd\ufffd (process %d)", os.Getpid())))))
	})

	DescribeTable("are read up to the first connection for TCP, and among connected sockets for UDP", func(state, expected string) {
		text := "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
		for i, line := range []string{"00000000:0050 00000000:0000 %s", "x:y 00000000:0000 %s", "00000000:0051 00000000:C350 01", "00000000:0052 00000000:0000 %s"} {
			text += fmt.Sprintf("%d: %s 0:0 0:0 0 33 0 7\n", i, strings.ReplaceAll(line, "%s", state))
		}
		var found []string
		Expect(readListeners(strings.NewReader(text), state, func(at netip.AddrPort, user, inode string) {
			found = append(found, fmt.Sprint(at, " ", user, " ", inode))
		})).To(Succeed())
		Expect(strings.Join(found, ", ")).To(Equal(expected))
	},
		Entry(nil, stateListen, "0.0.0.0:80 33 7"), Entry(nil, stateClose, "0.0.0.0:80 33 7, 0.0.0.0:82 33 7"),
	)

	DescribeTable("receive packets", func(at string, protocol portal.Protocol, to string, does bool) {
		l := Listener{Protocol: portal.TCP, At: netip.MustParseAddrPort(at)}
		t := netip.MustParseAddrPort(to)
		Expect(l.Takes(portal.Target{Protocol: protocol, Addr: t.Addr(), Port: t.Port()})).To(Equal(does))
	},
		Entry("to a VIP, on all addresses", "0.0.0.0:443", portal.TCP, "10.96.0.10:443", true),
		Entry("to an IPv4 VIP, on all addresses of both families", "[::]:443", portal.TCP, "10.96.0.10:443", true),
		Entry("not to an IPv6 VIP, on all IPv4 addresses", "0.0.0.0:443", portal.TCP, "[fd96::10]:443", false),
		Entry("not to another port", "0.0.0.0:443", portal.TCP, "10.96.0.10:80", false),
		Entry("not of another protocol", "0.0.0.0:443", portal.UDP, "10.96.0.10:443", false),
		Entry("not to a VIP, on another address", "192.0.2.1:443", portal.TCP, "10.96.0.10:443", false),
		Entry("to a node port, on one address", "192.0.2.1:30443", portal.TCP, "0.0.0.0:30443", true),
	)
})
