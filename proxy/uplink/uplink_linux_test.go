package uplink

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/usherproxy/usher/portal/netns"
	"github.com/usherproxy/usher/test/lab"
)

const (
	roleInside = "uplink-test-inside"     // the first argument of a namespace's helper
	ownNetwork = "UPLINK_TEST_IN_NETWORK" // set if the tests run in a dedicated network namespace
)

// TestMain runs the tests in a dedicated network namespace that has the addresses of "elsewhere". It also runs the
// helper of another namespace.
func TestMain(m *testing.M) {
	switch {
	case len(os.Args) > 1 && os.Args[1] == roleInside:
		if err := netns.Inside(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	case os.Getenv(ownNetwork) != "":
		os.Exit(m.Run())
	default:
		cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
		cmd.Env = append(os.Environ(), ownNetwork+"=1")
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
		cmd.SysProcAttr = lab.InNamespaces(syscall.CLONE_NEWNET)
		if noNetwork = cmd.Start(); noNetwork != nil {
			os.Exit(m.Run())
		}
		if cmd.Wait() != nil {
			os.Exit(1)
		}
	}
}

// noNetwork is the reason why the tests do not run in a dedicated network namespace.
var noNetwork error

func TestUplink(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "proxy/uplink")
}

// elsewhere are addresses that only this process reaches, and no process in another network namespace.
var elsewhere = []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}

var _ = BeforeSuite(func() {
	if noNetwork != nil {
		Skip(fmt.Sprint("needs permission to create a network namespace: ", noNetwork))
	}
	lo, err := netlink.LinkByName("lo")
	Expect(err).NotTo(HaveOccurred())
	Expect(netlink.LinkSetUp(lo)).To(Succeed())
	for _, addr := range elsewhere {
		own := &net.IPNet{IP: addr.AsSlice(), Mask: net.CIDRMask(addr.BitLen(), addr.BitLen())}
		Expect(netlink.AddrAdd(lo, &netlink.Addr{IPNet: own, Flags: unix.IFA_F_NODAD})).To(Succeed())
	}
})

// world is a network namespace with an uplink.
type world struct {
	namespace *netns.Namespace
	uplink    *Uplink
}

// newWorld returns a world that is removed when the test ends.
func newWorld() *world {
	GinkgoHelper()
	n, err := netns.Start(netns.Options{Self: []string{roleInside}})
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(n.Close)
	tun, err := n.Tun()
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) {
		Skip(err.Error())
	}
	Expect(err).NotTo(HaveOccurred())
	u, err := Start(tun, netns.MTU)
	Expect(err).NotTo(HaveOccurred())
	w := &world{n, u}
	DeferCleanup(func() {
		if w.uplink != nil {
			w.uplink.Close()
		}
	})
	return w
}

// dial connects a socket of that kind in the namespace to an address.
func (w *world) dial(kind int, to netip.AddrPort) (net.Conn, error) {
	domain, at := unix.AF_INET, unix.Sockaddr(&unix.SockaddrInet4{Port: int(to.Port())})
	if to.Addr().Is4() {
		at.(*unix.SockaddrInet4).Addr = to.Addr().As4()
	} else {
		domain, at = unix.AF_INET6, &unix.SockaddrInet6{Addr: to.Addr().As16(), Port: int(to.Port())}
	}
	fd, err := w.namespace.Socket(domain, kind, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "client")
	defer f.Close()
	if err := unix.Connect(fd, at); err != nil {
		return nil, err
	}
	c, err := net.FileConn(f)
	if err == nil {
		err = c.SetDeadline(time.Now().Add(20 * time.Second))
	}
	return c, err
}

// connect dials TCP, which must succeed.
func (w *world) connect(to netip.AddrPort) *net.TCPConn {
	GinkgoHelper()
	c, err := w.dial(unix.SOCK_STREAM, to)
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func() { c.Close() })
	return c.(*net.TCPConn)
}

// exchange dials UDP, which always succeeds.
func (w *world) exchange(to netip.AddrPort) net.Conn {
	GinkgoHelper()
	c, err := w.dial(unix.SOCK_DGRAM, to)
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func() { c.Close() })
	return c
}

