package test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gbytes"
	"github.com/onsi/gomega/gexec"
	"golang.org/x/sys/unix"

	"github.com/usherproxy/usher/proxy/admin/api"
	"github.com/usherproxy/usher/test/lab"
)

// landings are usher's redirect addresses: usher listens there, and rules redirect there even while it does not run.
var landings = []string{"192.0.0.117", "fd75:7368:6572::1"}

// impostor acts as a process without capabilities on the node, and tries to answer for Services.
type impostor struct {
	ns   *lab.Namespace
	user int
	// received is the number of connections and datagrams that it received.
	received atomic.Int64
	open     []interface{ Close() error }
}

// bind binds a port as the impostor's user, shared with any other process that allows it
// (SO_REUSEPORT), and counts connections and datagrams. It returns the error of the bind.
func (i *impostor) bind(network, address string) (err error) {
	GinkgoHelper()
	i.ns.Do(func() error { // on a dedicated thread: user and capabilities are per thread
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var none [2]unix.CapUserData
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(i.user), uintptr(i.user), uintptr(i.user)); errno != 0 {
			return os.NewSyscallError("setresuid", errno)
		}
		if err := unix.Capset(&header, &none[0]); err != nil {
			return os.NewSyscallError("capset", err)
		}
		config := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) (err error) {
			control := raw.Control(func(fd uintptr) {
				err = errors.Join(unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1),
					unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1),
					unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_FREEBIND, 1)) // also for IPv6
				if unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_TRANSPARENT, 1) == nil {
					err = errors.New("the impostor has a capability")
				}
			})
			return errors.Join(err, control)
		}}
		if network == "udp" {
			var c net.PacketConn
			if c, err = config.ListenPacket(GinkgoT().Context(), network, address); err == nil {
				i.open = append(i.open, c)
				lab.ServeUDP(c.(*net.UDPConn), func([]byte, netip.AddrPort) []byte {
					i.received.Add(1)
					return []byte("forged")
				})
			}
			return nil
		}
		var l net.Listener
		if l, err = config.Listen(GinkgoT().Context(), network, address); err == nil {
			i.open = append(i.open, l)
			lab.Serve(l, func(net.Conn) { i.received.Add(1) })
		}
		return nil
	})
	return err
}

func (i *impostor) close() {
	for _, c := range i.open {
		c.Close()
	}
	i.open = nil
}

// redirectedTo returns the local port to which the portal's rules redirect each VIP.
func redirectedTo(ns *lab.Namespace) map[string]uint16 {
	GinkgoHelper()
	p := launch(ns, exec.Command(usherBinary, "get", "portals", "-A", "-o", "json", "--admin-address=127.0.0.1:1"), "")
	Eventually(p).WithTimeout(time.Minute).Should(gexec.Exit(0))
	var answer struct{ Items []api.PortalRule }
	Expect(json.Unmarshal(p.Out.Contents(), &answer)).To(Succeed())
	ports := map[string]uint16{}
	for _, r := range answer.Items {
		ports[strings.ToLower(r.Protocol)+" "+r.VIP] = r.LocalPort
	}
	return ports
}

