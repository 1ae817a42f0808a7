package lab

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"os"

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

// ServeUDP sends back the answer to each datagram that c receives, until c is closed.
func ServeUDP(c *net.UDPConn, answer func(datagram []byte, from netip.AddrPort) []byte) {
	go func() {
		buf := make([]byte, 64<<10)
		for {
			n, from, err := c.ReadFromUDPAddrPort(buf)
			if errors.Is(err, net.ErrClosed) || errors.Is(err, os.ErrDeadlineExceeded) {
				return
			}
			if err == nil {
				_, _ = c.WriteToUDPAddrPort(answer(buf[:n], from), from)
			}
		}
	}()
}

// Echo sends each datagram that c receives back, until c is closed.
func Echo(c *net.UDPConn) {
	ServeUDP(c, func(datagram []byte, _ netip.AddrPort) []byte { return datagram })
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
