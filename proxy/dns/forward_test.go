package dns_test

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	mdns "github.com/miekg/dns"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gbytes"
	"github.com/sirupsen/logrus"

	"github.com/usherproxy/usher/proxy/dns"
)

// upstream is a resolver, and the queries that it received.
type upstream struct {
	addr netip.AddrPort
	mu   sync.Mutex
	seen []*mdns.Msg
}

// startUpstream starts a resolver on loopback, for UDP and TCP on one port.
func startUpstream(answer func(w mdns.ResponseWriter, query, reply *mdns.Msg)) *upstream {
	GinkgoHelper()
	u := &upstream{}
	handler := mdns.HandlerFunc(func(w mdns.ResponseWriter, query *mdns.Msg) {
		u.mu.Lock()
		u.seen = append(u.seen, query)
		u.mu.Unlock()
		reply := new(mdns.Msg).SetReply(query)
		answer(w, query, reply)
		_ = w.WriteMsg(reply)
	})
	pc, l := samePort()
	u.addr = pc.LocalAddr().(*net.UDPAddr).AddrPort()
	for _, server := range []*mdns.Server{{PacketConn: pc, Handler: handler}, {Listener: l, Handler: handler}} {
		started := make(chan struct{})
		server.NotifyStartedFunc = func() { close(started) }
		go func() { _ = server.ActivateAndServe() }()
		Eventually(started).Should(BeClosed())
		DeferCleanup(server.Shutdown)
	}
	return u
}

// samePort opens a UDP and a TCP socket on the same free port.
func samePort() (net.PacketConn, net.Listener) {
	GinkgoHelper()
	for range 100 {
		pc, err := net.ListenPacket("udp", "127.0.0.1:0")
		Expect(err).NotTo(HaveOccurred())
		if l, err := net.Listen("tcp", pc.LocalAddr().String()); err == nil {
			return pc, l
		}
		pc.Close()
	}
	Fail("no port is free for both UDP and TCP")
	return nil, nil
}

func (u *upstream) queries() []*mdns.Msg {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.seen
}

// says returns a handler that answers every query with this address.
func says(ip string) func(mdns.ResponseWriter, *mdns.Msg, *mdns.Msg) {
	return func(_ mdns.ResponseWriter, query, reply *mdns.Msg) {
		reply.Answer = []mdns.RR{&mdns.A{Hdr: mdns.RR_Header{Name: query.Question[0].Name, Rrtype: mdns.TypeA, Class: mdns.ClassINET, Ttl: 300}, A: net.ParseIP(ip)}}
	}
}

func code(rcode int) func(mdns.ResponseWriter, *mdns.Msg, *mdns.Msg) {
	return func(_ mdns.ResponseWriter, _, reply *mdns.Msg) { reply.Rcode = rcode }
}

// refuses returns an address without a listener.
func refuses() netip.AddrPort {
	GinkgoHelper()
	pc, l := samePort()
	defer pc.Close()
	defer l.Close()
	return pc.LocalAddr().(*net.UDPAddr).AddrPort()
}

// silent returns an address of a resolver that never answers.
func silent() netip.AddrPort {
	GinkgoHelper()
	pc, l := samePort()
	DeferCleanup(pc.Close)
	DeferCleanup(l.Close)
	return pc.LocalAddr().(*net.UDPAddr).AddrPort()
}

func via(servers ...netip.AddrPort) dns.Options { return dns.Options{Upstreams: servers} }

