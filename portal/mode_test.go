package portal

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/types"
	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"
)

var errRefusedForTest = errors.New("refused")

// HaveExactKeys matches the targets of a bisect's result.
func HaveExactKeys(want map[Target]bool) types.GomegaMatcher {
	return WithTransform(func(got map[Target]error) []Target { return sortedTargets(got) }, Equal(sortedTargets(want)))
}

var _ = Describe("choosing a portal", func() {
	fails := mode{"broken", func(context.Context, Options) (Portal, error) { return nil, errors.New("no kernel for it") }}
	works := mode{"works", newNone}

	It("takes the first that works and says why it passed over the others", func() {
		log, seen := logtest.NewNullLogger()
		p, err := first(context.Background(), []mode{fails, works, fails}, Options{Log: log})
		Expect(err).NotTo(HaveOccurred())
		Expect(p.Mode()).To(Equal(ModeNone))
		Expect(seen.AllEntries()).To(HaveLen(2))
		Expect(seen.AllEntries()[0].Message).To(Equal("portal passed over"))
		Expect(seen.AllEntries()[0].Data).To(HaveKeyWithValue(logrus.ErrorKey, MatchError("no kernel for it")))
	})
	It("says why nothing works", func() {
		_, err := first(context.Background(), []mode{fails}, Options{}.withDefaults())
		Expect(err).To(MatchError(ContainSubstring("broken: no kernel for it")))
	})
	It("names the modes when asked for another", func() {
		_, err := New(context.Background(), "ipvs", Options{})
		Expect(err).To(MatchError(`there is no portal called "ipvs"; there are auto, iptables, nftables, address, none`))
	})
	It("refuses an empty port range", func() {
		_, err := New(context.Background(), ModeNone, Options{ProxyPorts: PortRange{10, 5}})
		Expect(err).To(MatchError(ContainSubstring("10-5")))
	})
})

