package lab

import (
	"net"
	"net/netip"
	"time"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	"golang.org/x/sys/unix"
)

// Silent returns a loopback address of this machine that does not respond, until the
// test ends: a listener whose backlog is full, so that the kernel drops SYNs.
func Silent() netip.AddrPort {
	ginkgo.GinkgoHelper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	gomega.Expect(err).NotTo(gomega.HaveOccurred())
	ginkgo.DeferCleanup(unix.Close, fd)
	loopback := [4]byte{127, 0, 0, 1}
	gomega.Expect(unix.Bind(fd, &unix.SockaddrInet4{Addr: loopback})).To(gomega.Succeed())
	gomega.Expect(unix.Listen(fd, 0)).To(gomega.Succeed())
	at, err := unix.Getsockname(fd)
	gomega.Expect(err).NotTo(gomega.HaveOccurred())
	addr := netip.AddrPortFrom(netip.AddrFrom4(loopback), uint16(at.(*unix.SockaddrInet4).Port))
	gomega.Eventually(func() error {
		c, err := net.DialTimeout("tcp", addr.String(), 100*time.Millisecond)
		if err == nil {
			ginkgo.DeferCleanup(c.Close)
		}
		return err
	}).WithTimeout(10 * time.Second).Should(gomega.MatchError(gomega.ContainSubstring("timeout")))
	return addr
}
