//lint:file-ignore ST1001 checks are specs, and read like those in test files

package vm

import (
	"net"
	"net/netip"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/usherproxy/usher/test/lab"
)

// startEcho starts a UDP server that echoes datagrams.
func startEcho(ns *lab.Namespace, addr netip.Addr) netip.AddrPort {
	GinkgoHelper()
	at := netip.AddrPortFrom(addr, 5300)
	lab.Echo(ns.ListenUDP(at.String()))
	return at
}

// dns returns a UDP Service.
func dns(endpoints ...netip.AddrPort) service {
	return service{name: "dns", vip: netip.MustParseAddrPort("10.96.0.12:53"), protocol: "UDP", endpoints: endpoints}
}

// dialUDP returns a new client of a Service.
func dialUDP(from *lab.Namespace, s service) net.Conn {
	GinkgoHelper()
	c, err := from.NewDialer(1).DialUDP("", s.vip.String())
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(c.Close)
	return c
}

// exchange sends a datagram and returns the next one that comes back.
func exchange(c net.Conn, datagram []byte) ([]byte, error) {
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		return nil, err
	}
	if _, err := c.Write(datagram); err != nil {
		return nil, err
	}
	buf := make([]byte, 1<<16)
	n, err := c.Read(buf)
	return buf[:n], err
}
