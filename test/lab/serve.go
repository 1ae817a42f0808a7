package lab

import (
	"io"
	"net"
	"net/netip"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
)

// Serve calls handle for each client of l, each in a goroutine, until l is closed.
// It closes the client afterwards.
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

// Echo sends each datagram that c receives back, until c is closed.
func Echo(c *net.UDPConn) {
	go func() {
		buf := make([]byte, 64<<10)
		for {
			n, from, err := c.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			_, _ = c.WriteToUDPAddrPort(buf[:n], from)
		}
	}()
}

// Backend starts a server on a loopback port of this machine, and returns its address. It stops when the test ends.
func Backend(handle func(net.Conn)) netip.AddrPort {
	ginkgo.GinkgoHelper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	gomega.Expect(err).NotTo(gomega.HaveOccurred())
	ginkgo.DeferCleanup(func() { l.Close() })
	Serve(l, handle)
	return l.Addr().(*net.TCPAddr).AddrPort()
}

// Refusing returns a loopback address of this machine that refuses connections until the
// test ends: a connected socket occupies the port, so no listener gets it.
func Refusing() netip.AddrPort {
	ginkgo.GinkgoHelper()
	silent := Backend(func(c net.Conn) { _, _ = io.Copy(io.Discard, c) })
	c, err := net.Dial("tcp", silent.String())
	gomega.Expect(err).NotTo(gomega.HaveOccurred())
	ginkgo.DeferCleanup(func() { c.Close() })
	return c.LocalAddr().(*net.TCPAddr).AddrPort()
}
