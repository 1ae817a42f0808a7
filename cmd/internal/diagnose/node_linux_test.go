package diagnose

import (
	"net"
	"net/netip"
	"os"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/usherproxy/usher/proxy/admin/api"
)

var _ = Describe("a test of an endpoint whose listen backlog is full", func() {
	It("names the process, not a firewall, if connections got no response before", func() {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(unix.Close, fd)
		Expect(unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}})).To(Succeed())
		Expect(unix.Listen(fd, 0)).To(Succeed())
		bound, err := unix.Getsockname(fd)
		Expect(err).NotTo(HaveOccurred())
		at := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(bound.(*unix.SockaddrInet4).Port))
		Eventually(func() error { // until the kernel drops SYNs
			c, err := net.DialTimeout("tcp", at.String(), 200*time.Millisecond)
			if err == nil {
				DeferCleanup(c.Close)
			}
			return err
		}).WithTimeout(10 * time.Second).Should(MatchError(os.IsTimeout, "os.IsTimeout"))

		e := &api.Endpoint{Address: at.String()}
		f, is := reachOne(GinkgoT().Context(), place{}, e)
		Expect(is).To(BeTrue())
		Expect(f.Remedy).To(ContainSubstring("firewall"))
		e.NoResponse = 101
		f, _ = reachOne(GinkgoT().Context(), place{}, e)
		Expect(f.Wrong).To(ContainSubstring("its process probably hangs"))
		Expect(f.Known).To(ContainSubstring("101 connections got no response before"))
		Expect(f.Remedy).NotTo(ContainSubstring("firewall"))
	})
})
