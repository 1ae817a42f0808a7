package main

import (
	"net/netip"
	"testing"

	. "github.com/onsi/gomega"
)

// within tells in which families, of two addresses, node ports are served.
func within(n nodePortAddresses, addrs ...string) (in []string) {
	for _, a := range addrs {
		for _, p := range n.networks {
			if p.Contains(netip.MustParseAddr(a)) {
				in = append(in, a)
				break
			}
		}
	}
	return in
}

func TestNodePortsAreNowhereUntilThePrimaryAddressesAreKnown(t *testing.T) {
	g := NewWithT(t)
	all := []string{"127.0.0.1", "192.0.2.1", "192.0.2.2", "::1", "2001:db8::1"}
	n, err := parseNodePortAddresses([]string{primary}, netip.Addr{})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(n.networks).NotTo(BeEmpty(), "none would be all")
	g.Expect(within(n, all...)).To(BeEmpty())

	n = n.at([]netip.Addr{netip.MustParseAddr("192.0.2.1")})
	g.Expect(within(n, all...)).To(Equal([]string{"192.0.2.1"}), "and none of the other family")
	n = n.at([]netip.Addr{netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("2001:db8::1")})
	g.Expect(within(n, all...)).To(Equal([]string{"192.0.2.2", "2001:db8::1"}))
	g.Expect(within(n.at(nil), all...)).To(BeEmpty())
}

func TestBindAddressIsThePrimaryAddressOfItsFamily(t *testing.T) {
	g := NewWithT(t)
	n, err := parseNodePortAddresses([]string{primary}, netip.MustParseAddr("192.0.2.7"))
	g.Expect(err).NotTo(HaveOccurred())
	n = n.at([]netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")})
	g.Expect(within(n, "192.0.2.1", "192.0.2.7", "2001:db8::1")).To(Equal([]string{"192.0.2.7", "2001:db8::1"}))
}

func TestNodePortNetworksOfOneFamilyLeaveTheOtherAlone(t *testing.T) {
	g := NewWithT(t)
	n, err := parseNodePortAddresses([]string{"192.0.2.0/24"}, netip.Addr{})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(within(n, "192.0.2.1", "127.0.0.1", "::1")).To(Equal([]string{"192.0.2.1", "::1"}))
}