var _ = Describe("the protection of Services against impostors on the node", func() {
	var (
		l        *lab.Lab
		dir      string
		services []service
		pod      *lab.Dialer
	)
	BeforeEach(func() {
		l = lab.New()
		dir = manifestsDir()
		pod = l.Pods.NewDialer(2)
		services = nil
		for i, network := range []string{"10.96.0.", "fd00:10:96::"} {
			at := []netip.Addr{lab.Pod(1), lab.Pod6(1)}[i]
			services = append(services,
				service{name: fmt.Sprintf("web%d", i), clusterIP: network + "10", port: 8080, endpoints: []netip.AddrPort{startBackend(l.Pods, at, 8080).addr}},
				service{name: fmt.Sprintf("dns%d", i), clusterIP: network + "11", port: 5353, protocol: "UDP", endpoints: []netip.AddrPort{startEcho(l.Pods, at)}})
		}
		for _, s := range services {
			s.write(dir)
		}
	})
	network := func(s service) string {
		if s.protocol == "UDP" {
			return "udp"
		}
		return "tcp"
	}
	// answer sends a request to a Service, and returns the name of the endpoint or any other reply.
	answer := func(s service, patience time.Duration) (string, error) {
		if network(s) == "udp" {
			c, err := pod.DialUDP("", s.vip())
			if err != nil {
				return "", err
			}
			defer c.Close()
			got, err := exchange(c, []byte(who), patience)
			return string(got), err
		}
		c, err := pod.Dial("", s.vip(), patience)
		if err != nil {
			return "", err
		}
		defer c.Close()
		name, err := readName(c)
		return name.String(), err
	}
	served := func(s service) {
		GinkgoHelper()
		Eventually(func() (string, error) { return answer(s, 10*time.Second) }).WithTimeout(time.Minute).Should(Equal(s.endpoints[0].String()))
	}

	for _, mode := range []string{"iptables", "nftables"} {
		for _, end := range []os.Signal{syscall.SIGTERM, syscall.SIGKILL} {
			It(fmt.Sprintf("prevents binds, and keeps clients waiting for the next instance after %s, with the %s portal", end, mode), func() {
				if mode == "iptables" {
					missing("iptables")
				}
				u := startUsher(l.Node, dir, "--portal="+mode)
				local := redirectedTo(l.Node)
				landing := func(i int) string {
					port := local[network(services[i])+" "+services[i].vip()]
					Expect(port).NotTo(BeZero(), "%v", local)
					return netip.AddrPortFrom(netip.MustParseAddr(landings[i/2]), port).String()
				}
				alike := &impostor{ns: l.Node} // of usher's user
				for i, s := range services {
					Expect(alike.bind(network(s), landing(i))).To(MatchError(syscall.EADDRINUSE))
					for range 5 {
						served(s)
					}
				}
				Expect(alike.received.Load()).To(BeZero())
				u.Signal(end)
				Eventually(u).WithTimeout(time.Minute).Should(gexec.Exit())

				Expect(redirectedTo(l.Node)).To(Equal(local))
				bad := &impostor{ns: l.Node, user: 65534}
				for i, s := range services {
					Expect(bad.bind(network(s), landing(i))).To(Succeed())
				}
				for _, s := range services {
					got, err := answer(s, 500*time.Millisecond)
					Expect(err).To(Satisfy(os.IsTimeout), "%s answered %q", s.name, got)
				}
				Expect(bad.received.Load()).To(BeZero())

				By("making clients wait")
				bad.close()
				waiting := make(chan error, 2)
				for _, s := range []service{services[0], services[2]} {
					go func() {
						_, err := answer(s, 30*time.Second)
						waiting <- err
					}()
				}
				for range 2 {
					Consistently(waiting, "200ms").ShouldNot(Receive())
				}
				startUsher(l.Node, dir, "--portal="+mode)
				for range 2 {
					Eventually(waiting).WithTimeout(30 * time.Second).Should(Receive(BeNil()))
				}
				for _, s := range services {
					served(s)
				}
			})
		}
	}

	It("prevents binds, also while a keeper has the sockets of a killed instance, with the address portal", func() {
		k := startKept(l.Node, dir, "--portal=address")
		alike := &impostor{ns: l.Node} // of usher's user
		for _, s := range services {
			Expect(alike.bind(network(s), s.vip())).To(MatchError(syscall.EADDRINUSE))
			for range 5 {
				served(s)
			}
		}
		Expect(alike.received.Load()).To(BeZero())
		Expect(syscall.Kill(k.child(), syscall.SIGKILL)).To(Succeed())
		bad := &impostor{ns: l.Node, user: 65534}
		for _, s := range services {
			Expect(bad.bind(network(s), s.vip())).To(MatchError(syscall.EADDRINUSE))
			served(s)
		}
	})

	It("does not stop Services without endpoints from refusing TCP and UDP clients, and is restored after its rules are flushed", func() {
		kept := services[0] // has a listener, to which the rules redirect
		kept.name, kept.clusterIP = "kept", "10.96.0.99"
		kept.write(dir)
		for i := range services {
			services[i].endpoints = nil
			services[i].write(dir)
		}
		for _, mode := range []string{"iptables", "nftables"} {
			u := startUsher(l.Node, dir, "--portal="+mode, "--portal-check-interval=1s")
			for _, s := range services {
				Expect(answer(s, 5*time.Second)).Error().To(refused, "%s, %s", mode, s.name)
			}
			flush := []string{"nft", "flush", "chain", "ip", "usher", "listeners"}
			if mode == "iptables" {
				flush = []string{"iptables", "-t", "mangle", "-F", "INPUT"}
			}
			l.Node.Output(flush[0], flush[1:]...)
			Eventually(u.Err).WithTimeout(time.Minute).Should(gbytes.Say("Restored missing or changed rules"))
			u.Interrupt()
			Eventually(u).WithTimeout(time.Minute).Should(gexec.Exit(0))
		}
	})
})

