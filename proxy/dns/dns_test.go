package dns_test

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	mdns "github.com/miekg/dns"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/sirupsen/logrus"
	"k8s.io/apimachinery/pkg/types"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/proxy/dns"
)

func TestDNS(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "proxy/dns")
}

// running is a Server on loopback, and its address.
type running struct {
	*dns.Server
	udp, tcp string
}

// start starts a Server that ends when the test does.
func start(o dns.Options, services ...config.Service) *running {
	GinkgoHelper()
	log := logrus.New()
	log.SetOutput(GinkgoWriter)
	o.Log = log
	if o.ResolvConf == "" && o.Upstreams == nil {
		o.ResolvConf = "/none" // never the file of this machine
	}
	s, err := dns.New(o)
	Expect(err).NotTo(HaveOccurred())
	s.Apply(services)
	return serve(s)
}

func serve(s *dns.Server) *running {
	GinkgoHelper()
	pc, err := net.ListenPacket("udp", "127.0.0.1:0")
	Expect(err).NotTo(HaveOccurred())
	l, err := net.Listen("tcp", "127.0.0.1:0")
	Expect(err).NotTo(HaveOccurred())
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- s.Serve(ctx, pc, l) }()
	DeferCleanup(func() {
		cancel()
		Eventually(done).WithTimeout(30 * time.Second).Should(Receive(BeNil()))
	})
	return &running{s, pc.LocalAddr().String(), l.Addr().String()}
}

// question is a query for one name and type.
func question(name string, kind uint16, changes ...func(*mdns.Msg)) *mdns.Msg {
	m := new(mdns.Msg).SetQuestion(name, kind)
	for _, change := range changes {
		change(m)
	}
	return m
}

func edns(size uint16) func(*mdns.Msg) {
	return func(m *mdns.Msg) { m.SetEdns0(size, false) }
}

// ask sends a query over UDP.
func (r *running) ask(name string, kind uint16, changes ...func(*mdns.Msg)) *mdns.Msg {
	GinkgoHelper()
	return send("udp", r.udp, question(name, kind, changes...))
}

func send(network, to string, m *mdns.Msg) *mdns.Msg {
	GinkgoHelper()
	client := mdns.Client{Net: network, Timeout: 20 * time.Second}
	reply, _, err := client.Exchange(m, to)
	Expect(err).NotTo(HaveOccurred())
	return reply
}

// text formats records as the specification does, without their TTL.
func text(rrs []mdns.RR) []string {
	out := []string{}
	for _, rr := range rrs {
		if rr.Header().Rrtype == mdns.TypeOPT {
			continue
		}
		fields := strings.Fields(rr.String())
		out = append(out, strings.Join(append(fields[:1], fields[2:]...), " "))
	}
	return out
}

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

func tcp(name string, number uint16) config.DiscoveryPort {
	return config.DiscoveryPort{Name: name, Protocol: config.TCP, Number: number}
}

func service(name string, d *config.Discovery) config.Service {
	return config.Service{Name: types.NamespacedName{Namespace: "default", Name: name}, Discovery: d}
}

func clusterIP(name, ip string, ports ...config.DiscoveryPort) config.Service {
	return service(name, &config.Discovery{ClusterIPs: []netip.Addr{addr(ip)}, Ports: ports})
}

func externalName(name, other string) config.Service {
	return service(name, &config.Discovery{ExternalName: other})
}

func endpoint(hostname, ip string, ports ...config.DiscoveryPort) config.DiscoveryEndpoint {
	return config.DiscoveryEndpoint{Addr: addr(ip), Hostname: hostname, Ports: ports}
}

