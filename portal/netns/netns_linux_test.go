package netns

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/test/lab"
	"github.com/usherproxy/usher/test/portaltest"
)

const (
	roleInside   = "netns-test-inside"   // the helper
	roleOrdinary = "netns-test-ordinary" // a non-root user that creates a namespace
	roleReplaces = "netns-test-replaces" // replaces /etc/resolv.conf, in a mount namespace, while a command runs
)

// TestMain also plays the roles of other processes.
func TestMain(m *testing.M) {
	role := ""
	if len(os.Args) > 1 {
		role = os.Args[1]
	}
	switch role {
	case roleInside:
		if err := Inside(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	case roleOrdinary:
		n, err := Start(options)
		if err == nil {
			defer n.Close()
			_, err = n.Run(Command{Path: "/bin/sh", Args: []string{"sh", "-c", "id -u; cat /etc/resolv.conf; grep CapEff /proc/self/status"}}, nil)
		}
		if err != nil {
			fmt.Println(err)
		}
	case roleReplaces:
		if err := replaceWhileRunning(); err != nil {
			fmt.Println(err)
		}
	default:
		os.Exit(m.Run())
	}
}

func TestNetns(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "portal/netns")
}

// replaceWhileRunning replaces /etc/resolv.conf by renaming another file, while a command runs, as DHCP clients do.
func replaceWhileRunning() error {
	err := errors.Join(unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""), unix.Mount("tmpfs", "/etc", "tmpfs", 0, ""),
		os.WriteFile("/etc/resolv.conf", nil, 0o644))
	if err != nil {
		return err
	}
	n, err := Start(options)
	if err != nil {
		return err
	}
	defer n.Close()
	err = errors.Join(os.WriteFile("/etc/new", []byte("nameserver 192.0.2.53\n"), 0o644), os.Rename("/etc/new", "/etc/resolv.conf"))
	if err != nil {
		return err
	}
	_, err = n.Run(Command{Path: "/bin/sh", Args: []string{"sh", "-c", "sleep 2; cat /etc/resolv.conf"}}, nil)
	return err
}

var options = Options{Self: []string{roleInside}, ResolvConf: "nameserver 192.0.0.6\n"}

// made creates a namespace that is removed when the test ends. It skips the test if the kernel does not allow a
// namespace.
func made(with ...func(*Options)) *Namespace {
	GinkgoHelper()
	o := options
	for _, change := range with {
		change(&o)
	}
	n, err := Start(o)
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.ENOSPC) {
		Skip(err.Error())
	}
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(n.Close)
	return n
}

// script returns a shell script as a command, and the file with its output.
func script(text string) (c Command, said string) {
	said = filepath.Join(GinkgoT().TempDir(), "said")
	return Command{Path: "/bin/sh", Args: []string{"sh", "-c", `exec > "$SAID"; ` + text}, Env: append(os.Environ(), "SAID="+said)}, said
}

// run runs a script, and returns its output and exit code.
func run(n *Namespace, text string) (said string, code int) {
	GinkgoHelper()
	c, file := script(text)
	code, err := n.Run(c, nil)
	Expect(err).NotTo(HaveOccurred())
	content, err := os.ReadFile(file)
	Expect(err).NotTo(HaveOccurred())
	return string(content), code
}

// networkOf returns the cookie of a socket's network namespace.
func networkOf(fd int) uint64 {
	GinkgoHelper()
	cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	Expect(err).NotTo(HaveOccurred())
	return cookie
}

// connect connects a new TCP socket of the namespace to an address.
func connect(n *Namespace, to netip.AddrPort) (net.Conn, error) {
	fd, err := n.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "client")
	defer f.Close()
	if err := unix.Connect(fd, &unix.SockaddrInet4{Addr: to.Addr().As4(), Port: int(to.Port())}); err != nil {
		return nil, err
	}
	return net.FileConn(f)
}

// answerAll sends word to all clients of l.
func answerAll(l net.Listener, word string) {
	DeferCleanup(func() { l.Close() })
	lab.Serve(l, func(c net.Conn) { _, _ = io.WriteString(c, word) })
}

// asks returns the response at an address of the namespace.
func asks(n *Namespace, at netip.AddrPort) (string, error) {
	c, err := connect(n, at)
	if err != nil {
		return "", err
	}
	defer c.Close()
	text, err := io.ReadAll(c)
	return string(text), err
}

