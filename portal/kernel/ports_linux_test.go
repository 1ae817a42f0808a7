package kernel_test

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/usherproxy/usher/portal/kernel"
	. "github.com/usherproxy/usher/test/portaltest"
)

var _ = Describe("ports that are proposed for TCP listeners", func() {
	proposed := func(h *Host, count int) (ports []uint16) {
		h.Do(func() {
			f := kernel.NewFreePorts()
			for range count {
				ports = append(ports, f.Propose())
			}
		})
		return ports
	}

	It("are the ports that the kernel would select first, except reserved ones", func() {
		h := NewHost()
		h.Sh("echo 40000 40009 > /proc/sys/net/ipv4/ip_local_port_range; echo 40002-40003,40007 > /proc/sys/net/ipv4/ip_local_reserved_ports")
		Expect(proposed(h, 3)).To(ConsistOf(uint16(40001), uint16(40005), uint16(40009)))
		Expect(proposed(h, 6)).To(ContainElements(uint16(40001), uint16(40005), uint16(40009)))
	})
	It("are left to the kernel if all are reserved", func() {
		h := NewHost()
		h.Sh("echo 40000 40009 > /proc/sys/net/ipv4/ip_local_port_range; echo 40000-40009 > /proc/sys/net/ipv4/ip_local_reserved_ports")
		Expect(proposed(h, 1)).To(Equal([]uint16{0}))
	})
})
