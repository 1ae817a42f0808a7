package localhost

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/portal"
)

func TestLocalhost(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "localhost")
}

var _ = Describe("a listening server in /proc/net", func() {
	ephemeral := portal.PortRange{First: 32768, Last: 60999}
	DescribeTable("is found only if it is reachable on loopback:",
		func(file, local, state string, expected ...string) {
			text := "  sl  local_address rem_address st\n   0: " + local + " 00000000:0000 " + state + " 00000000:00000000\n"
			var found []string
			for _, s := range servers(file, strings.NewReader(text), ephemeral) {
				found = append(found, fmt.Sprint(s.protocol, " ", s.at))
			}
			Expect(strings.Join(found, ", ")).To(Equal(strings.Join(expected, ", ")))
		},
		Entry("on 127.0.0.1", "tcp", "0100007F:1F90", "0A", "TCP 127.0.0.1:8080"),
		Entry("on another loopback address", "udp", "3500007F:0035", "07", "UDP 127.0.0.53:53"),
		Entry("on all IPv4 addresses", "tcp", "00000000:0050", "0A", "TCP 127.0.0.1:80"),
		Entry("on ::1", "tcp6", "00000000000000000000000001000000:0BB8", "0A", "TCP [::1]:3000"),
		Entry("on all addresses of both families", "tcp6", "00000000000000000000000000000000:0BB8", "0A", "TCP [::1]:3000", "TCP 127.0.0.1:3000"),
		Entry("on a network address", "tcp", "0202000A:1F90", "0A"),
		Entry("a connected socket", "tcp", "0100007F:1F90", "01"),
		Entry("a client's UDP socket", "udp", "00000000:9C40", "07"),
		Entry("a UDP socket on an ephemeral loopback port", "udp", "0100007F:9C40", "07", "UDP 127.0.0.1:40000"),
		Entry("an invalid line", "tcp", "x:y", "0A"),
	)

	It("becomes a Service whose VIP and endpoint have the same address", func() {
		s := server{config.TCP, netip.MustParseAddrPort("127.0.0.1:8080")}.service()
		Expect(s.Ports).To(HaveLen(1))
		Expect(s.Ports[0].VIPs[0].AddrPort()).To(Equal(s.Ports[0].Internal[0].Addr))
	})
})
