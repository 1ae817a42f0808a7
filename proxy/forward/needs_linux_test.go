package forward

import (
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"
)

func TestKernelCheckToleratesUnexpectedConnections(t *testing.T) {
	g := NewWithT(t)
	g.Expect(CheckKernel(netip.IPv4Unspecified())).To(Succeed())

	listener, err := Sockets(nil).ListenTCP(netip.MustParseAddrPort("127.0.0.1:0"), Keepalive{Idle: time.Minute, Interval: time.Minute, Probes: 1})
	g.Expect(err).NotTo(HaveOccurred())
	defer unix.Close(listener)
	g.Expect(tryAccept(listener)).To(Succeed(), "no connection is pending")
	at, err := LocalAddr(listener)
	g.Expect(err).NotTo(HaveOccurred())
	stranger, err := net.Dial("tcp", at.String())
	g.Expect(err).NotTo(HaveOccurred())
	defer stranger.Close()
	g.Expect(tryAccept(listener)).To(Succeed())
	g.Expect(stranger.SetReadDeadline(time.Now().Add(10 * time.Second))).To(Succeed())
	_, err = stranger.Read(make([]byte, 1))
	g.Expect(err).To(MatchError(io.EOF), "the connection is closed")

	none, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	g.Expect(err).NotTo(HaveOccurred())
	defer unix.Close(none)
	g.Expect(tryAccept(none)).To(MatchError(unix.EINVAL), "the socket does not listen")
}
