package test

import (
	"bytes"
	"io"
	"net/netip"
	"os/exec"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gbytes"
	"github.com/onsi/gomega/gexec"
	"golang.org/x/sys/unix"

	"github.com/usherproxy/usher/test/lab"
)

// These specs verify docs/requirements.md for kernels that lack a feature.
var _ = Describe("usher on a kernel that lacks features", func() {
	var l *lab.Lab
	var dir string
	var web service
	BeforeEach(func() {
		l, dir = lab.New(), manifestsDir()
		web = service{name: "web", clusterIP: "10.96.0.10", port: 80, endpoints: []netip.AddrPort{startBackend(l.Pods, lab.Pod(1), 8080).addr}}
		web.write(dir)
	})
	option := func(level, name uint32) lab.Refusal {
		return lab.Refusal{Call: unix.SYS_SETSOCKOPT, Level: level, Name: name, Errno: unix.ENOPROTOOPT}
	}
	start := func(lacks []lab.Refusal, flags ...string) *gexec.Session {
		GinkgoHelper()
		var session *gexec.Session
		l.Node.Do(func() (err error) {
			if err := lab.Refuse(lacks...); err != nil {
				return err
			}
			session, err = gexec.Start(exec.Command(usherBinary, append([]string{"run", "--manifests", dir, "--log-format=text"}, flags...)...), GinkgoWriter, GinkgoWriter)
			return err
		})
		DeferCleanup(func() { session.Kill().Wait(30 * time.Second) })
		return session
	}
	// answers expects that the endpoint echoes a stream that is large enough for a pipe.
	answers := func() {
		GinkgoHelper()
		c, err := l.Pods.NewDialer(1).Dial("", web.vip(), 5*time.Second)
		Expect(err).NotTo(HaveOccurred())
		defer c.Close()
		Expect(c.SetDeadline(time.Now().Add(20 * time.Second))).To(Succeed())
		sent := bytes.Repeat([]byte("0123456789abcde\n"), 4<<20/16)
		go func() {
			_, _ = c.Write(sent) // the comparison below detects lost bytes
			_ = c.CloseWrite()
		}()
		got, err := io.ReadAll(c)
		Expect(err).NotTo(HaveOccurred())
		Expect(string(got[:len(got)-len(sent)])).To(Equal(web.endpoints[0].String() + "\n"))
		Expect(bytes.Equal(got[len(got)-len(sent):], sent)).To(BeTrue())
	}

	DescribeTable("exits with an error if the missing feature is", func(lacks lab.Refusal, says string) {
		session := start([]lab.Refusal{lacks})
		Eventually(session).WithTimeout(time.Minute).Should(gexec.Exit(1))
		Expect(string(session.Err.Contents())).To(MatchRegexp(`this kernel \(Linux [^)]+\) lacks a required feature: .*` + says + `.*; see docs/requirements.md`))
	},
		Entry("IP_FREEBIND", option(unix.SOL_IP, unix.IP_FREEBIND), `a TCP listener: setting IP_FREEBIND: protocol not available`),
		Entry("IP_PKTINFO", option(unix.SOL_IP, unix.IP_PKTINFO), `a UDP socket: setting IP_PKTINFO: protocol not available`),
		Entry("recvmmsg", lab.Refusal{Call: unix.SYS_RECVMMSG, Errno: unix.ENOSYS}, `receiving datagrams: recvmmsg: function not implemented`),
		Entry("sendmmsg, forbidden by a seccomp filter", lab.Refusal{Call: unix.SYS_SENDMMSG, Errno: unix.EPERM}, `sending datagrams: sendmmsg: operation not permitted`),
	)

	It("warns and serves only IPv4 if IPV6_FREEBIND is missing", func() {
		session := start([]lab.Refusal{option(unix.SOL_IPV6, unix.IPV6_FREEBIND)})
		Eventually(session.Err).WithTimeout(time.Minute).Should(gbytes.Say("Serving"))
		Expect(string(session.Err.Contents())).To(MatchRegexp(`level=warning msg="Cannot serve IPv6 Services: the kernel .*IPV6_FREEBIND: protocol not available`))
		answers()
	})

	DescribeTable("serves all Services without optional features,", func(portal string) {
		var lacks []lab.Refusal
		for _, o := range [][2]uint32{{unix.SOL_UDP, unix.UDP_SEGMENT}, {unix.SOL_IP, unix.IP_LOCAL_PORT_RANGE}, {unix.SOL_IP, unix.IP_BIND_ADDRESS_NO_PORT},
			{unix.SOL_SOCKET, unix.SO_RXQ_OVFL}, {unix.SOL_SOCKET, unix.SO_RCVBUF}, {unix.SOL_IP, unix.IP_RECVTTL}, {unix.SOL_SOCKET, unix.SO_MARK}, {unix.SOL_IP, unix.IP_TRANSPARENT}} {
			lacks = append(lacks, option(o[0], o[1]))
		}
		for _, call := range []uint32{unix.SYS_SPLICE, unix.SYS_MEMFD_CREATE} {
			lacks = append(lacks, lab.Refusal{Call: call, Errno: unix.ENOSYS})
		}
		echo := startEcho(l.Pods, lab.Pod(1))
		udp := service{name: "dns", clusterIP: "10.96.0.11", port: 53, protocol: "UDP", endpoints: []netip.AddrPort{echo}}
		udp.write(dir)
		session := start(lacks, "--portal="+portal)
		Eventually(session.Err).WithTimeout(time.Minute).Should(gbytes.Say("Serving"))
		answers()
		Expect(askWho(l.Pods.NewDialer(1), "", udp.vip())).To(Equal(echo))
		if portal != "address" {
			Expect(string(session.Err.Contents())).To(MatchRegexp(`level=warning msg="While usher is not running, other processes on this node can receive packets that clients send to VIPs" error="setsockopt IP_TRANSPARENT: protocol not available" family=IPv4`))
		}
	},
		Entry("through the iptables portal", "iptables"),
		Entry("through the nftables portal", "nftables"),
		Entry("through the address portal", "address"),
	)

	It("cannot take over without SO_TXTIME, and the running instance keeps serving", func() {
		first := start(nil)
		Eventually(first.Err).WithTimeout(time.Minute).Should(gbytes.Say("Serving"))
		second := start([]lab.Refusal{option(unix.SOL_SOCKET, unix.SO_TXTIME)}, "--take-over")
		Eventually(second).WithTimeout(time.Minute).Should(gexec.Exit())
		Expect(second.ExitCode()).NotTo(BeZero())
		Expect(string(second.Err.Contents())).To(ContainSubstring("SO_TXTIME, Linux 4.19"))
		answers()
	})
})
