package none

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"runtime"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/usherproxy/usher/portal"
	. "github.com/usherproxy/usher/test/portaltest"
)

var _ = Describe("portal none", func() {
	everything, onlyHigh, onlyOne := loopback{many: true, low: true}, loopback{many: true}, loopback{}
	targets := []portal.Target{Target(portal.TCP, "10.96.0.10:80"), Target(portal.TCP, "[fd00::10]:80"), Target(portal.TCP, "0.0.0.0:30080"), Target(portal.TCP, "1.2.3.4:80")}
	at := func(system loopback, opts portal.Options, service string, targets ...portal.Target) netip.AddrPort {
		return newOn(system, opts).Listen(service, targets)[0].Addr
	}

	It("requests one loopback listener per IP family, with each target in exactly one", func() {
		p, err := Mode.New(context.Background(), portal.Options{})
		Expect(err).NotTo(HaveOccurred())
		binds := p.Listen("default/web", targets)
		Expect(binds).To(HaveLen(2))
		Expect(binds[0].Addr.Addr().IsLoopback()).To(BeTrue())
		Expect(binds[0].Targets).To(ConsistOf(targets[0], targets[2], targets[3]))
		Expect(binds[1].Addr.Addr()).To(Equal(netip.IPv6Loopback()))
		Expect(binds[1].Targets).To(ConsistOf(targets[1]))
		for _, b := range binds {
			Expect(b.Preferred).To(BeTrue())
			Expect(b.Redirected).To(BeFalse())
		}
	})
	It("detects the loopback features of the system", func() {
		system := lookAtLoopback()
		Expect(system.many).To(Equal(runtime.GOOS != "darwin"))
		if os.Geteuid() == 0 {
			Expect(system.low).To(BeTrue())
		}
	})
	It("gives each Service a dedicated address with the ports of the Service", func() {
		p := newOn(everything, portal.Options{})
		web := p.Listen("default/web", []portal.Target{Target(portal.TCP, "10.96.0.10:80")})[0].Addr
		Expect(netip.MustParsePrefix("127.64.0.0/10").Contains(web.Addr())).To(BeTrue())
		Expect(web.Port()).To(BeEquivalentTo(80))
		Expect(p.Listen("default/web", []portal.Target{Target(portal.TCP, "10.96.0.10:443")})[0].Addr).To(Equal(netip.AddrPortFrom(web.Addr(), 443)))
		Expect(p.Listen("default/web", []portal.Target{Target(portal.UDP, "10.96.0.10:53")})[0].Addr).To(Equal(netip.AddrPortFrom(web.Addr(), 53)))
		Expect(p.Listen("other/web", []portal.Target{Target(portal.TCP, "10.96.0.11:80")})[0].Addr.Addr()).NotTo(Equal(web.Addr()))
	})
	It("gives a Service the same address in every process, for any cluster IP", func() {
		Expect(at(everything, portal.Options{}, "default/web", Target(portal.TCP, "10.96.7.7:80"))).To(Equal(at(everything, portal.Options{}, "default/web", targets...)))
		Expect(at(everything, portal.Options{}, "default/web", targets...)).To(Equal(netip.MustParseAddrPort("127.79.36.49:80")), "also in the next version")
	})
	DescribeTable("supports a system or configuration with", func(system loopback, opts portal.Options, prefix string, first, last int) {
		web := at(system, opts, "default/web", targets...)
		Expect(web).To(Equal(at(system, opts, "default/web", targets...)), "the same in every process")
		Expect(netip.MustParsePrefix(prefix).Contains(web.Addr())).To(BeTrue(), "%s", web)
		Expect(web.Port()).To(And(BeNumerically(">=", first), BeNumerically("<=", last)))
	},
		Entry("no ports below 1024", onlyHigh, portal.Options{}, "127.64.0.0/10", 8080, 8080),
		Entry("one address", onlyOne, portal.Options{}, "127.0.0.1/32", 20000, 29999),
		Entry("a range of ports", everything, portal.Options{ProxyPorts: portal.PortRange{First: 5000, Last: 5009}}, "127.64.0.0/10", 5000, 5009),
		Entry("one address and a range of ports", onlyOne, portal.Options{ProxyPorts: portal.PortRange{First: 5000, Last: 5009}}, "127.0.0.1/32", 5000, 5009),
	)
	It("gives Services with colliding addresses different ones, and releases unused addresses", func() {
		book := newAddressAllocator(netip.MustParsePrefix("127.64.0.0/24"))
		tcp := func(i int) portal.Target { return To(portal.TCP, netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), 80) }
		service := func(i int) string { return fmt.Sprintf("default/s%d", i) }
		given := map[netip.Addr]bool{}
		for i := range 200 {
			given[book.propose(service(i), []portal.Target{tcp(i)})] = true
		}
		Expect(given).To(HaveLen(200))
		Expect(given).NotTo(HaveKey(netip.MustParseAddr("127.64.0.0")))
		Expect(given).NotTo(HaveKey(netip.MustParseAddr("127.64.0.255")))
		first := book.propose(service(0), nil)
		book.propose(service(0), []portal.Target{To(portal.UDP, tcp(0).Addr, 80)})
		book.forget(tcp(0))
		Expect(book.owner).To(HaveKeyWithValue(first, service(0)), "it still has a target")
		for i := range 200 {
			book.forget(tcp(i))
		}
		book.forget(To(portal.UDP, tcp(0).Addr, 80))
		for _, m := range []int{len(book.owner), len(book.addr), len(book.users), len(book.used)} {
			Expect(m).To(BeZero())
		}
	})
})