var _ = Describe("external names", func() {
	It("are forwarded to the upstream resolver without the client's EDNS options", func() {
		u := startUpstream(says("192.0.2.53"))
		s := start(via(u.addr), ofTheSpecification...)
		reply := s.ask("wWw.example.com.", mdns.TypeA, func(m *mdns.Msg) {
			m.SetEdns0(4096, true)
			m.IsEdns0().Option = append(m.IsEdns0().Option, &mdns.EDNS0_COOKIE{Code: mdns.EDNS0COOKIE, Cookie: "24a5ac1223344556"})
		})
		Expect(text(reply.Answer)).To(ConsistOf("wWw.example.com. IN A 192.0.2.53"))
		Expect(reply.Answer[0].Header().Ttl).To(BeEquivalentTo(300))
		Expect(reply.Authoritative).To(BeFalse())
		Expect(reply.RecursionAvailable).To(BeTrue())

		Expect(u.queries()).NotTo(BeEmpty())
		for _, asked := range u.queries() { // several if a busy machine answers late
			Expect(asked.Question).To(Equal([]mdns.Question{{Name: "wWw.example.com.", Qtype: mdns.TypeA, Qclass: mdns.ClassINET}}))
			Expect(asked.RecursionDesired).To(BeTrue())
			Expect(asked.IsEdns0().Do()).To(BeTrue())
			Expect(asked.IsEdns0().Option).To(BeEmpty())
		}
	})

	It("are the only names that are forwarded", func() {
		u := startUpstream(says("192.0.2.53"))
		s := start(via(u.addr), ofTheSpecification...)
		for _, name := range []string{"nothing.default.svc.cluster.local.", "cluster.local.", "www.example.com.cluster.local.", "1.0.3.10.in-addr.arpa."} {
			s.ask(name, mdns.TypeA)
		}
		Expect(u.queries()).To(BeEmpty())
	})

	It("include reverse names of addresses that no Service has", func() {
		u := startUpstream(func(_ mdns.ResponseWriter, query, reply *mdns.Msg) {
			reply.Answer = []mdns.RR{&mdns.PTR{Hdr: mdns.RR_Header{Name: query.Question[0].Name, Rrtype: mdns.TypePTR, Class: mdns.ClassINET}, Ptr: "printer."}}
		})
		s := start(via(u.addr), ofTheSpecification...)
		Expect(text(s.ask("9.9.3.10.in-addr.arpa.", mdns.TypePTR).Answer)).To(ConsistOf("9.9.3.10.in-addr.arpa. IN PTR printer."))
	})

	It("that a Service is an alias of are resolved and returned with it", func() {
		u := startUpstream(says("192.0.2.53"))
		s := start(via(u.addr), ofTheSpecification...)
		reply := s.ask("foo.default.svc.cluster.local.", mdns.TypeA)
		Expect(text(reply.Answer)).To(Equal(names("foo+ IN CNAME www.example.com.", "www.example.com. IN A 192.0.2.53")))
		Expect(u.queries()[0].Question[0]).To(Equal(mdns.Question{Name: "www.example.com.", Qtype: mdns.TypeA, Qclass: mdns.ClassINET}))
	})

	It("that do not exist give NXDOMAIN for a Service that is an alias", func() {
		s := start(via(startUpstream(code(mdns.RcodeNameError)).addr), ofTheSpecification...)
		reply := s.ask("foo.default.svc.cluster.local.", mdns.TypeA)
		Expect(reply.Rcode).To(Equal(mdns.RcodeNameError))
		Expect(text(reply.Answer)).To(Equal(names("foo+ IN CNAME www.example.com.")))
	})

	DescribeTable("are resolved by the next resolver", func(first func() netip.AddrPort) {
		u := startUpstream(says("192.0.2.53"))
		s := start(via(first(), u.addr))
		Expect(s.ask("www.example.com.", mdns.TypeA).Answer).To(HaveLen(1))
	},
		Entry("if the first refuses the connection", refuses),
		Entry("if the first does not answer", silent),
		Entry("if the first returns SERVFAIL", func() netip.AddrPort { return startUpstream(code(mdns.RcodeServerFailure)).addr }),
		Entry("if the first returns REFUSED", func() netip.AddrPort { return startUpstream(code(mdns.RcodeRefused)).addr }),
		Entry("if the first answers another question", func() netip.AddrPort {
			return startUpstream(func(_ mdns.ResponseWriter, _, reply *mdns.Msg) { reply.Question[0].Name = "other.example." }).addr
		}),
	)

	It("are no longer sent first to a resolver that did not answer", func() {
		var down atomic.Bool
		down.Store(true)
		pc, err := net.ListenPacket("udp", "127.0.0.1:0")
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(pc.Close)
		asked := make(chan struct{}, 100)
		go func() {
			buf := make([]byte, 1500)
			for {
				if _, _, err := pc.ReadFrom(buf); err != nil {
					return
				}
				asked <- struct{}{}
			}
		}()
		other := startUpstream(says("192.0.2.53"))
		s := start(via(pc.LocalAddr().(*net.UDPAddr).AddrPort(), other.addr))
		const queries = 5
		for range queries {
			Expect(s.ask("www.example.com.", mdns.TypeA).Answer).To(HaveLen(1))
		}
		late := len(other.queries()) - queries // on a busy machine; then both are asked again
		Expect(asked).To(HaveLen(1 + late))
	})

	DescribeTable("are never forwarded to the server itself", func(self string, asked bool, upstream ...string) {
		u := startUpstream(says("192.0.2.53"))
		to := u.addr
		if len(upstream) > 0 {
			to = netip.AddrPortFrom(addr(upstream[0]), to.Port())
		}
		s := start(dns.Options{Upstreams: []netip.AddrPort{to}, Self: netip.AddrPortFrom(addr(self), to.Port())})
		s.ask("www.example.com.", mdns.TypeA)
		Expect(len(u.queries()) > 0).To(Equal(asked))
	},
		Entry("at its address", "127.0.0.1", false),
		Entry("at all IPv4 addresses", "0.0.0.0", false),
		Entry("at all addresses of both families", "::", false),
		Entry("at localhost, by an unspecified address", "127.0.0.1", false, "0.0.0.0"),
		Entry("at all addresses, by an unspecified address", "::", false, "0.0.0.0"),
		Entry("but to another address with the same port", "127.0.0.2", true),
	)

	It("get the resolver's error code if it fails", func() {
		s := start(via(startUpstream(code(mdns.RcodeRefused)).addr))
		Expect(s.ask("www.example.com.", mdns.TypeA).Rcode).To(Equal(mdns.RcodeRefused))
	})

	It("get SERVFAIL before the client's timeout if no resolver answers, and the error code if only one does", func() {
		s := start(via(silent(), silent(), silent(), silent())) // querying each of them twice would take 12 s
		refused := start(via(startUpstream(code(mdns.RcodeRefused)).addr, silent(), silent(), silent()))
		before := time.Now()
		var asking sync.WaitGroup
		asking.Go(func() {
			defer GinkgoRecover()
			Expect(refused.ask("www.example.com.", mdns.TypeA).Rcode).To(Equal(mdns.RcodeRefused))
		})
		defer asking.Wait()
		Expect(s.ask("www.example.com.", mdns.TypeA).Rcode).To(Equal(mdns.RcodeServerFailure))
		Expect(time.Since(before)).To(BeNumerically("<", 12*time.Second))
	})

	It("are not reported as unavailable if some are resolved, and at most once every 10 s", func() {
		out := gbytes.NewBuffer()
		log := logrus.New()
		log.SetOutput(out)
		u := startUpstream(func(w mdns.ResponseWriter, query, reply *mdns.Msg) {
			switch name := query.Question[0].Name; {
			case name == "slow.example.com.":
				time.Sleep(2 * time.Second)
			case name == "lost.example.com.":
				reply.Question[0].Name = "other.example.com."
			}
		})
		o := via(u.addr)
		o.Log = log
		server, err := dns.New(o)
		Expect(err).NotTo(HaveOccurred())
		s := serve(server)
		var slow sync.WaitGroup
		slow.Go(func() {
			defer GinkgoRecover()
			Expect(s.ask("slow.example.com.", mdns.TypeA).Rcode).To(Equal(mdns.RcodeServerFailure))
		})
		time.Sleep(100 * time.Millisecond)
		Expect(s.ask("www.example.com.", mdns.TypeA).Rcode).To(Equal(mdns.RcodeSuccess))
		slow.Wait()
		Expect(out.Contents()).To(BeEmpty())
		for range 3 {
			Expect(s.ask("lost.example.com.", mdns.TypeA).Rcode).To(Equal(mdns.RcodeServerFailure))
			Expect(s.ask("www.example.com.", mdns.TypeA).Rcode).To(Equal(mdns.RcodeSuccess))
		}
		Expect(strings.Count(string(out.Contents()), "No upstream resolver responds")).To(Equal(1))
		Expect(strings.Count(string(out.Contents()), "Resolving external names again")).To(Equal(1))
	})

	It("get SERVFAIL if there is no resolver", func() {
		Expect(start(dns.Options{}).ask("www.example.com.", mdns.TypeA).Rcode).To(Equal(mdns.RcodeServerFailure))
	})

	It("with long answers are queried over TCP and truncated to the client's limit", func() {
		u := startUpstream(func(w mdns.ResponseWriter, query, reply *mdns.Msg) {
			if w.RemoteAddr().Network() == "udp" {
				reply.Truncated = true
				return
			}
			var all []mdns.RR
			for n := range 100 {
				says(fmt.Sprintf("192.0.2.%d", n))(w, query, reply)
				all = append(all, reply.Answer...)
			}
			reply.Answer = all
		})
		s := start(via(u.addr))
		Expect(send("tcp", s.tcp, question("www.example.com.", mdns.TypeA)).Answer).To(HaveLen(100))
		reply := s.ask("www.example.com.", mdns.TypeA)
		Expect(reply.Truncated).To(BeTrue())
		Expect(len(reply.Answer)).To(And(BeNumerically(">", 10), BeNumerically("<", 100)))
	})
})