// listen listens at an address elsewhere, and sends the accepted connections to a channel.
func listen(addr netip.Addr) (netip.AddrPort, <-chan *net.TCPConn) {
	GinkgoHelper()
	l, err := net.Listen("tcp", netip.AddrPortFrom(addr, 0).String())
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func() { l.Close() })
	accepted := make(chan *net.TCPConn)
	ended := make(chan struct{})
	DeferCleanup(func() { close(ended) })
	lab.Serve(l, func(c net.Conn) {
		select {
		case accepted <- c.(*net.TCPConn):
			<-ended // it closes the connection
		case <-ended:
		}
	})
	return l.Addr().(*net.TCPAddr).AddrPort(), accepted
}

// echo returns all datagrams that arrive at an address elsewhere.
func echo(addr netip.Addr) netip.AddrPort {
	GinkgoHelper()
	c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(addr, 0)))
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func() { c.Close() })
	lab.Echo(c)
	return c.LocalAddr().(*net.UDPAddr).AddrPort()
}

// ask sends a datagram until it gets a response, and returns it: datagrams may be lost, above all just after the
// device has come up. It skips late responses to datagrams that the client has sent before.
func ask(client net.Conn, sent []byte, before ...[]byte) (got []byte) {
	GinkgoHelper()
	buf := make([]byte, maxDatagram)
	Eventually(func() error {
		if _, err := client.Write(sent); err != nil {
			return err
		}
		if err := client.SetReadDeadline(time.Now().Add(500 * time.Millisecond)); err != nil {
			return err
		}
		for {
			n, err := client.Read(buf)
			got = buf[:n]
			if err != nil || !slices.ContainsFunc(before, func(b []byte) bool { return bytes.Equal(b, got) }) {
				return err
			}
		}
	}).WithTimeout(30 * time.Second).Should(Succeed())
	return got
}

// pair returns both ends of a carried connection.
func (w *world) pair() (client, server *net.TCPConn) {
	GinkgoHelper()
	at, accepted := listen(elsewhere[0])
	client = w.connect(at)
	Eventually(accepted).WithTimeout(30 * time.Second).Should(Receive(&server))
	Expect(server.SetDeadline(time.Now().Add(20 * time.Second))).To(Succeed())
	return client, server
}

