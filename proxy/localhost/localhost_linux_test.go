package localhost

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/portal/netns"
	"github.com/usherproxy/usher/test/lab"
)

// roleInside is the first argument of a namespace's helper.
const roleInside = "localhost-test-inside"

func TestMain(m *testing.M) {
	if len(os.Args) < 2 || os.Args[1] != roleInside {
		os.Exit(m.Run())
	}
	if err := netns.Inside(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

var _ = Describe("a server on this machine's loopback", func() {
	var there *netns.Namespace
	BeforeEach(func() {
		var err error
		there, err = netns.Start(netns.Options{Self: []string{roleInside}})
		if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.ENOSPC) {
			Skip(err.Error())
		}
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(there.Close)
	})
	// mirror serves this machine's loopback in the namespace until the spec ends.
	mirror := func() {
		m := New(there.Socket)
		m.Refresh()
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan struct{})
		go func() {
			m.Run(ctx)
			close(ended)
		}()
		DeferCleanup(func() {
			cancel()
			Eventually(ended).WithTimeout(20 * time.Second).Should(BeClosed())
		})
	}
	// asks returns the response to a client in the namespace, by address and kind of socket.
	asks := func(kind int, at netip.AddrPort) (string, error) {
		fd, err := there.Socket(unix.AF_INET, kind, 0)
		if err != nil {
			return "", err
		}
		f := os.NewFile(uintptr(fd), "client")
		defer f.Close()
		if err := unix.Connect(fd, &unix.SockaddrInet4{Addr: at.Addr().As4(), Port: int(at.Port())}); err != nil {
			return "", err
		}
		c, err := net.FileConn(f)
		if err != nil {
			return "", err
		}
		defer c.Close()
		if err := c.SetDeadline(time.Now().Add(2 * time.Second)); err != nil {
			return "", err
		}
		if _, err := c.Write([]byte("?")); err != nil {
			return "", err
		}
		buf := make([]byte, 100)
		n, err := c.Read(buf)
		return string(buf[:n]), err
	}
	answers := func(word string) func(net.Conn) {
		return func(c net.Conn) {
			_, _ = c.Read(make([]byte, 1))
			_, _ = io.WriteString(c, word)
			_, _ = io.Copy(io.Discard, c) // the side that ends first keeps the port (TIME-WAIT): the client
		}
	}

	It("is reachable by TCP on the same port in the namespace until it closes", func() {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		Expect(err).NotTo(HaveOccurred())
		at := l.Addr().(*net.TCPAddr).AddrPort()
		lab.Serve(l, answers("here"))
		mirror()
		Expect(asks(unix.SOCK_STREAM, at)).To(Equal("here"), "immediately, if the server existed before")
		Expect(l.Close()).To(Succeed())
		Eventually(func() error { _, err := asks(unix.SOCK_STREAM, at); return err }).WithTimeout(20 * time.Second).Should(MatchError(unix.ECONNREFUSED))
	})

	It("is reachable by UDP, even if it starts later", func() {
		mirror()
		c, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(func() { c.Close() })
		lab.ServeUDP(c, func([]byte, netip.AddrPort) []byte { return []byte("here") })
		at := c.LocalAddr().(*net.UDPAddr).AddrPort()
		Eventually(func() (string, error) { return asks(unix.SOCK_DGRAM, at) }).WithTimeout(20 * time.Second).Should(Equal("here"))
	})

	It("stays served while the list of servers cannot be read", func() {
		m, s := New(there.Socket), server{config.TCP, netip.MustParseAddrPort("127.0.0.1:8080")}
		m.served[s] = true
		var was unix.Rlimit
		Expect(unix.Getrlimit(unix.RLIMIT_NOFILE, &was)).To(Succeed())
		Expect(unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Max: was.Max})).To(Succeed())
		m.Refresh()
		Expect(unix.Setrlimit(unix.RLIMIT_NOFILE, &was)).To(Succeed())
		Expect(m.served).To(HaveKey(s))
	})

	It("gets a port of the namespace only after the server there has closed", func() {
		at := lab.Backend(answers("here"))
		first, err := there.Listen(at)
		Expect(err).NotTo(HaveOccurred())
		lab.Serve(first, answers("there"))
		mirror()
		Expect(asks(unix.SOCK_STREAM, at)).To(Equal("there"))
		Expect(first.Close()).To(Succeed())
		Eventually(func() (string, error) { return asks(unix.SOCK_STREAM, at) }).WithTimeout(20 * time.Second).Should(Equal("here"))
	})
})