var _ = Describe("resolv.conf", func() {
	It("is reloaded when it changes", func() {
		file := filepath.Join(GinkgoT().TempDir(), "resolv.conf")
		write := func(ip string) {
			GinkgoHelper()
			u := startUpstream(says(ip))
			Expect(os.WriteFile(file, fmt.Appendf(nil, "# %s\nnameserver nonsense\nnameserver [%s]:%d\n", ip, u.addr.Addr(), u.addr.Port()), 0o644)).To(Succeed())
		}
		s := start(dns.Options{ResolvConf: file})
		ask := func() []string { return text(s.ask("www.example.com.", mdns.TypeA).Answer) }
		Expect(ask()).To(BeEmpty(), "the file does not exist yet")
		for _, ip := range []string{"192.0.2.1", "192.0.2.22"} {
			write(ip)
			Eventually(ask).WithTimeout(30 * time.Second).Should(ConsistOf("www.example.com. IN A " + ip))
		}
	})

	It("lists resolvers, with port 53 as the default", func() {
		file := filepath.Join(GinkgoT().TempDir(), "resolv.conf")
		Expect(os.WriteFile(file, []byte("nameserver 192.0.2.1\nnameserver fe80::1%lo\n nameserver [2001:db8::1]:5353\nsearch lan\n"), 0o644)).To(Succeed())
		Expect(dns.Nameservers(file)).To(Equal([]netip.AddrPort{
			netip.MustParseAddrPort("192.0.2.1:53"), netip.MustParseAddrPort("[fe80::1%lo]:53"), netip.MustParseAddrPort("[2001:db8::1]:5353"),
		}))
	})

	It("lists the cluster's search domains first for Pods", func() {
		file := filepath.Join(GinkgoT().TempDir(), "resolv.conf")
		Expect(os.WriteFile(file, []byte("nameserver 192.0.2.1\nsearch corp.example . lan\n"), 0o644)).To(Succeed())
		s := start(dns.Options{Domain: "lab.example", ResolvConf: file})
		Expect(s.PodResolvConf("shop", addr("10.96.0.10"), addr("fd00::10"))).To(Equal(strings.Join([]string{
			"nameserver 10.96.0.10",
			"nameserver fd00::10",
			"search shop.svc.lab.example svc.lab.example lab.example corp.example lan",
			"options ndots:5",
			"",
		}, "\n")))
	})
})