// ofTheSpecification are Services like those in the examples of the specification.
var ofTheSpecification = []config.Service{
	clusterIP("kubernetes", "10.3.0.1", tcp("https", 443)),
	clusterIP("plain", "10.3.0.5", tcp("", 80)),
	service("dual", &config.Discovery{ClusterIPs: []netip.Addr{addr("10.3.0.2"), addr("fd00:3::2")},
		Ports: []config.DiscoveryPort{{Name: "dns", Protocol: config.UDP, Number: 53}, {Name: "dns", Protocol: config.SCTP, Number: 53}, tcp("dns-tcp", 53)}}),
	service("headless", &config.Discovery{Ports: []config.DiscoveryPort{tcp("https", 443)}, Endpoints: []config.DiscoveryEndpoint{
		endpoint("my-pet", "10.3.0.100", tcp("https", 8443)),
		endpoint("my-pet-2", "10.3.0.101", tcp("https", 8443), tcp("", 80)),
		endpoint("", "10.3.0.102", tcp("https", 9443)),
		endpoint("my-pet", "fd00:3::100", tcp("https", 8443)),
	}}),
	service("empty", &config.Discovery{Ports: []config.DiscoveryPort{tcp("https", 443)}}),
	externalName("foo", "www.example.com"),
	externalName("inside", "kubernetes.default.svc.cluster.local"),
	externalName("nowhere", "nothing.default.svc.cluster.local"),
	externalName("here", "there.default.svc.cluster.local"),
	externalName("there", "here.default.svc.cluster.local"),
}

const suffix = ".default.svc.cluster.local. "

// names inserts the cluster's domain into lines that leave it out.
func names(lines ...string) []string {
	for i, l := range lines {
		lines[i] = strings.ReplaceAll(l, "+ ", suffix)
		if strings.HasSuffix(l, "+") {
			lines[i] = strings.TrimSuffix(lines[i], "+") + strings.TrimSpace(suffix)
		}
	}
	return lines
}

