//lint:file-ignore ST1001 checks are specs, and read like those in test files

package vm

import (
	"bytes"
	"net"
	"net/netip"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/usherproxy/usher/test/lab"
)

// who is the datagram that an echo server answers with its address.
const who = "who are you?"

// startEcho starts a UDP server that echoes datagrams.
func startEcho(ns *lab.Namespace, addr netip.Addr) netip.AddrPort {
	GinkgoHelper()
	at := netip.AddrPortFrom(addr, 5300)
	lab.ServeUDP(ns.ListenUDP(at.String()), func(datagram []byte, _ netip.AddrPort) []byte {
		if string(datagram) == who {
			return []byte(at.String())
		}
		return datagram
	})
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

// udpServed expects that a UDP Service whose first endpoint refuses is served to Pods, to the node and from outside.
func udpServed(flags ...string) {
	n := newNode(ipv4)
	good := startEcho(n.Pods, lab.Pod(1))
	s := dns(netip.AddrPortFrom(lab.Pod(2), 5300), good)
	n.put(s)
	n.start(flags...)
	for _, from := range []*lab.Namespace{n.Pods, n.Node, n.Outside} {
		for range 3 {
			Expect(exchange(dialUDP(from, s), []byte(who))).To(BeEquivalentTo(good.String()), from.Name)
		}
		c := dialUDP(from, s)
		for _, size := range []int{0, 1, 64, 1472, 1473, 65507} {
			sent := bytes.Repeat([]byte{byte(size)}, size)
			got, err := exchange(c, sent)
			Expect(err).NotTo(HaveOccurred(), "%s, %d bytes", from.Name, size)
			Expect(bytes.Equal(got, sent)).To(BeTrue(), "%s, %d bytes", from.Name, size)
		}
	}
	n.said(`attempt 1 → 10\.244\.0\.12:5300 .*connection refused`)
}

func udpEndpointLeaves(flags ...string) {
	n := newNode(ipv4)
	first, second := startEcho(n.Pods, lab.Pod(1)), startEcho(n.Pods, lab.Pod(2))
	s := dns(first)
	n.put(s)
	n.start(flags...)
	c := dialUDP(n.Pods, s)
	Expect(exchange(c, []byte(who))).To(BeEquivalentTo(first.String()))
	s.endpoints = []netip.AddrPort{second}
	n.put(s)
	n.said("closed after .*: endpoint-removed")
	Expect(exchange(c, []byte(who))).To(BeEquivalentTo(second.String()), "the same client")
}