var _ = Describe("a flood of queries that no resolver answers", func() {
	It("uses a limited number of goroutines and does not block cluster names", func() {
		s := start(via(silent()), ofTheSpecification...)
		before := runtime.NumGoroutine()
		c, err := net.Dial("udp", s.udp)
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(c.Close)
		most := 0
		for n := range 5000 {
			raw, err := question(fmt.Sprintf("n%d.example.com.", n), mdns.TypeA).Pack()
			Expect(err).NotTo(HaveOccurred())
			Expect(c.Write(raw)).Error().NotTo(HaveOccurred())
			if n%500 == 0 {
				askPatiently(s, 500*time.Millisecond, "kubernetes.default.svc.cluster.local.", mdns.RcodeSuccess)
				most = max(most, runtime.NumGoroutine()-before)
			}
		}
		Expect(most).To(And(BeNumerically(">", 100), BeNumerically("<", 150)))
		// The query may have to wait for the unresponsive resolver.
		askPatiently(s, 5*time.Second, "one.more.example.com.", mdns.RcodeServerFailure)
	})
})

// askPatiently retries as a client does if there is no answer within timeout: a flood loses datagrams.
func askPatiently(s *running, timeout time.Duration, name string, code int) {
	GinkgoHelper()
	client := mdns.Client{Timeout: timeout}
	Eventually(func() (int, error) {
		reply, _, err := client.Exchange(question(name, mdns.TypeA), s.udp)
		if err != nil {
			return 0, err
		}
		return reply.Rcode, nil
	}).WithTimeout(20 * time.Second).Should(Equal(code))
}
