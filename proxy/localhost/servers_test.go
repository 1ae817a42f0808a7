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

var _ = Describe("a listening server", func() {
	ephemeral := portal.PortRange{First: 32768, Last: 60999}
	DescribeTable("is served only if it is reachable on loopback:",
		func(protocol portal.Protocol, at string, expected ...string) {
			var found []string
			for _, s := range servers(protocol, netip.MustParseAddrPort(at), ephemeral) {
				found = append(found, fmt.Sprint(s.protocol, " ", s.at))
			}
			Expect(strings.Join(found, ", ")).To(Equal(strings.Join(expected, ", ")))
		},
		Entry("on 127.0.0.1", portal.TCP, "127.0.0.1:8080", "TCP 127.0.0.1:8080"),
		Entry("on another loopback address", portal.UDP, "127.0.0.53:53", "UDP 127.0.0.53:53"),
		Entry("on all IPv4 addresses", portal.TCP, "0.0.0.0:80", "TCP 127.0.0.1:80"),
		Entry("on ::1", portal.TCP, "[::1]:3000", "TCP [::1]:3000"),
		Entry("on all addresses of both families", portal.TCP, "[::]:3000", "TCP [::1]:3000", "TCP 127.0.0.1:3000"),
		Entry("on a network address", portal.TCP, "10.0.2.2:8080"),
		Entry("a client's UDP socket", portal.UDP, "0.0.0.0:40000"),
		Entry("a UDP socket on an ephemeral loopback port", portal.UDP, "127.0.0.1:40000", "UDP 127.0.0.1:40000"),
	)

	It("becomes a Service whose VIP and endpoint have the same address", func() {
		s := server{config.TCP, netip.MustParseAddrPort("127.0.0.1:8080")}.service()
		Expect(s.Ports).To(HaveLen(1))
		Expect(s.Ports[0].VIPs[0].AddrPort()).To(Equal(s.Ports[0].Internal[0].Addr))
	})
})
