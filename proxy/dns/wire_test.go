package dns_test

import (
	"fmt"
	"net"
	"net/netip"
	"time"

	mdns "github.com/miekg/dns"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/proxy/dns"
)

// crowd returns a headless Service with n endpoints.
func crowd(n int) config.Service {
	d := &config.Discovery{}
	for i := range n {
		d.Endpoints = append(d.Endpoints, config.DiscoveryEndpoint{Addr: netip.AddrFrom4([4]byte{10, 1, byte(i / 250), byte(i%250 + 1)}),
			Hostname: fmt.Sprintf("pet-%d", i), Ports: []config.DiscoveryPort{tcp("http", 80)}})
	}
	return service("crowd", d)
}

var _ = Describe("DNS messages", func() {
	const name = "crowd.default.svc.cluster.local."
	packed := func(m *mdns.Msg) int {
		GinkgoHelper()
		m.Compress = true
		raw, err := m.Pack()
		Expect(err).NotTo(HaveOccurred())
		return len(raw)
	}

	DescribeTable("over UDP are truncated to the client's limit", func(limit int, changes ...func(*mdns.Msg)) {
		s := start(dns.Options{}, crowd(600))
		reply := s.ask(name, mdns.TypeA, changes...)
		Expect(reply.Truncated).To(BeTrue())
		Expect(packed(reply)).To(BeNumerically("<=", limit))
		Expect(packed(reply)).To(BeNumerically(">", limit-100), "the message uses the available space")

		By("sending the complete message over TCP")
		Expect(send("tcp", s.tcp, question(name, mdns.TypeA, changes...)).Answer).To(HaveLen(600))
	},
		Entry("512 bytes without EDNS", 512),
		Entry("the size that EDNS announces", 1000, edns(1000)),
		Entry("512 bytes if EDNS announces less", 512, edns(100)),
		Entry("at most 1232 bytes", 1232, edns(4096)),
	)

	It("omit additional records first, without being marked as truncated", func() {
		s := start(dns.Options{}, crowd(16))
		reply := s.ask("_http._tcp."+name, mdns.TypeSRV, edns(1232))
		Expect(reply.Answer).To(HaveLen(16))
		Expect(reply.Truncated).To(BeFalse())
		Expect(text(reply.Extra)).To(BeEmpty())
		Expect(send("tcp", s.tcp, question("_http._tcp."+name, mdns.TypeSRV)).Extra).To(HaveLen(16))
	})

	It("list the endpoints of a headless Service in varying order", func() {
		s := start(dns.Options{}, crowd(8))
		first := map[string]bool{}
		for range 100 {
			first[s.ask(name, mdns.TypeA).Answer[0].String()] = true
		}
		Expect(len(first)).To(BeNumerically(">", 1))
	})

	It("have an EDNS record only if the query has one", func() {
		s := start(dns.Options{}, ofTheSpecification...)
		Expect(s.ask("cluster.local.", mdns.TypeSOA).IsEdns0()).To(BeNil())
		opt := s.ask("cluster.local.", mdns.TypeSOA, func(m *mdns.Msg) { m.SetEdns0(4096, true) }).IsEdns0()
		Expect(opt.UDPSize()).To(BeEquivalentTo(1232))
		Expect(opt.Do()).To(BeTrue())
	})

	DescribeTable("are rejected if they are invalid or unsupported", func(code int, change func(*mdns.Msg)) {
		s := start(dns.Options{}, ofTheSpecification...)
		for network, to := range map[string]string{"udp": s.udp, "tcp": s.tcp} {
			m := question("kubernetes.default.svc.cluster.local.", mdns.TypeA, change)
			reply := send(network, to, m)
			Expect(reply.Id).To(Equal(m.Id))
			Expect(reply.Rcode).To(Equal(code), network)
			Expect(reply.Answer).To(BeEmpty())
		}
	},
		Entry("no question", mdns.RcodeFormatError, func(m *mdns.Msg) { m.Question = nil }),
		Entry("two questions", mdns.RcodeFormatError, func(m *mdns.Msg) { m.Question = append(m.Question, m.Question[0]) }),
		Entry("with an answer", mdns.RcodeFormatError, func(m *mdns.Msg) {
			m.Answer = append(m.Answer, &mdns.A{Hdr: mdns.RR_Header{Name: "a.", Rrtype: mdns.TypeA, Class: mdns.ClassINET}, A: net.IPv4(1, 2, 3, 4)})
		}),
		Entry("an update", mdns.RcodeNotImplemented, func(m *mdns.Msg) { m.Opcode = mdns.OpcodeUpdate }),
		Entry("a transfer of the zone", mdns.RcodeRefused, func(m *mdns.Msg) { m.Question[0].Qtype = mdns.TypeAXFR }),
		Entry("another class", mdns.RcodeRefused, func(m *mdns.Msg) { m.Question[0].Qclass = mdns.ClassCHAOS }),
		Entry("an unknown version of EDNS", mdns.RcodeBadVers, func(m *mdns.Msg) {
			m.SetEdns0(1232, false)
			m.IsEdns0().SetVersion(1)
		}),
	)

	It("that are not queries get no answer", func() {
		s := start(dns.Options{}, ofTheSpecification...)
		c, err := net.Dial("udp", s.udp)
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(c.Close)
		response := question("kubernetes.default.svc.cluster.local.", mdns.TypeA)
		response.Response = true
		raw, err := response.Pack()
		Expect(err).NotTo(HaveOccurred())
		for _, m := range [][]byte{{}, []byte("short"), raw} {
			Expect(c.Write(m)).Error().NotTo(HaveOccurred())
		}
		query := question("kubernetes.default.svc.cluster.local.", mdns.TypeA)
		raw, err = query.Pack()
		Expect(err).NotTo(HaveOccurred())
		Expect(c.Write(raw)).Error().NotTo(HaveOccurred())

		Expect(c.SetReadDeadline(time.Now().Add(5 * time.Second))).To(Succeed())
		buf := make([]byte, 1500)
		n, err := c.Read(buf)
		Expect(err).NotTo(HaveOccurred())
		reply := new(mdns.Msg)
		Expect(reply.Unpack(buf[:n])).To(Succeed())
		Expect(reply.Id).To(Equal(query.Id), "the first answer is the one to the query")
	})

	It("can share one TCP connection", func() {
		s := start(dns.Options{}, ofTheSpecification...)
		conn, err := mdns.Dial("tcp", s.tcp)
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(conn.Close)
		for range 3 {
			Expect(conn.WriteMsg(question("kubernetes.default.svc.cluster.local.", mdns.TypeA))).To(Succeed())
			reply, err := conn.ReadMsg()
			Expect(err).NotTo(HaveOccurred())
			Expect(reply.Answer).To(HaveLen(1))
		}
	})

	It("are counted by type and code", func() {
		s := start(dns.Options{}, ofTheSpecification...)
		s.ask("kubernetes.default.svc.cluster.local.", mdns.TypeA)
		s.ask("kubernetes.default.svc.cluster.local.", mdns.TypeA)
		s.ask("nothing.default.svc.cluster.local.", mdns.TypeAAAA)
		s.ask("kubernetes.default.svc.cluster.local.", mdns.TypeLOC)
		Expect(s.Queries()).To(Equal(map[[2]string]int64{
			{"A", "NOERROR"}:     2,
			{"AAAA", "NXDOMAIN"}: 1,
			{"other", "NOERROR"}: 1,
		}))
	})
})

var _ = Describe("the domain of a cluster", func() {
	DescribeTable("is rejected if it is invalid", func(domain, message string) {
		_, err := dns.New(dns.Options{Domain: domain})
		Expect(err).To(MatchError(ContainSubstring(message)))
	},
		Entry("an invalid character", "clu$ter.local", `"clu$ter.local" is not a domain such as cluster.local`),
		Entry("only a dot", ".", `"." is not a domain`),
		Entry("an empty label", "a..b", `"a..b" is not a domain`),
	)
})
