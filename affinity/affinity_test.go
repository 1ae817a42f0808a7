package affinity_test

import (
	"net/netip"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/usherproxy/usher/affinity"
)

func TestAffinity(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "affinity")
}

var (
	alice = netip.MustParseAddr("192.0.2.1")
	bob   = netip.MustParseAddr("2001:db8::2")
	carol = netip.MustParseAddr("192.0.2.3")
	one   = netip.MustParseAddrPort("10.1.0.1:8080")
	two   = netip.MustParseAddrPort("10.1.0.2:8080")
	start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
)

var _ = Describe("a Table", func() {
	var limits *affinity.Limits
	var table *affinity.Table

	BeforeEach(func() {
		limits = &affinity.Limits{PerTable: 2, Total: 3}
		table = affinity.NewTable(limits, 10*time.Second)
	})
	endpointOf := func(client netip.Addr, after time.Duration) netip.AddrPort {
		e, _ := table.Get(client, start.Add(after))
		return e
	}

	It("is empty at first", func() {
		Expect(endpointOf(alice, 0)).To(BeZero())
	})

	It("keeps an entry until exactly the timeout after the last new connection", func() {
		table.Set(alice, one, start)
		Expect(endpointOf(alice, 10*time.Second-1)).To(Equal(one))
		table.Set(alice, one, start.Add(9*time.Second))
		Expect(endpointOf(alice, 19*time.Second-1)).To(Equal(one), "the second connection restarts the timeout")
		Expect(endpointOf(alice, 19*time.Second)).To(BeZero())
		Expect(limits.Used()).To(BeZero(), "an expired entry is no longer counted")
	})

	It("does not prolong an entry on lookup", func() {
		table.Set(alice, one, start)
		for s := range 10 {
			Expect(endpointOf(alice, time.Duration(s)*time.Second)).To(Equal(one))
		}
		Expect(endpointOf(alice, 10*time.Second)).To(BeZero())
	})

	It("applies a new timeout to existing entries", func() {
		table.Set(alice, one, start)
		table.SetTimeout(20 * time.Second)
		Expect(endpointOf(alice, 19*time.Second)).To(Equal(one))
		table.SetTimeout(5 * time.Second)
		Expect(endpointOf(alice, 5*time.Second)).To(BeZero())
	})

	It("leaves the last eighth of all entries to small tables", func() {
		limits = &affinity.Limits{PerTable: 64, Total: 64}
		large, small := affinity.NewTable(limits, time.Minute), affinity.NewTable(limits, time.Minute)
		client := func(n byte) netip.Addr { return netip.AddrFrom4([4]byte{198, 51, 100, n}) }
		for n := range byte(100) {
			large.Set(client(n), one, start)
		}
		Expect(limits.Used()).To(BeEquivalentTo(56))
		Expect(large.Entries(start)[55].Client).To(Equal(client(99)))
		for n := range byte(100) {
			small.Set(client(n), one, start)
		}
		Expect(small.Entries(start)).To(HaveLen(4), "a sixteenth of the limit of a table")
		Expect(large.Entries(start)).To(HaveLen(56))
	})

	It("keeps no entries while affinity is off", func() {
		table.Set(alice, one, start)
		table.SetTimeout(0)
		table.Set(bob, one, start)
		table.SetTimeout(10 * time.Second)
		Expect(endpointOf(alice, 0)).To(BeZero())
		Expect(endpointOf(bob, 0)).To(BeZero())
	})

	It("removes a client's entry for a failed endpoint, but not its entry for another endpoint", func() {
		table.Set(alice, one, start)
		table.Set(bob, two, start)
		table.Forget(alice, one)
		table.Forget(bob, one)
		Expect(endpointOf(alice, 0)).To(BeZero())
		Expect(endpointOf(bob, 0)).To(Equal(two))
	})

	It("removes all entries of a removed endpoint", func() {
		table.Set(alice, one, start)
		table.Set(bob, one, start)
		Expect(table.ForgetEndpoints(map[netip.AddrPort]bool{two: true})).To(Equal(0))
		Expect(table.ForgetEndpoints(map[netip.AddrPort]bool{one: true, two: true})).To(Equal(2))
		Expect(table.Entries(start)).To(BeEmpty())
		Expect(limits.Used()).To(BeZero())
	})

	It("evicts the least recently used entry when it is full", func() {
		table.Set(alice, one, start)
		table.Set(bob, one, start)
		table.Set(alice, one, start)
		table.Set(carol, two, start)
		Expect(endpointOf(bob, 0)).To(BeZero())
		Expect(endpointOf(alice, 0)).To(Equal(one))
		Expect(endpointOf(carol, 0)).To(Equal(two))
		Expect(limits.Used()).To(Equal(int64(2)))
	})

	It("shares the total limit with other tables and never exceeds it", func() {
		others := affinity.NewTable(limits, time.Hour)
		others.Set(alice, one, start)
		others.Set(bob, one, start)
		table.Set(alice, two, start)
		table.Set(bob, two, start)
		Expect(limits.Used()).To(Equal(int64(3)))
		Expect(endpointOf(alice, 0)).To(BeZero(), "the table evicted its own oldest entry")
		Expect(endpointOf(bob, 0)).To(Equal(two))

		third := affinity.NewTable(limits, time.Hour)
		third.Set(carol, one, start)
		Expect(third.Entries(start)).To(BeEmpty(), "the table had no entry to evict")
		others.Close()
		table.Close()
		Expect(limits.Used()).To(BeZero())
	})

	It("gives concurrent claims of one client the same endpoint", func() {
		Expect(table.Claim(alice, one, start)).To(Equal(one))
		Expect(table.Claim(alice, two, start)).To(Equal(one))
		Expect(table.Claim(alice, two, start.Add(10*time.Second))).To(Equal(two), "the first claim has expired")
		table.SetTimeout(0)
		Expect(table.Claim(alice, one, start)).To(Equal(one), "without affinity no claim is kept")
	})

	It("lists its entries with the time left", func() {
		table.Set(alice, one, start)
		table.Set(bob, two, start.Add(4*time.Second))
		Expect(table.Entries(start.Add(6 * time.Second))).To(Equal([]affinity.Entry{
			{Client: alice, Endpoint: one, Left: 4 * time.Second},
			{Client: bob, Endpoint: two, Left: 8 * time.Second},
		}))
	})

	It("restores entries of another process unless its own expire later", func() {
		now := start.Add(time.Minute)
		table.Set(alice, one, now.Add(-2*time.Second))
		for client, left := range map[netip.Addr]time.Duration{alice: 5 * time.Second, bob: 3 * time.Second, carol: 0} {
			table.Restore(affinity.Entry{Client: client, Endpoint: two, Left: left}, now)
		}
		Expect(table.Entries(now)).To(ConsistOf(
			affinity.Entry{Client: alice, Endpoint: one, Left: 8 * time.Second},
			affinity.Entry{Client: bob, Endpoint: two, Left: 3 * time.Second},
		))
		table.Restore(affinity.Entry{Client: bob, Endpoint: one, Left: time.Hour}, now)
		Expect(table.Entries(now)).To(ContainElement(affinity.Entry{Client: bob, Endpoint: one, Left: 10 * time.Second}), "the timeout is shorter now")
	})

	It("signals that it has new entries", func() {
		changed := make(chan struct{}, 1)
		limits.Changed = changed
		table.Set(alice, one, start)
		table.Set(bob, one, start)
		Expect(changed).To(Receive())
		Expect(changed).NotTo(Receive())
		table.Claim(carol, two, start)
		Expect(changed).To(Receive())
	})
})