var _ = Describe("a TCP connection to another network", func() {
	for _, to := range elsewhere {
		It("transfers all bytes both ways: "+to.String(), func() {
			w := newWorld()
			at, accepted := listen(to)
			client := w.connect(at)
			var server *net.TCPConn
			Eventually(accepted).WithTimeout(30 * time.Second).Should(Receive(&server))
			Expect(client.RemoteAddr().String()).To(Equal(at.String()), "the client sees the server's address")
			sent := make([]byte, 8<<20)
			_, _ = rand.Read(sent)
			for _, way := range [][2]*net.TCPConn{{client, server}, {server, client}} {
				go func() {
					_, _ = way[0].Write(sent)
					_ = way[0].CloseWrite()
				}()
				got, err := io.ReadAll(way[1])
				Expect(err).NotTo(HaveOccurred())
				Expect(bytes.Equal(got, sent)).To(BeTrue())
			}
		})
	}

	It("stays open one way when the other is closed", func() {
		client, server := newWorld().pair()
		Expect(client.Write([]byte("question"))).To(Equal(8))
		Expect(client.CloseWrite()).To(Succeed())
		Expect(io.ReadAll(server)).To(BeEquivalentTo("question"))
		Expect(server.Write([]byte("answer"))).To(Equal(6))
		Expect(server.Close()).To(Succeed())
		Expect(io.ReadAll(client)).To(BeEquivalentTo("answer"))
	})

	It("is reset when the server resets it", func() {
		client, server := newWorld().pair()
		Expect(server.SetLinger(0)).To(Succeed())
		Expect(server.Close()).To(Succeed())
		_, err := client.Read(make([]byte, 1))
		Expect(err).To(MatchError(unix.ECONNRESET))
	})

	It("is reset when the client resets it", func() {
		client, server := newWorld().pair()
		Expect(client.SetLinger(0)).To(Succeed())
		Expect(client.Close()).To(Succeed())
		_, err := server.Read(make([]byte, 1))
		Expect(err).To(MatchError(unix.ECONNRESET))
	})

	It("is reset when the client resets it while the server does not read", func() {
		client, server := newWorld().pair()
		Expect(client.SetWriteDeadline(time.Now().Add(2 * time.Second))).To(Succeed())
		_, err := client.Write(make([]byte, 64<<20)) // more than all buffers hold
		Expect(err).To(MatchError(os.ErrDeadlineExceeded))
		Expect(client.SetLinger(0)).To(Succeed())
		Expect(client.Close()).To(Succeed())
		raw, err := server.SyscallConn()
		Expect(err).NotTo(HaveOccurred())
		Eventually(func() (failure int) {
			Expect(raw.Control(func(fd uintptr) { failure, err = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR) })).To(Succeed())
			return failure
		}).WithTimeout(10 * time.Second).Should(BeEquivalentTo(unix.ECONNRESET))
	})

	It("delivers all data to a slow server after both sides have closed their ends", func() {
		w := newWorld()
		var servers []*net.TCPConn
		sizes := []int{1 << 20, 2 << 20, 3 << 20, 4 << 20, 6 << 20} // with some of these, the rest is in the stack's buffer
		for _, size := range sizes {
			client, server := w.pair()
			servers = append(servers, server)
			Expect(server.CloseWrite()).To(Succeed())
			Expect(io.ReadAll(client)).To(BeEmpty())
			go func() {
				_, _ = client.Write(make([]byte, size)) // the server counts
				_ = client.CloseWrite()
			}()
		}
		time.Sleep(3 * time.Second) // a reset comes after 1 s without progress
		for i, server := range servers {
			Expect(io.Copy(io.Discard, server)).To(BeEquivalentTo(sizes[i]))
		}
	})

	It("waits at the maximum until another one has ended", func() {
		w := newWorld()
		for range maxConnections - 1 {
			w.uplink.tcp <- struct{}{}
		}
		first, _ := w.pair()
		at, accepted := listen(elsewhere[0])
		go func() {
			defer GinkgoRecover()
			c, err := w.dial(unix.SOCK_STREAM, at)
			Expect(err).NotTo(HaveOccurred())
			c.Close()
		}()
		Consistently(accepted, "500ms").ShouldNot(Receive())
		Expect(first.SetLinger(0)).To(Succeed())
		Expect(first.Close()).To(Succeed())
		Eventually(accepted, "20s").Should(Receive())
	})

	It("is refused if no process listens", func() {
		_, err := newWorld().dial(unix.SOCK_STREAM, netip.AddrPortFrom(elsewhere[0], 1))
		Expect(err).To(MatchError(unix.ECONNREFUSED))
	})
})

var _ = Describe("datagrams to another network", func() {
	for _, to := range elsewhere {
		It("arrive and are answered, small and large ones: "+to.String(), func() {
			client := newWorld().exchange(echo(to))
			var before [][]byte
			for _, size := range []int{1, 1400, 60000} {
				sent := make([]byte, size)
				_, _ = rand.Read(sent)
				Expect(bytes.Equal(ask(client, sent, before...), sent)).To(BeTrue())
				before = append(before, sent)
			}
		})
	}

	It("of several clients stay separate", func() {
		w := newWorld()
		at := echo(elsewhere[0])
		clients := make([]net.Conn, 20)
		for i := range clients {
			clients[i] = w.exchange(at)
		}
		for range 2 {
			for i, c := range clients {
				word := fmt.Sprintf("from %d", i)
				Expect(string(ask(c, []byte(word)))).To(Equal(word))
			}
		}
	})

	It("are refused if there is no route", func() {
		w := newWorld()
		ask(w.exchange(echo(elsewhere[0])), []byte("x")) // waits until the device is up
		client := w.exchange(netip.MustParseAddrPort("198.51.100.1:9"))
		Expect(client.Write([]byte("lost"))).To(Equal(4))
		_, err := client.Read(make([]byte, 1))
		Expect(err).To(MatchError(unix.ECONNREFUSED))
	})

	It("to a multicast group are dropped without an error", func() {
		w := newWorld()
		client := w.exchange(netip.MustParseAddrPort("239.1.2.3:9"))
		Expect(client.Write([]byte("lost"))).To(Equal(4))
		ask(w.exchange(echo(elsewhere[0])), []byte("x")) // carried after the other datagram
		Expect(client.SetReadDeadline(time.Now())).To(Succeed())
		_, err := client.Read(make([]byte, 1))
		Expect(err).To(MatchError(os.ErrDeadlineExceeded))
	})
})

