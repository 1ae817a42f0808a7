package keeper

import (
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/sirupsen/logrus/hooks/test"
	"golang.org/x/sys/unix"
)

func TestKeeper(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "the keeper")
}

var _ = Describe("a keeper", func() {
	var k *keeper
	// program writes one that stands for usher.
	program := func(script string) string {
		path := filepath.Join(GinkgoT().TempDir(), "usher")
		Expect(os.WriteFile(path, []byte("#!/bin/sh\n"+script+"\n"), 0o755)).To(Succeed())
		return path
	}
	BeforeEach(func() {
		logger, _ := test.NewNullLogger()
		k = &keeper{log: logger, taken: make(chan struct{}, 1), state: state{
			Arguments: []string{"usher", "run", "--keeper"}, Kept: map[string][]int{}, Served: true,
		}}
		Expect(k.listen()).To(Succeed())
		DeferCleanup(func() { unix.Close(k.Socket) })
	})

	It("does not wait for what a stranger sends", func() {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		Expect(err).NotTo(HaveOccurred())
		defer l.Close()
		c, err := net.Dial("tcp", l.Addr().String())
		Expect(err).NotTo(HaveOccurred())
		Expect(c.(*net.TCPConn).SetLinger(10)).To(Succeed()) // who closes it last waits until all is read
		Expect(c.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))).To(Succeed())
		_, err = c.Write(make([]byte, 32<<20))
		Expect(err).To(MatchError(os.ErrDeadlineExceeded))
		copied, err := c.(*net.TCPConn).File()
		Expect(err).NotTo(HaveOccurred())
		c.Close()
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM, 0)
		Expect(err).NotTo(HaveOccurred())
		defer unix.Close(fd)
		Expect(unix.Sendmsg(fd, []byte("X=1"), unix.UnixRights(int(copied.Fd())), &unix.SockaddrUnix{Name: k.address()}, 0)).To(Succeed())
		copied.Close() // the keeper's is the last copy
		began := time.Now()
		k.receive()
		Expect(time.Since(began)).To(BeNumerically("<", 3*time.Second))
	})

	It("starts nothing when another has taken over while its pause was about to end", func() {
		k.Program = program("exit 0")
		k.pause = &pause{timer: time.NewTimer(time.Hour)}
		k.taken <- struct{}{}
		k.start()
		Expect(k.Current).To(BeNil())
		Expect(k.taken).To(HaveLen(1), "and leaves")
	})

	It("becomes no program that cannot go on with its arguments", func() {
		k.Program = program("exit 0")
		Expect(k.try()).To(MatchError(ContainSubstring("it knows no keeper")))
		k.Program = program(`echo "usher: unknown flag: --keeper"; exit 2`)
		Expect(k.try()).To(MatchError(ContainSubstring("unknown flag")))
		k.Program = program(`[ "$*" = "run --keeper --help" ] && echo "  --keeper   be small"`)
		Expect(k.try()).To(Succeed())
	})

	It("hears usher while it tries a program that takes its time", func() {
		k.Current = &child{PID: os.Getpid()}
		k.Program = program("sleep 1; exit 1")
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM, 0)
		Expect(err).NotTo(HaveOccurred())
		defer unix.Close(fd)
		Expect(unix.Sendto(fd, []byte("READY=1"), 0, &unix.SockaddrUnix{Name: k.address()})).To(Succeed())
		Expect(k.try()).NotTo(Succeed())
		Expect(k.Current.Ready).To(BeTrue())
	})
})