var _ = Describe("cluster names", func() {
	var s *running
	BeforeEach(func() { s = start(dns.Options{}, ofTheSpecification...) })

	DescribeTable("that exist are answered", func(name string, kind uint16, answer ...string) {
		reply := s.ask(strings.TrimSpace(names(name)[0]), kind)
		Expect(reply.Rcode).To(Equal(mdns.RcodeSuccess))
		Expect(reply.Authoritative).To(BeTrue())
		Expect(text(reply.Answer)).To(ConsistOf(names(answer...)))
		Expect(reply.Ns).To(BeEmpty())
		for _, rr := range reply.Answer {
			Expect(rr.Header().Ttl).To(BeEquivalentTo(5))
		}
	},
		Entry("2.2 the version", "dns-version.cluster.local.", mdns.TypeTXT, `dns-version.cluster.local. IN TXT "1.1.0"`),
		Entry("2.3.1 a cluster IP", "kubernetes+", mdns.TypeA, "kubernetes+ IN A 10.3.0.1"),
		Entry("2.3.1 an IPv6 cluster IP", "dual+", mdns.TypeAAAA, "dual+ IN AAAA fd00:3::2"),
		Entry("2.3.1 the IPv4 cluster IP of two", "dual+", mdns.TypeA, "dual+ IN A 10.3.0.2"),
		Entry("2.3.1 both for a query of all types", "dual+", mdns.TypeANY, "dual+ IN A 10.3.0.2", "dual+ IN AAAA fd00:3::2"),
		Entry("2.3.2 a port", "_https._tcp.kubernetes+", mdns.TypeSRV, "_https._tcp.kubernetes+ IN SRV 0 100 443 kubernetes+"),
		Entry("2.3.2 a UDP port", "_dns._udp.dual+", mdns.TypeSRV, "_dns._udp.dual+ IN SRV 0 100 53 dual+"),
		Entry("2.3.2 an SCTP port", "_dns._sctp.dual+", mdns.TypeSRV, "_dns._sctp.dual+ IN SRV 0 100 53 dual+"),
		Entry("2.3.3 the address of a Service", "1.0.3.10.in-addr.arpa.", mdns.TypePTR, "1.0.3.10.in-addr.arpa. IN PTR kubernetes+"),
		Entry("2.3.3 its IPv6 address", "2.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.3.0.0.0.0.0.d.f.ip6.arpa.", mdns.TypePTR,
			"2.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.3.0.0.0.0.0.d.f.ip6.arpa. IN PTR dual+"),
		Entry("2.4.1 a headless Service", "headless+", mdns.TypeA, "headless+ IN A 10.3.0.100", "headless+ IN A 10.3.0.101", "headless+ IN A 10.3.0.102"),
		Entry("2.4.1 its IPv6 endpoints", "headless+", mdns.TypeAAAA, "headless+ IN AAAA fd00:3::100"),
		Entry("2.4.1 an endpoint with a hostname", "my-pet.headless+", mdns.TypeA, "my-pet.headless+ IN A 10.3.0.100"),
		Entry("2.4.1 its IPv6 address", "my-pet.headless+", mdns.TypeAAAA, "my-pet.headless+ IN AAAA fd00:3::100"),
		Entry("2.4.1 an endpoint without a hostname", "10-3-0-102.headless+", mdns.TypeA, "10-3-0-102.headless+ IN A 10.3.0.102"),
		Entry("2.4.2 the ports of the endpoints", "_https._tcp.headless+", mdns.TypeSRV,
			"_https._tcp.headless+ IN SRV 0 100 8443 my-pet.headless+",
			"_https._tcp.headless+ IN SRV 0 100 8443 my-pet-2.headless+",
			"_https._tcp.headless+ IN SRV 0 100 9443 10-3-0-102.headless+"),
		Entry("2.4.3 the address of an endpoint", "100.0.3.10.in-addr.arpa.", mdns.TypePTR, "100.0.3.10.in-addr.arpa. IN PTR my-pet.headless+"),
		Entry("2.4.3 the address of an endpoint without a hostname", "102.0.3.10.in-addr.arpa.", mdns.TypePTR, "102.0.3.10.in-addr.arpa. IN PTR 10-3-0-102.headless+"),
		Entry("2.5 an external name itself", "foo+", mdns.TypeCNAME, "foo+ IN CNAME www.example.com."),
		Entry("2.5 an external name in the cluster", "inside+", mdns.TypeA, "inside+ IN CNAME kubernetes+", "kubernetes+ IN A 10.3.0.1"),
		Entry("2.6 a Pod's address", "10-1-2-3.default.pod.cluster.local.", mdns.TypeA, "10-1-2-3.default.pod.cluster.local. IN A 10.1.2.3"),
		Entry("2.6 a Pod's IPv6 address", "fd00--7.default.pod.cluster.local.", mdns.TypeAAAA, "fd00--7.default.pod.cluster.local. IN AAAA fd00::7"),
	)

	It("have an SOA record at the start of the zone", func() {
		reply := s.ask("cluster.local.", mdns.TypeSOA)
		Expect(reply.Answer).To(HaveLen(1))
		soa := reply.Answer[0].(*mdns.SOA)
		Expect(soa.Hdr.Name).To(Equal("cluster.local."))
		Expect(soa.Serial).To(BeNumerically("~", time.Now().Unix(), 60))
	})

	DescribeTable("without data of the type have an empty answer", func(name string, kind uint16) {
		reply := s.ask(strings.TrimSpace(names(name)[0]), kind)
		Expect(reply.Rcode).To(Equal(mdns.RcodeSuccess))
		Expect(reply.Answer).To(BeEmpty())
		expectSOA(reply, "cluster.local.")
	},
		Entry("the other family", "kubernetes+", mdns.TypeAAAA),
		Entry("another type", "kubernetes+", mdns.TypeMX),
		Entry("an endpoint's other family", "my-pet-2.headless+", mdns.TypeAAAA),
		Entry("the parent of ports", "_tcp.kubernetes+", mdns.TypeA),
		Entry("a port's address", "_https._tcp.kubernetes+", mdns.TypeA),
		Entry("a Namespace", "default.svc.cluster.local.", mdns.TypeA),
		Entry("the parent of Namespaces", "svc.cluster.local.", mdns.TypeA),
		Entry("the domain", "cluster.local.", mdns.TypeA),
		Entry("the version's address", "dns-version.cluster.local.", mdns.TypeA),
		Entry("a Pod's other family", "10-1-2-3.default.pod.cluster.local.", mdns.TypeAAAA),
	)

	It("have only PTR records for a Service's address", func() {
		reply := s.ask("1.0.3.10.in-addr.arpa.", mdns.TypeA)
		Expect(reply.Rcode).To(Equal(mdns.RcodeSuccess))
		expectSOA(reply, "1.0.3.10.in-addr.arpa.")
	})

	DescribeTable("that do not exist get NXDOMAIN", func(name string, kind uint16) {
		reply := s.ask(strings.TrimSpace(names(name)[0]), kind)
		Expect(reply.Rcode).To(Equal(mdns.RcodeNameError))
		Expect(reply.Answer).To(BeEmpty())
		expectSOA(reply, "cluster.local.")
	},
		Entry("no such Service", "nothing+", mdns.TypeA),
		Entry("no such Namespace", "kubernetes.other.svc.cluster.local.", mdns.TypeA),
		Entry("an unknown Namespace", "other.svc.cluster.local.", mdns.TypeA),
		Entry("an unknown kind of object", "kubernetes.default.ingress.cluster.local.", mdns.TypeA),
		Entry("an unnamed port", "_80._tcp.plain+", mdns.TypeSRV),
		Entry("a protocol of a Service without named ports", "_tcp.plain+", mdns.TypeSRV),
		Entry("a port of another protocol", "_https._udp.kubernetes+", mdns.TypeSRV),
		Entry("2.4.1 a headless Service without ready endpoints", "empty+", mdns.TypeA),
		Entry("the ports of a headless Service without ready endpoints", "_https._tcp.empty+", mdns.TypeSRV),
		Entry("no such endpoint", "my-pet-3.headless+", mdns.TypeA),
		Entry("an endpoint of a Service with a cluster IP", "10-0-0-1.kubernetes+", mdns.TypeA),
		Entry("below an endpoint", "a.my-pet.headless+", mdns.TypeA),
		Entry("below an external name", "a.foo+", mdns.TypeA),
		Entry("a wildcard for a Service", "*+", mdns.TypeA),
		Entry("a wildcard for a port", "_*._tcp.kubernetes+", mdns.TypeSRV),
		Entry("a dot within a label", `kubernetes\.default.svc.cluster.local.`, mdns.TypeA),
		Entry("a Pod that has no address", "web.default.pod.cluster.local.", mdns.TypeA),
		Entry("an address with a zone", "fe80--1%lo.default.pod.cluster.local.", mdns.TypeAAAA),
	)

	It("ignore case, and the answer has the name as in the query", func() {
		reply := s.ask("KubernetES.Default.SVC.cluster.LOCAL.", mdns.TypeA)
		Expect(text(reply.Answer)).To(ConsistOf("KubernetES.Default.SVC.cluster.LOCAL. IN A 10.3.0.1"))
		Expect(reply.Question[0].Name).To(Equal("KubernetES.Default.SVC.cluster.LOCAL."))
	})

	It("of a port are answered with its addresses as additional records", func() {
		Expect(text(s.ask("_dns._udp.dual.default.svc.cluster.local.", mdns.TypeSRV).Extra)).To(ConsistOf(names("dual+ IN A 10.3.0.2", "dual+ IN AAAA fd00:3::2")))
	})

	It("that are aliases of an unknown name get NXDOMAIN", func() {
		reply := s.ask("nowhere.default.svc.cluster.local.", mdns.TypeA)
		Expect(reply.Rcode).To(Equal(mdns.RcodeNameError))
		Expect(text(reply.Answer)).To(ConsistOf(names("nowhere+ IN CNAME nothing+")))
	})

	It("that are aliases of each other get SERVFAIL", func() {
		Expect(s.ask("here.default.svc.cluster.local.", mdns.TypeA).Rcode).To(Equal(mdns.RcodeServerFailure))
	})

	It("of all Services with the same endpoint address are returned", func() {
		s.Apply([]config.Service{service("other", &config.Discovery{Endpoints: []config.DiscoveryEndpoint{endpoint("pet", "10.3.0.100")}})})
		Expect(text(s.ask("100.0.3.10.in-addr.arpa.", mdns.TypePTR).Answer)).To(ConsistOf(names(
			"100.0.3.10.in-addr.arpa. IN PTR my-pet.headless+", "100.0.3.10.in-addr.arpa. IN PTR pet.other+")))
	})

	It("use the configured domain", func() {
		s := start(dns.Options{Domain: "Lab.Example."}, ofTheSpecification...)
		reply := s.ask("kubernetes.default.svc.lab.example.", mdns.TypeA)
		Expect(text(reply.Answer)).To(ConsistOf("kubernetes.default.svc.lab.example. IN A 10.3.0.1"))
		Expect(s.Domain()).To(Equal("lab.example"))
	})
})