var _ = Describe("a namespace", func() {
	It("has a separate network and the configured resolver", func() {
		before, err := os.ReadFile("/etc/resolv.conf")
		Expect(err).NotTo(HaveOccurred())
		outside, err := os.Readlink("/proc/self/ns/net")
		Expect(err).NotTo(HaveOccurred())
		said, code := run(made(), "readlink /proc/self/ns/net; cat /etc/resolv.conf")
		Expect(code).To(BeZero())
		inside, conf, _ := strings.Cut(said, "\n")
		Expect(inside).To(HavePrefix("net:["))
		Expect(inside).NotTo(Equal(outside))
		Expect(conf).To(Equal(options.ResolvConf))
		Expect(os.ReadFile("/etc/resolv.conf")).To(Equal(before), "the file outside is unchanged")
	})

	It("keeps the configured resolver when another process replaces the file outside", func() {
		cmd := exec.Command("/proc/self/exe", roleReplaces)
		cmd.SysProcAttr = lab.InNamespaces(syscall.CLONE_NEWNS)
		out, err := cmd.CombinedOutput()
		Expect(err).NotTo(HaveOccurred(), string(out))
		Expect(string(out)).To(Equal(options.ResolvConf))
	})

	It("can be created without a resolver", func() {
		n := made(func(o *Options) { o.ResolvConf = "" })
		said, _ := run(n, "cat /etc/resolv.conf")
		Expect(said).To(BeEmpty())
		l, err := n.Listen(netip.AddrPortFrom(Address, 0))
		Expect(err).NotTo(HaveOccurred())
		Expect(l.Close()).To(Succeed())
	})

	It("hides the sockets of other resolvers", func() {
		said, _ := run(made(), "for s in "+strings.Join(resolverSockets, " ")+"; do test -S $s && echo $s; done; true")
		Expect(said).To(BeEmpty())
	})

	It("can be created by a non-root user, whose command has no capabilities", func() {
		lab.UserNamespaces()
		if os.Geteuid() != 0 {
			Skip("all other specs cover this")
		}
		cmd := exec.Command("/proc/self/exe", roleOrdinary)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		out, err := cmd.CombinedOutput()
		Expect(err).NotTo(HaveOccurred(), string(out))
		Expect(strings.Fields(string(out))).To(Equal([]string{"65534", "nameserver", "192.0.0.6", "CapEff:", "0000000000000000"}))
	})

	It("is removed with all its processes when it is closed", func() {
		n := made()
		said, _ := run(n, "setsid sleep 1000 & echo $!")
		pid, err := strconv.Atoi(strings.TrimSpace(said))
		Expect(err).NotTo(HaveOccurred())
		Expect(lab.Runs(pid)).To(BeTrue())
		n.Close()
		Expect(lab.Runs(pid)).To(BeFalse())
		_, err = n.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
		Expect(err).To(MatchError(ContainSubstring("requesting a descriptor from the namespace")))
		_, err = n.Run(Command{Path: "/bin/true", Args: []string{"true"}}, nil)
		Expect(err).To(MatchError(ContainSubstring("the helper in the namespace does not respond")))
	})

	DescribeTable("that cannot be created reports the reason",
		func(err error, hint bool) {
			said := forbidden(err)
			Expect(said).To(MatchError(err))
			Expect(strings.Contains(said.Error(), insteadOf)).To(Equal(hint), said.Error())
		},
		Entry("with an alternative if it is forbidden", &os.PathError{Op: "fork/exec", Path: "x", Err: unix.EPERM}, true),
		Entry("with an alternative if there are too many", unix.ENOSPC, true),
		Entry("without an alternative for another error", fs.ErrNotExist, false),
	)

	It("reports the helper's error number", func() {
		Expect(&insideError{"starting: no such file", unix.ENOENT}).To(MatchError(fs.ErrNotExist))
		Expect(&insideError{"starting: unknown", 0}).NotTo(MatchError(fs.ErrNotExist))
	})

	It("has a helper command that users cannot run directly", func() {
		out, err := exec.Command("/proc/self/exe", roleInside).CombinedOutput()
		Expect(err).To(HaveOccurred())
		Expect(string(out)).To(ContainSubstring("internal command; run 'kubectl usher exec'"))
	})
})

