package test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gbytes"
	"golang.org/x/sys/unix"

	"github.com/usherproxy/usher/test/lab"
)

// A flood of one Service takes CPU time from all Services, with or without usher. So the specs compare
// connections by usher with direct ones, in alternating rounds during the same floods.
var _ = Describe("A Service and DNS, during floods of TCP connections and of UDP from 100,000 addresses,", serial, func() {
	for _, portal := range []string{"nftables", "address"} {
		for _, six := range []bool{false, true} {
			family := map[bool]string{false: "IPv4", true: "IPv6"}[six]
			It("respond almost as fast as directly, with the portal "+portal+", "+family, func() { fairnessSpec(portal, six) })
		}
	}
})

func fairnessSpec(portal string, six bool) {
	const rounds, each = 3, time.Second
	l := lab.New()
	pod, vip, gateway, crowd := lab.Pod, "10.96.0.%d", lab.PodClient4, crowd4
	if six {
		pod, vip, gateway, crowd = lab.Pod6, "fd00:96::%d", lab.PodClient6, crowd6
	}
	of := func(n int, name, protocol string) service {
		s := service{name: name, clusterIP: fmt.Sprintf(vip, 10+n), port: 80, protocol: protocol}
		if protocol == "UDP" {
			s.endpoints = []netip.AddrPort{startEcho(l.Pods, pod(n))}
		} else {
			s.endpoints = []netip.AddrPort{startBackend(l.Pods, pod(n), 8080).addr}
		}
		return s
	}
	loved, asked, web, dns := of(1, "loved", "TCP"), of(2, "asked", "UDP"), of(3, "web", "TCP"), of(4, "dns", "UDP")
	dir := manifestsDir()
	for _, s := range []service{loved, asked, web, dns} {
		s.write(dir)
	}
	// All of these addresses belong to the Pods, behind one neighbor.
	l.Node.Output("ip", "route", "add", crowd.String(), "via", gateway)
	l.Pods.Output("ip", "route", "add", "local", crowd.String(), "dev", "lo")
	// With the default range, the node runs out of ports after minutes; with this one, at once. The flooding
	// clients are in another namespace and keep their range.
	l.Node.Output("sysctl", "-qw", "net.ipv4.ip_local_port_range=32768 34815")
	plain, err := releasedUsher()
	Expect(err).NotTo(HaveOccurred())
	u := launch(l.Node, exec.Command(plain, "run", "--manifests", dir, "--portal="+portal, "--log-format=text"), dir)
	Eventually(u.Err).WithTimeout(time.Minute).Should(gbytes.Say("Serving"))
	clients, node := l.Pods.NewDialer(20), l.Node.NewDialer(2)
	from := pod(20).String()

	self, err := os.Executable()
	Expect(err).NotTo(HaveOccurred())
	for _, s := range []service{loved, asked} {
		cmd := exec.Command(self)
		cmd.Env = append(os.Environ(), "GOMAXPROCS=1", floodVariable+"="+s.protocol+" "+s.vip())
		launchServer(l.Pods, cmd)
	}
	begun := func(s service) float64 {
		return metric(node, `usher_service_connections_total{namespace="default",service="`+s.name+`"}`)
	}
	for _, s := range []service{loved, asked} {
		Eventually(func() float64 { return begun(s) }).WithTimeout(2*time.Minute).Should(BeNumerically(">", 2500), s.name)
	}

	var direct, served [2][]time.Duration // p99 of each round
	for range rounds {
		newDirect, dnsDirect := beside(clients, from, web.endpoints[0].String(), dns.endpoints[0].String(), each)
		newServed, dnsServed := beside(clients, from, web.vip(), dns.vip(), each)
		direct[0], direct[1] = append(direct[0], newDirect), append(direct[1], dnsDirect)
		served[0], served[1] = append(served[0], newServed), append(served[1], dnsServed)
	}
	AddReportEntry("p99 of rounds", fmt.Sprintf("new connections: direct %v, by usher %v; DNS: direct %v, by usher %v; floods: %.0f connections, %.0f UDP sessions",
		direct[0], served[0], direct[1], served[1], begun(loved), begun(asked)))
	const noise = 500 * time.Millisecond // from other programs on this machine; without fair shares, p99 is seconds in each round
	for i, what := range []string{"new connections", "DNS"} {
		Expect(slices.Min(served[i])).To(BeNumerically("<=", 2*slices.Max(direct[i])+noise), what)
	}
}