var _ = Describe("a ping to another network", func() {
	It("is not answered", func() {
		w := newWorld()
		fd, err := w.namespace.Socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP)
		if errors.Is(err, unix.EPERM) {
			Skip("needs permission to send a ping")
		}
		Expect(err).NotTo(HaveOccurred())
		defer unix.Close(fd)
		echoRequest := []byte{8, 0, 0xf7, 0xff, 0, 0, 0, 0} // RFC 792
		Expect(unix.Sendto(fd, echoRequest, 0, &unix.SockaddrInet4{Addr: elsewhere[0].As4()})).To(Succeed())
		ask(w.exchange(echo(elsewhere[0])), []byte("x")) // carried after the ping
		_, _, err = unix.Recvfrom(fd, make([]byte, 100), unix.MSG_DONTWAIT)
		Expect(err).To(MatchError(unix.EAGAIN))
	})
})

var _ = Describe("an uplink", func() {
	It("ends its connections when it is closed", func() {
		w := newWorld()
		_, server := w.pair()
		ask(w.exchange(echo(elsewhere[0])), []byte("x"))
		w.uplink.Close()
		w.uplink = nil
		_, err := server.Read(make([]byte, 1))
		Expect(err).To(HaveOccurred())
		Expect(err).NotTo(MatchError(os.ErrDeadlineExceeded))
	})

	It("ends a connection that only the client has closed when it is closed", func() {
		w := newWorld()
		client, server := w.pair()
		Expect(client.CloseWrite()).To(Succeed())
		Expect(io.ReadAll(server)).To(BeEmpty())
		closed := make(chan struct{})
		go func() {
			w.uplink.Close()
			close(closed)
		}()
		Eventually(closed).WithTimeout(10 * time.Second).Should(BeClosed())
		w.uplink = nil
	})

	It("fails to start with a closed device", func() {
		r, err := os.Open(os.DevNull)
		Expect(err).NotTo(HaveOccurred())
		Expect(r.Close()).To(Succeed())
		_, err = Start(r, netns.MTU)
		Expect(err).To(MatchError(ContainSubstring("starting the TCP/IP stack for other networks")))
	})
})

// TestFlowEndsWhenItIsIdle expects that a flow forwards datagrams until it is idle.
func TestFlowEndsWhenItIsIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := &Uplink{ctx: context.Background()}
		client, clientSide := net.Pipe()
		server, serverSide := net.Pipe()
		ended := make(chan struct{})
		go func() {
			u.exchange(clientSide, serverSide)
			close(ended)
		}()
		buf := make([]byte, 10)
		for _, way := range [][2]net.Conn{{client, server}, {server, client}, {server, client}, {client, server}} {
			time.Sleep(udpIdle - time.Second)
			go func() { _, _ = way[0].Write([]byte("x")) }()
			if n, err := way[1].Read(buf); n != 1 || err != nil {
				t.Fatal(n, err)
			}
		}
		quiet := time.Now()
		<-ended
		if took := time.Since(quiet); took != udpIdle {
			t.Fatalf("it ended after %v", took)
		}
		for _, c := range []net.Conn{client, server} {
			if _, err := c.Read(buf); err != io.EOF {
				t.Fatal(err)
			}
		}
	})
}