var _ = Describe("sockets that are created in a namespace", func() {
	It("serve its clients, also on low ports", func() {
		n := made()
		at := netip.AddrPortFrom(Address, 53)
		l, err := n.Listen(at)
		Expect(err).NotTo(HaveOccurred())
		answerAll(l, "from outside")
		Expect(asks(n, at)).To(Equal("from outside"))

		packets, err := n.ListenPacket(at)
		Expect(err).NotTo(HaveOccurred())
		defer packets.Close()
		client, err := n.ListenPacket(netip.AddrPortFrom(Address, 0))
		Expect(err).NotTo(HaveOccurred())
		defer client.Close()
		Expect(client.WriteTo([]byte("hello"), packets.LocalAddr())).To(Equal(5))
		buf := make([]byte, 10)
		size, from, err := packets.ReadFrom(buf)
		Expect(err).NotTo(HaveOccurred())
		Expect(string(buf[:size])).To(Equal("hello"))
		Expect(from).To(Equal(client.LocalAddr()))
	})

	It("are distinct for concurrent callers, and have close-on-exec set", func() {
		n := made()
		const askers, each = 10, 30 // more sockets than are made ahead at once
		fds := make(chan int, askers*each)
		var all sync.WaitGroup
		for range askers {
			all.Go(func() {
				defer GinkgoRecover()
				for range each {
					fd, err := n.Socket(unix.AF_INET6, unix.SOCK_DGRAM, 0)
					Expect(err).NotTo(HaveOccurred())
					fds <- fd
				}
			})
		}
		all.Wait()
		close(fds)
		Expect(fds).To(HaveLen(askers * each))
		own, err := unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		Expect(err).NotTo(HaveOccurred())
		defer unix.Close(own)
		inside := map[uint64]bool{}
		for fd := range fds {
			flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
			Expect(err).NotTo(HaveOccurred())
			Expect(flags & unix.FD_CLOEXEC).NotTo(BeZero())
			inside[networkOf(fd)] = true
			Expect(unix.Close(fd)).To(Succeed(), "each is returned once")
		}
		Expect(inside).To(HaveLen(1))
		Expect(inside).NotTo(HaveKey(networkOf(own)))
	})

	It("return the errors of socket(2) and bind(2)", func() {
		n := made()
		_, err := n.Socket(unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_UDP)
		Expect(err).To(MatchError(unix.EPROTONOSUPPORT))
		elsewhere := netip.MustParseAddrPort("192.0.2.1:80")
		_, err = n.Listen(elsewhere)
		Expect(err).To(And(MatchError(unix.EADDRNOTAVAIL), MatchError(ContainSubstring("binding 192.0.2.1:80"))))
		Expect(asks(n, elsewhere)).Error().To(MatchError(unix.ENETUNREACH), "there is no route out before Tun")
	})

	It("reach other networks through the TUN device", func() {
		n := made()
		tun, err := n.Tun()
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) {
			Expect(err).To(MatchError(ContainSubstring("; ")), "the error includes advice")
			Skip(err.Error())
		}
		Expect(err).NotTo(HaveOccurred())
		defer tun.Close()
		client, err := n.ListenPacket(netip.AddrPortFrom(Address, 0))
		Expect(err).NotTo(HaveOccurred())
		defer client.Close()
		Expect(client.WriteTo([]byte("out"), net.UDPAddrFromAddrPort(netip.MustParseAddrPort("192.0.2.7:9")))).To(Equal(3))
		packet := make([]byte, MTU)
		for { // skips others: the kernel looks for IPv6 routers
			Expect(tun.SetReadDeadline(time.Now().Add(10 * time.Second))).To(Succeed())
			size, err := tun.Read(packet)
			Expect(err).NotTo(HaveOccurred())
			if packet[0]>>4 != 4 {
				continue
			}
			// RFC 791: addresses from byte 12 on; 28 bytes of headers.
			Expect(packet[12:20]).To(Equal([]byte{192, 0, 0, 6, 192, 0, 2, 7}))
			Expect(string(packet[28:size])).To(Equal("out"))
			return
		}
	})
})