// beside opens connections, 16 at a time, and sends DNS queries until lasting has passed. It returns the
// p99 duration of each. It resets its connections, so that none keeps a port in TIME_WAIT for a minute.
func beside(d *lab.Dialer, from, web, dns string, lasting time.Duration) (webP99, dnsP99 time.Duration) {
	GinkgoHelper()
	end := time.Now().Add(lasting)
	var mu sync.Mutex
	var clients sync.WaitGroup
	client := func(took *[]time.Duration, ask func() error) {
		clients.Go(func() {
			defer GinkgoRecover()
			for time.Now().Before(end) {
				began := time.Now()
				Expect(ask()).To(Succeed())
				mu.Lock()
				*took = append(*took, time.Since(began))
				mu.Unlock()
			}
		})
	}
	var newOnes, queries []time.Duration
	for range 16 {
		client(&newOnes, func() error {
			c, err := d.Dial(from, web, 30*time.Second)
			if err != nil {
				return err
			}
			defer c.Close()
			if _, err := readName(c); err != nil {
				return err
			}
			return c.SetLinger(0)
		})
	}
	for range 2 {
		client(&queries, func() error {
			_, _ = askWho(d, from, dns) // the machine's full queues drop some queries, which then take 10 s
			return nil
		})
	}
	clients.Wait()
	return quantile(newOnes, 0.99), quantile(queries, 0.99)
}

// crowd4 and crowd6 are the networks of the clients that send datagrams.
var crowd4, crowd6 = netip.MustParsePrefix("10.200.0.0/15"), netip.MustParsePrefix("fd00:200::/64")

// floodVariable makes this program a flood. Its value is a protocol and an address.
const floodVariable = "USHER_TEST_FLOOD"

func init() {
	protocol, vip, _ := strings.Cut(os.Getenv(floodVariable), " ")
	switch protocol {
	case "TCP":
		floodTCP(vip)
	case "UDP":
		floodUDP(netip.MustParseAddrPort(vip))
	}
}

// floodTCP opens connections, and closes each at once.
func floodTCP(vip string) {
	for range 32 {
		go func() {
			for {
				if c, err := net.DialTimeout("tcp", vip, time.Second); err == nil {
					c.Close()
				}
			}
		}()
	}
	select {}
}

// floodUDP sends datagrams from 100,000 addresses in turn.
func floodUDP(vip netip.AddrPort) {
	network, level, freebind := "udp4", unix.IPPROTO_IP, unix.IP_FREEBIND
	if vip.Addr().Is6() {
		network, level, freebind = "udp6", unix.IPPROTO_IPV6, unix.IPV6_FREEBIND
	}
	config := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		var failed error
		err := raw.Control(func(fd uintptr) { failed = unix.SetsockoptInt(int(fd), level, freebind, 1) })
		return errors.Join(err, failed)
	}}
	c, err := config.ListenPacket(context.Background(), network, "")
	if err != nil {
		panic(err)
	}
	for n := uint32(0); ; n++ {
		var source []byte // see ip(7), ipv6(7)
		if at := 1 + n%100_000; vip.Addr().Is4() {
			source = unix.PktInfo4(&unix.Inet4Pktinfo{Spec_dst: [4]byte(binary.BigEndian.AppendUint32(nil, binary.BigEndian.Uint32(crowd4.Addr().AsSlice())+at))})
		} else {
			from := crowd6.Addr().As16()
			binary.BigEndian.PutUint32(from[12:], at)
			source = unix.PktInfo6(&unix.Inet6Pktinfo{Addr: from})
		}
		_, _, _ = c.(*net.UDPConn).WriteMsgUDPAddrPort([]byte("x"), source, vip)
	}
}