var _ = Describe("an instance that was taken over", func() {
	It("polls no socket of its successor", func() {
		l := lab.New()
		dir := manifestsDir()
		pod := l.Pods.NewDialer(2)
		web := service{name: "web", clusterIP: clusterIP, port: 80, endpoints: []netip.AddrPort{startBackend(l.Pods, lab.Pod(1), 8080).addr}}
		dns := service{name: "dns", clusterIP: "10.96.0.11", port: 53, protocol: "UDP", endpoints: []netip.AddrPort{startEcho(l.Pods, lab.Pod(1))}}
		// usher does not hand over a connection while clients of its Service are queued, so the first instance stays.
		web.metadata = `, annotations: {usher.io/max-connections-per-endpoint: "1", usher.io/queue-timeout: 5m}`
		web.write(dir)
		dns.write(dir)
		first := startUsher(l.Node, dir, "--portal=nftables", "--drain-timeout=5m")
		stays, err := pod.Dial("", web.vip(), 10*time.Second)
		Expect(err).NotTo(HaveOccurred())
		Expect(readName(stays)).Error().NotTo(HaveOccurred())
		queued, err := pod.Dial("", web.vip(), 10*time.Second)
		Expect(err).NotTo(HaveOccurred())
		defer queued.Close()
		Eventually(func() string { return adminText(l.Node.NewDialer(1), "/api/v1/status") }).WithTimeout(30 * time.Second).Should(ContainSubstring(`"accepted":2,"established":1,`))
		client, err := pod.DialUDP("", dns.vip())
		Expect(err).NotTo(HaveOccurred())
		defer client.Close()
		Expect(exchange(client, []byte(who), 10*time.Second)).Error().NotTo(HaveOccurred())

		second := startUsher(l.Node, dir, "--portal=nftables", "--take-over")
		Eventually(first.Err).WithTimeout(30 * time.Second).Should(gbytes.Say("has taken over"))
		Expect(exchange(client, []byte(who), 10*time.Second)).Error().NotTo(HaveOccurred())
		Expect(sockets(second)).NotTo(BeEmpty())
		Eventually(func() []string {
			theirs := sockets(second)
			var both []string
			for _, inode := range polled(first) {
				if theirs[inode] {
					both = append(both, inode)
				}
			}
			return both
		}).WithTimeout(time.Minute).Should(BeEmpty(), "it would be woken by each of the successor's datagrams")
		Expect(pingPong(stays)).To(Succeed())
		Expect(first).NotTo(gexec.Exit())
	})
})

// sockets returns the inode numbers of a process's sockets.
func sockets(u *usher) map[string]bool {
	GinkgoHelper()
	inodes := map[string]bool{}
	fds, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", u.Command.Process.Pid))
	Expect(err).NotTo(HaveOccurred())
	for _, fd := range fds {
		link, _ := os.Readlink(fd) // it may be closed by now
		if inode, is := strings.CutPrefix(link, "socket:["); is {
			inodes[strings.TrimSuffix(inode, "]")] = true
		}
	}
	return inodes
}

// polled returns the inode numbers of the files that a process's epoll descriptors watch
// (proc(5)).
func polled(u *usher) (inodes []string) {
	GinkgoHelper()
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/fdinfo/*", u.Command.Process.Pid))
	Expect(err).NotTo(HaveOccurred())
	for _, file := range files {
		text, _ := os.ReadFile(file)
		for _, match := range watchedInode.FindAllSubmatch(text, -1) {
			var inode uint64
			_, err := fmt.Sscanf(string(match[1]), "%x", &inode)
			Expect(err).NotTo(HaveOccurred())
			inodes = append(inodes, fmt.Sprint(inode))
		}
	}
	return inodes
}

var watchedInode = regexp.MustCompile(`(?m)^tfd:.* ino:([0-9a-f]+)`)
