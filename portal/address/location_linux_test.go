package address

import (
	"context"
	"net/netip"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"
)

var _ = Describe("a VIP that could not be routed", func() {
	It("is no longer missing once its route exists", func() {
		p, vip := &addressPortal{}, netip.MustParseAddr("10.96.0.10")
		p.clear()
		p.users[vip], p.listening[vip], p.inNamespace[vip], p.routed[vip] = 1, 1, true, true
		p.missing[vip] = unix.EEXIST
		Expect(p.updateLocations(context.Background(), []netip.Addr{vip})).To(BeEmpty())
		Expect(p.missing).To(BeEmpty())
	})
})
