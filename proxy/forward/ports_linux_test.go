package forward

import (
	"net"
	"net/netip"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"
)

// exhausted returns the localPorts of a loop whose last calls of connect(2) were slow.
func exhausted(first, last uint16, now time.Time) localPorts {
	p := localPorts{first: first, last: last}
	for range slowConnects {
		p.took(slowConnect, now)
	}
	return p
}

func TestPortRangeIsReducedForATimeAfterSlowConnects(t *testing.T) {
	g := NewWithT(t)
	now := time.Now()
	p := localPorts{first: 32768, last: 60999}
	g.Expect(p.few(now)).To(BeZero())
	for range slowConnects { // as if the thread was preempted now and then
		p.took(slowConnect, now)
		p.took(slowConnect-1, now)
	}
	g.Expect(p.few(now)).To(BeZero())
	p = exhausted(32768, 60999, now)
	for range 1000 {
		few := p.few(now.Add(fewFor - 1))
		first, last := few&0xffff, few>>16
		g.Expect(first).To(BeNumerically(">=", 32768))
		g.Expect(last).To(BeNumerically("<=", 60999))
		g.Expect(last - first + 1).To(Equal(fewPorts))
	}
	g.Expect(p.few(now.Add(fewFor))).To(BeZero())
}

func TestSmallPortRangeIsNotReduced(t *testing.T) {
	g := NewWithT(t)
	for _, p := range []localPorts{exhausted(0, 0, time.Now()), exhausted(40000, 40000+fewPorts-1, time.Now())} {
		g.Expect(p.few(time.Now())).To(BeZero())
	}
}

func TestConnectUsesTheReducedPortRange(t *testing.T) {
	g := NewWithT(t)
	for _, at := range []string{"127.0.0.1:0", "[::1]:0"} {
		l, err := net.Listen("tcp", at)
		g.Expect(err).NotTo(HaveOccurred())
		defer l.Close()
		p := exhausted(32768, 60999, time.Now())
		few := p.few(time.Now())
		s, err := new(Loop).connectTCP(netip.AddrPort{}, l.Addr().(*net.TCPAddr).AddrPort(), 0, few, false)
		g.Expect(err).NotTo(HaveOccurred())
		defer s.Close()
		if _, err := unix.GetsockoptInt(int(s), unix.IPPROTO_IP, unix.IP_LOCAL_PORT_RANGE); err != nil {
			t.Skip("the kernel is older than 6.3")
		}
		local, err := LocalAddr(int(s))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(int(local.Port())).To(And(BeNumerically(">=", few&0xffff), BeNumerically("<=", few>>16)))
	}
}

func TestConnectTriesAllPortsOnceASecondIfTheReducedRangeIsInUse(t *testing.T) {
	g := NewWithT(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	g.Expect(err).NotTo(HaveOccurred())
	defer l.Close()
	to := l.Addr().(*net.TCPAddr).AddrPort()
	first, err := new(Loop).connectTCP(netip.AddrPort{}, to, 0, 0, false)
	g.Expect(err).NotTo(HaveOccurred())
	defer first.Close()
	local, err := LocalAddr(int(first))
	g.Expect(err).NotTo(HaveOccurred())
	taken := local.Port()
	second, err := new(Loop).connectTCP(netip.AddrPort{}, to, 0, int(taken)<<16|int(taken), false)
	if err == nil {
		second.Close()
		t.Skip("the kernel is older than 6.3")
	}
	g.Expect(err).To(Equal(unix.EADDRNOTAVAIL))

	p, now := localPorts{}, time.Now()
	g.Expect(p.maySearchAll(now)).To(BeTrue())
	g.Expect(p.maySearchAll(now.Add(searchAllAfter - 1))).To(BeFalse())
	g.Expect(p.maySearchAll(now.Add(searchAllAfter))).To(BeTrue())
}

func TestSocketsDoNotConnectToThemselves(t *testing.T) {
	for _, loopback := range []string{"127.0.0.1:0", "[::1]:0"} {
		t.Run(loopback, func(t *testing.T) {
			g := NewWithT(t)
			var unused netip.AddrPort
			// Another process may take the port meanwhile; the connection then uses a different source port.
			g.Eventually(func() error {
				l, err := net.Listen("tcp", loopback)
				g.Expect(err).NotTo(HaveOccurred())
				unused = l.Addr().(*net.TCPAddr).AddrPort()
				g.Expect(l.Close()).To(Succeed())
				itsPort := int(unused.Port())
				s, err := new(Loop).connectTCP(netip.AddrPort{}, unused, 0, itsPort<<16|itsPort, false)
				if err != nil {
					return err
				}
				defer s.Close()
				if _, unknown := unix.GetsockoptInt(int(s), unix.IPPROTO_IP, unix.IP_LOCAL_PORT_RANGE); unknown != nil {
					return unix.ECONNREFUSED // before Linux 6.3 a caller cannot choose the port
				}
				return nil
			}).Should(MatchError(unix.ECONNREFUSED))
			l, err := net.Listen("tcp", unused.String())
			g.Expect(err).NotTo(HaveOccurred(), "the port is free again")
			g.Expect(l.Close()).To(Succeed())
			for name, connect := range map[string]func() error{
				"TCP": func() error { _, err := new(Loop).connectTCP(unused, unused, 0, 0, false); return err },
				"UDP": func() error { _, err := ConnectUDP(0, unused, unused); return err },
			} {
				if err := connect(); err != unix.EADDRNOTAVAIL { // without the capability for a chosen source address
					g.Expect(err).To(Equal(unix.ECONNREFUSED), name)
				}
			}
		})
	}
}