// expectSOA expects that reply holds only the zone's SOA record.
func expectSOA(reply *mdns.Msg, zone string) {
	GinkgoHelper()
	Expect(reply.Authoritative).To(BeTrue())
	Expect(reply.Ns).To(HaveLen(1))
	soa := reply.Ns[0].(*mdns.SOA)
	Expect(soa.Hdr.Name).To(Equal(zone))
	Expect([]uint32{soa.Hdr.Ttl, soa.Minttl}).To(HaveEach(BeEquivalentTo(5)))
}

var _ = Describe("changing names", func() {
	It("are answered with the current data", func() {
		s := start(dns.Options{}, clusterIP("web", "10.3.0.1", tcp("http", 80)))
		s.Apply([]config.Service{service("web", &config.Discovery{Endpoints: []config.DiscoveryEndpoint{endpoint("a", "10.1.0.1")}})})
		Expect(text(s.ask("web.default.svc.cluster.local.", mdns.TypeA).Answer)).To(ConsistOf(names("web+ IN A 10.1.0.1")))
		Expect(s.ask("_http._tcp.web.default.svc.cluster.local.", mdns.TypeSRV).Rcode).To(Equal(mdns.RcodeNameError))

		before := s.ask("cluster.local.", mdns.TypeSOA).Answer[0].(*mdns.SOA).Serial
		s.Apply([]config.Service{service("web", nil)})
		Expect(s.ask("web.default.svc.cluster.local.", mdns.TypeA).Rcode).To(Equal(mdns.RcodeNameError))
		Expect(s.ask("default.svc.cluster.local.", mdns.TypeA).Rcode).To(Equal(mdns.RcodeNameError), "the Namespace is empty")
		Expect(s.ask("cluster.local.", mdns.TypeSOA).Answer[0].(*mdns.SOA).Serial).To(BeNumerically(">", before))
	})

	It("get SERVFAIL, not NXDOMAIN, before the initial sync", func() {
		s, err := dns.New(dns.Options{ResolvConf: "/none"})
		Expect(err).NotTo(HaveOccurred())
		r := serve(s)
		Expect(r.ask("web.default.svc.cluster.local.", mdns.TypeA).Rcode).To(Equal(mdns.RcodeServerFailure))
		s.Apply(nil)
		Expect(r.ask("web.default.svc.cluster.local.", mdns.TypeA).Rcode).To(Equal(mdns.RcodeNameError))
	})

	It("are answered consistently during changes", func() {
		s := start(dns.Options{}, ofTheSpecification...)
		change := func(n int) {
			host := fmt.Sprintf("pet-%d", n%3)
			s.Apply([]config.Service{
				service("headless", &config.Discovery{Endpoints: []config.DiscoveryEndpoint{endpoint(host, "10.3.0.100", tcp("https", 443)), endpoint("b", "10.3.0.101", tcp("https", 443))}}),
				clusterIP("kubernetes", fmt.Sprintf("10.3.0.%d", n%200+1), tcp("https", 443)),
			})
		}
		change(0) // start added three endpoints
		stop := make(chan struct{})
		changed := make(chan struct{})
		go func() {
			defer close(changed)
			for n := 1; ; n++ {
				select {
				case <-stop:
					return
				default:
					change(n)
				}
			}
		}()
		for range 300 {
			Expect(s.ask("headless.default.svc.cluster.local.", mdns.TypeA).Answer).To(HaveLen(2))
			Expect(s.ask("_https._tcp.headless.default.svc.cluster.local.", mdns.TypeSRV).Answer).To(HaveLen(2))
			Expect(s.ask("100.0.3.10.in-addr.arpa.", mdns.TypePTR).Answer).NotTo(BeEmpty())
			Expect(s.ask("kubernetes.default.svc.cluster.local.", mdns.TypeA).Answer).To(HaveLen(1))
		}
		close(stop)
		<-changed
	})
})
