package lab

import (
	"net"
	"net/netip"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
)

// Serve lets handle serve the clients of l, each in a goroutine, until l is closed.
// A client is closed behind it.
func Serve(l net.Listener, handle func(net.Conn)) {
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				handle(c)
			}()
		}
	}()
}

// Backend is a server on a port of this machine's loopback, until the test ends.
func Backend(handle func(net.Conn)) netip.AddrPort {
	ginkgo.GinkgoHelper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	gomega.Expect(err).NotTo(gomega.HaveOccurred())
	ginkgo.DeferCleanup(func() { l.Close() })
	Serve(l, handle)
	return l.Addr().(*net.TCPAddr).AddrPort()
}
