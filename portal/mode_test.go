package portal

import (
	"context"
	"errors"
	"net/netip"

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
	open := func() Portal {
		p, err := New(context.Background(), ModeNone, Options{})
		Expect(err).NotTo(HaveOccurred())
		return p
	}
	targets := []Target{target(TCP, "10.96.0.10:80"), target(TCP, "[fd00::10]:80"), target(TCP, "0.0.0.0:30080"), target(TCP, "1.2.3.4:80")}

	It("wants one listener on loopback per family, each target in exactly one", func() {
		binds := open().Listen(targets)
		Expect(binds).To(HaveLen(2))
		Expect(binds[0].Addr.Addr()).To(Equal(netip.MustParseAddr("127.0.0.1")))
		Expect(binds[0].Targets).To(ConsistOf(targets[0], targets[2], targets[3]))
		Expect(binds[1].Addr.Addr()).To(Equal(netip.IPv6Loopback()))
		Expect(binds[1].Targets).To(ConsistOf(targets[1]))
		for _, b := range binds {
			Expect(b.Preferred).To(BeTrue())
			Expect(b.Redirected).To(BeFalse())
			Expect(b.Addr.Port()).To(And(BeNumerically(">=", 20000), BeNumerically("<=", 29999)))
		}
	})
	It("proposes the same port in every process, whatever the order of targets", func() {
		other := []Target{targets[3], targets[2], targets[1], targets[0]}
		Expect(open().Listen(other)).To(Equal(open().Listen(targets)))
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