var _ = Describe("portal none", func() {
	everything, onlyHigh, onlyOne := loopback{many: true, low: true}, loopback{many: true}, loopback{}
	targets := []Target{target(TCP, "10.96.0.10:80"), target(TCP, "[fd00::10]:80"), target(TCP, "0.0.0.0:30080"), target(TCP, "1.2.3.4:80")}
	at := func(system loopback, opts Options, service string, targets ...Target) netip.AddrPort {
		return newNoneOn(system, opts).Listen(service, targets)[0].Addr
	}

	It("wants one listener on loopback per family, each target in exactly one", func() {
		p, err := New(context.Background(), ModeNone, Options{})
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
	It("finds out what the system has", func() {
		system := lookAtLoopback()
		Expect(system.many).To(Equal(runtime.GOOS != "darwin"))
		if os.Geteuid() == 0 {
			Expect(system.low).To(BeTrue())
		}
	})
	It("gives each Service an address of its own, and its own ports there", func() {
		p := newNoneOn(everything, Options{})
		web := p.Listen("default/web", []Target{target(TCP, "10.96.0.10:80")})[0].Addr
		Expect(netip.MustParsePrefix("127.64.0.0/10").Contains(web.Addr())).To(BeTrue())
		Expect(web.Port()).To(BeEquivalentTo(80))
		Expect(p.Listen("default/web", []Target{target(TCP, "10.96.0.10:443")})[0].Addr).To(Equal(netip.AddrPortFrom(web.Addr(), 443)))
		Expect(p.Listen("default/web", []Target{target(UDP, "10.96.0.10:53")})[0].Addr).To(Equal(netip.AddrPortFrom(web.Addr(), 53)))
		Expect(p.Listen("other/web", []Target{target(TCP, "10.96.0.11:80")})[0].Addr.Addr()).NotTo(Equal(web.Addr()))
	})
	It("gives it the same one in every process, whatever its cluster IP", func() {
		Expect(at(everything, Options{}, "default/web", target(TCP, "10.96.7.7:80"))).To(Equal(at(everything, Options{}, "default/web", targets...)))
		Expect(at(everything, Options{}, "default/web", targets...)).To(Equal(netip.MustParseAddrPort("127.79.36.49:80")), "also in the next version")
	})
	DescribeTable("where less can be had, keeps to what can:", func(system loopback, opts Options, prefix string, first, last int) {
		web := at(system, opts, "default/web", targets...)
		Expect(web).To(Equal(at(system, opts, "default/web", targets...)), "the same in every process")
		Expect(netip.MustParsePrefix(prefix).Contains(web.Addr())).To(BeTrue(), "%s", web)
		Expect(web.Port()).To(And(BeNumerically(">=", first), BeNumerically("<=", last)))
	},
		Entry("no ports below 1024", onlyHigh, Options{}, "127.64.0.0/10", 8080, 8080),
		Entry("one address", onlyOne, Options{}, "127.0.0.1/32", 20000, 29999),
		Entry("a range of ports", everything, Options{ProxyPorts: PortRange{5000, 5009}}, "127.64.0.0/10", 5000, 5009),
		Entry("one address and a range of ports", onlyOne, Options{ProxyPorts: PortRange{5000, 5009}}, "127.0.0.1/32", 5000, 5009),
	)
	It("gives two Services that want the same address different ones, and takes back what is not used", func() {
		book := newAddressBook(netip.MustParsePrefix("127.64.0.0/24"))
		tcp := func(i int) Target { return Target{TCP, netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), 80} }
		service := func(i int) string { return fmt.Sprintf("default/s%d", i) }
		given := map[netip.Addr]bool{}
		for i := range 200 {
			given[book.propose(service(i), []Target{tcp(i)})] = true
		}
		Expect(given).To(HaveLen(200))
		Expect(given).NotTo(HaveKey(netip.MustParseAddr("127.64.0.0")))
		Expect(given).NotTo(HaveKey(netip.MustParseAddr("127.64.0.255")))
		first := book.propose(service(0), nil)
		book.propose(service(0), []Target{{UDP, tcp(0).Addr, 80}})
		book.forget(tcp(0))
		Expect(book.owner).To(HaveKeyWithValue(first, service(0)), "it has a target still")
		for i := range 200 {
			book.forget(tcp(i))
		}
		book.forget(Target{UDP, tcp(0).Addr, 80})
		for _, m := range []int{len(book.owner), len(book.addr), len(book.users), len(book.used)} {
			Expect(m).To(BeZero())
		}
	})
	It("never promises a port twice while it is in use", func() {
		book := newPortBook(PortRange{100, 102})
		ports := map[uint16]bool{}
		for i := range 3 {
			ports[book.propose(Target{TCP, netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), 80})] = true
		}
		Expect(ports).To(HaveLen(3))
		full := target(TCP, "10.0.0.9:80")
		Expect(book.propose(full)).To(BeZero())
		book.forget(target(TCP, "10.0.0.1:80"))
		Expect(book.propose(full)).NotTo(BeZero())
	})
})

var _ = Describe("a RuleError", func() {
	It("names the first target and how many there are", func() {
		a, b := target(TCP, "10.0.0.1:80"), target(TCP, "10.0.0.2:80")
		Expect((&RuleError{map[Target]error{a: errRefusedForTest}}).Error()).To(
			Equal("the portal rule for 10.0.0.1:80/tcp was refused: refused"))
		Expect((&RuleError{map[Target]error{b: errRefusedForTest, a: errRefusedForTest}}).Error()).To(
			Equal("2 portal rules were refused, the first for 10.0.0.1:80/tcp: refused"))
	})
	DescribeTable("refuses what no portal can carry", func(r Rule, why string) {
		Expect(r.check()).To(MatchError(ContainSubstring(why)))
	},
		Entry("no address", Rule{}, "no address"),
		Entry("no port", redirect(target(TCP, "10.0.0.1:0"), 5), "port 0"),
		Entry("another protocol", redirect(target(50, "10.0.0.1:1"), 5), "protocol 50"),
		Entry("no local port", redirect(target(TCP, "10.0.0.1:1"), 0), "local port"),
		Entry("multicast", redirect(target(TCP, "224.0.0.1:1"), 1), "multicast"),
	)
	It("takes an IPv4 address in an IPv6 one's clothes for what it is", func() {
		wanted := map[Target]Rule{}
		changed, bad := merge(wanted, []Rule{redirect(target(TCP, "[::ffff:10.0.0.1]:80"), 5)}, nil)
		Expect(bad).To(BeEmpty())
		Expect(changed).To(ConsistOf(target(TCP, "10.0.0.1:80")))
		Expect(wanted).To(HaveKey(target(TCP, "10.0.0.1:80")))
	})
})