var _ = Describe("the portal of a namespace", func() {
	target := portal.Target{Protocol: portal.TCP, Addr: netip.MustParseAddr("10.96.0.10"), Port: 80}
	vip := netip.AddrPortFrom(target.Addr, target.Port)

	It("makes VIPs local addresses in the namespace until they are removed", func(ctx context.Context) {
		n := made()
		p := n.Portal()
		Expect(p.Mode()).To(Equal("address"))
		Expect(p.Listen("default/web", []portal.Target{target})).To(Equal([]portal.Bind{{Addr: vip, Targets: []portal.Target{target}}}))
		rule := portal.Rule{Target: target, Action: portal.Redirect, LocalPort: 80, Comment: "default/web"}
		Expect(p.Apply(ctx, []portal.Rule{rule}, nil)).To(portaltest.BeDone())
		l, err := n.Listen(vip)
		Expect(err).NotTo(HaveOccurred())
		answerAll(l, "the Service")
		Expect(asks(n, vip)).To(Equal("the Service"))
		Expect(p.Check(ctx)).To(And(portaltest.BeDone(), HaveField("Repaired", BeEmpty())))
		Expect(p.Compare(ctx)).To(Equal([]portal.Comparison{{Mode: "address", Traits: p.Traits(), Rule: rule, State: portal.StateOK}}))

		Expect(l.Close()).To(Succeed())
		Expect(p.Apply(ctx, nil, []portal.Target{target})).To(portaltest.BeDone())
		Eventually(func() error { // a route stays as long as a connection needs it
			Expect(p.Check(ctx)).To(portaltest.BeDone())
			_, err := connect(n, vip)
			return err
		}).WithTimeout(10 * time.Second).Should(MatchError(unix.ENETUNREACH))
		Expect(p.Compare(ctx)).To(BeEmpty())
	})

	It("repairs changes by other programs, and reports its repairs", func(ctx context.Context) {
		if _, err := exec.LookPath("ip"); err != nil || os.Geteuid() != 0 {
			Skip("requires ip(8) and root: commands of other users have no capabilities")
		}
		n := made()
		p := n.Portal()
		Expect(p.Apply(ctx, []portal.Rule{{Target: target, LocalPort: 80}}, nil)).To(portaltest.BeDone())
		_, code := run(n, "ip route del local 10.96.0.10 table local")
		Expect(code).To(BeZero())
		Expect(p.Compare(ctx)).To(ConsistOf(HaveField("State", portal.StateMissing)))
		Expect(p.Check(ctx)).To(And(portaltest.BeDone(), HaveField("Repaired", HaveLen(1))))
		Expect(p.Compare(ctx)).To(ConsistOf(HaveField("State", portal.StateOK)))
	})

	It("reports an error after the namespace is closed", func(ctx context.Context) {
		n := made()
		n.Close()
		Expect(n.Portal().Listen("default/web", []portal.Target{target})).To(BeEmpty())
		Expect(n.Portal().Apply(ctx, nil, nil).Err).To(MatchError(ContainSubstring("does not respond")))
	})

	DescribeTable("returns the results of the portal inside unchanged:",
		func(want portal.Result) {
			got := resultOf(want).plain(nil)
			Expect(got.Refused).To(HaveLen(len(want.Refused)))
			for t, why := range want.Refused {
				Expect(got.Refused[t]).To(MatchError(why.Error()))
			}
			if want.Err != nil {
				Expect(got.Err).To(MatchError(want.Err.Error()))
			} else {
				Expect(got.Err).NotTo(HaveOccurred())
			}
			got.Refused, got.Err, want.Refused, want.Err = nil, nil, nil, nil
			Expect(got).To(Equal(want))
		},
		Entry("no change", portal.Result{}),
		Entry("a refused rule", portal.Result{Refused: map[portal.Target]error{target: errors.New("why")}}),
		Entry("moved listeners and a repair", portal.Result{Moved: []portal.Target{target}, Repaired: []string{"10.96.0.10"}}),
		Entry("another error", portal.Result{Err: errors.New("the kernel is busy"), Unaffected: [...]bool{portal.IPv4: true, portal.IPv6: false}}),
	)
})

var _ = Describe("the command in a namespace", func() {
	It("has the given arguments and environment, and the current directory", func() {
		folder, err := os.Getwd()
		Expect(err).NotTo(HaveOccurred())
		GinkgoT().Setenv("ONE", "1")
		said, code := run(made(), "echo $ONE; pwd; exit 7")
		Expect(code).To(Equal(7))
		Expect(said).To(Equal("1\n" + folder + "\n"))
	})

	It("that is killed by a signal has the exit code of a shell", func() {
		_, code := run(made(), "kill -TERM $$")
		Expect(code).To(Equal(128 + int(unix.SIGTERM)))
	})

	It("receives forwarded signals", func() {
		n := made()
		c, said := script(`trap "echo got it; exit 3" TERM; echo ready; while :; do sleep 0.1; done`)
		signals := make(chan os.Signal)
		type end struct {
			code int
			err  error
		}
		ended := make(chan end)
		go func() {
			code, err := n.Run(c, signals)
			ended <- end{code, err}
		}()
		Eventually(func() string {
			text, _ := os.ReadFile(said)
			return string(text)
		}).WithTimeout(10 * time.Second).Should(Equal("ready\n"))
		Eventually(signals).Should(BeSent(os.Signal(unix.SIGTERM)))
		Eventually(ended).WithTimeout(30 * time.Second).Should(Receive(Equal(end{code: 3})))
		Expect(os.ReadFile(said)).To(BeEquivalentTo("ready\ngot it\n"))
	})

	It("that does not exist is reported with ENOENT", func() {
		_, err := made().Run(Command{Path: "/nowhere/program", Args: []string{"program"}}, nil)
		Expect(err).To(MatchError(unix.ENOENT))
	})
})
