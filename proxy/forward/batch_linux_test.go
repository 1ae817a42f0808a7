package forward

import (
	"bytes"
	"fmt"
	"net/netip"
	"testing"

	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"
)

// loopback returns an open socket, a client socket connected to it, and its address.
func loopback(t testing.TB, listen string) (server, client int, at netip.AddrPort) {
	t.Helper()
	fd, err := Sockets(nil).ListenUDP(netip.MustParseAddrPort(listen))
	if err != nil {
		t.Fatal(err)
	}
	bound, err := LocalAddr(fd)
	if err != nil {
		t.Fatal(err)
	}
	to := netip.MustParseAddr("127.0.0.1")
	if bound.Addr().Is6() {
		to = netip.IPv6Loopback()
	}
	at = netip.AddrPortFrom(to, bound.Port())
	client, err = ConnectUDP(0, netip.AddrPort{}, at)
	if err == unix.EADDRNOTAVAIL && to.Is6() {
		t.Skip("IPv6 is disabled on this machine")
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		unix.Close(fd)
		unix.Close(client)
	})
	return fd, client, at
}

func TestRepliesHaveTheSourceAddressThatTheClientSentTo(t *testing.T) {
	for _, listen := range []string{"0.0.0.0:0", "[::]:0"} {
		for _, max := range []int{1, 4} { // a single message uses other system calls
			t.Run(fmt.Sprintf("%s, %d at a time", listen, max), func(t *testing.T) { comesBack(t, listen, max) })
		}
	}
}

func comesBack(t *testing.T, listen string, max int) {
	g := NewWithT(t)
	server, client, at := loopback(t, listen)
	b := NewBatch(4)
	for _, size := range []int{0, 1, 1473, 65507} {
		sent := bytes.Repeat([]byte{byte(size)}, size)
		for _, control := range []bool{true, false} {
			g.Expect(unix.Send(client, sent, 0)).To(Succeed())
			g.Expect(b.Receive(server, 0, max)).To(Equal(1))
			g.Expect(bytes.Equal(b.Data(0), sent)).To(BeTrue())
			local := b.Control(0).Local
			g.Expect(local).To(Equal(at.Addr()))
			from, err := LocalAddr(client)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(b.Peer(0).AddrPort()).To(Equal(from))

			b.Address(0, b.Peer(0), nil)
			if control {
				b.Address(0, b.Peer(0), SourceControl(local, 0))
			}
			g.Expect(b.Send(server, 0, 1)).To(Equal(1))
			g.Expect(b.ReceiveConnected(client, 0, max)).To(Equal(1))
			g.Expect(bytes.Equal(b.Data(0), sent)).To(BeTrue())
		}
	}
}

func TestListenUDPDoesNotSharePorts(t *testing.T) {
	for _, any := range []string{"0.0.0.0", "::"} {
		g := NewWithT(t)
		fd, err := Sockets(nil).ListenUDP(netip.AddrPortFrom(netip.MustParseAddr(any), 0))
		g.Expect(err).NotTo(HaveOccurred())
		defer unix.Close(fd)
		at, err := LocalAddr(fd)
		g.Expect(err).NotTo(HaveOccurred())
		_, err = Sockets(nil).ListenUDP(at)
		g.Expect(err).To(MatchError(unix.EADDRINUSE))

		other, err := unix.Socket(domain(at.Addr()), unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		g.Expect(err).NotTo(HaveOccurred())
		defer unix.Close(other)
		for _, option := range []int{unix.SO_REUSEADDR, unix.SO_REUSEPORT} {
			g.Expect(unix.SetsockoptInt(other, unix.SOL_SOCKET, option, 1)).To(Succeed())
			loopback := netip.MustParseAddr(map[string]string{"0.0.0.0": "127.0.0.1", "::": "::1"}[any])
			g.Expect(unix.Bind(other, Sockaddr(netip.AddrPortFrom(loopback, at.Port())))).To(MatchError(unix.EADDRINUSE))
		}
	}
}

func TestConnectedSocketReportsRefusedPort(t *testing.T) {
	g := NewWithT(t)
	fd, err := Sockets(nil).ListenUDP(netip.MustParseAddrPort("127.0.0.1:0"))
	g.Expect(err).NotTo(HaveOccurred())
	at, err := LocalAddr(fd)
	g.Expect(err).NotTo(HaveOccurred())
	unix.Close(fd)
	client, err := ConnectUDP(0, netip.AddrPort{}, at)
	g.Expect(err).NotTo(HaveOccurred())
	defer unix.Close(client)
	for _, max := range []int{1, 2} {
		g.Expect(unix.Send(client, []byte("x"), 0)).To(Succeed())
		_, err = NewBatch(2).ReceiveConnected(client, 0, max)
		g.Expect(err).To(Equal(unix.ECONNREFUSED))
		_, err = NewBatch(2).ReceiveConnected(client, 0, max)
		g.Expect(err).To(Equal(unix.EAGAIN))
	}
}

func FuzzParseControl(f *testing.F) {
	f.Add(SourceControl(netip.MustParseAddr("192.0.2.1"), 0))
	f.Add(SourceControl(netip.MustParseAddr("fe80::1"), 7))
	f.Add([]byte{})
	f.Add(bytes.Repeat([]byte{0xff}, 64))
	f.Fuzz(func(t *testing.T, b []byte) {
		c := ParseControl(b)
		if c.Local.Is4() && len(b) < unix.CmsgLen(unix.SizeofInet4Pktinfo) {
			t.Errorf("%v from %d bytes", c, len(b))
		}
	})
}

func BenchmarkDatagram(b *testing.B) {
	server, client, _ := loopback(b, "0.0.0.0:0")
	in, out := NewBatch(32), NewBatch(32)
	payload := make([]byte, 64)
	b.ReportAllocs()
	for b.Loop() {
		if err := unix.Send(client, payload, 0); err != nil {
			b.Fatal(err)
		}
		if _, err := in.Receive(server, 0, 1); err != nil {
			b.Fatal(err)
		}
		in.Control(0)
		in.Address(0, in.Peer(0), nil)
		if _, err := in.Send(server, 0, 1); err != nil {
			b.Fatal(err)
		}
		if _, err := out.ReceiveConnected(client, 0, 1); err != nil {
			b.Fatal(err)
		}
	}
}

func TestDatagramsHaveSpaceForAHeader(t *testing.T) {
	g := NewWithT(t)
	server, client, _ := loopback(t, "127.0.0.1:0")
	header := bytes.Repeat([]byte{'h'}, margin)
	b := NewBatch(8)
	sizes := []int{1000, 1000, 1000, 0, 7, 60000}
	for i, size := range sizes {
		g.Expect(unix.Send(client, bytes.Repeat([]byte{byte('a' + i)}, size), 0)).To(Succeed())
	}
	g.Expect(b.Receive(server, 1, 7)).To(Equal(len(sizes)))
	back := *b.Peer(1)
	for i := range sizes {
		b.Prepend(1+i, header)
		b.Address(1+i, &back, nil)
	}
	g.Expect(b.Send(server, 1, len(sizes))).To(Equal(len(sizes)))
	for i, size := range sizes {
		want := bytes.Repeat([]byte{byte('a' + i)}, size)
		got := make([]byte, MaxDatagram)
		n, err := unix.Read(client, got)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(string(got[:n])).To(Equal(string(header) + string(want)))
		b.Strip(1+i, len(header))
		g.Expect(string(b.Data(1 + i))).To(Equal(string(want)))
	}
}
