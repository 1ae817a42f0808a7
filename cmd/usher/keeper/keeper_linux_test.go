package keeper

import (
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/sirupsen/logrus"
	"github.com/sirupsen/logrus/hooks/test"
	"golang.org/x/sys/unix"
)

func TestKeeper(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "the keeper")
}

var _ = Describe("a keeper", func() {
	var (
		k   *keeper
		log *test.Hook
	)
	// program writes a program that replaces usher.
	program := func(script string) string {
		path := filepath.Join(GinkgoT().TempDir(), "usher")
		Expect(os.WriteFile(path, []byte("#!/bin/sh\n"+script+"\n"), 0o755)).To(Succeed())
		return path
	}
	// say sends the keeper a message from this process, in the role of child c.
	say := func(c *child, text string) {
		c.PID = os.Getpid()
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM, 0)
		Expect(err).NotTo(HaveOccurred())
		defer unix.Close(fd)
		Expect(unix.Sendto(fd, []byte(text), 0, &unix.SockaddrUnix{Name: k.address()})).To(Succeed())
		k.receive()
		c.PID = 1 << 30 // so that no process gets a signal
	}
	// file returns a descriptor that the keeper can keep.
	file := func() int {
		fd, err := unix.MemfdCreate("kept", unix.MFD_CLOEXEC)
		Expect(err).NotTo(HaveOccurred())
		return fd
	}
	isOpen := func(fd int) bool { _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); return err == nil }

	BeforeEach(func() {
		var logger *logrus.Logger
		logger, log = test.NewNullLogger()
		k = &keeper{log: logger, taken: make(chan struct{}, 1), state: state{
			Arguments: []string{"usher", "run", "--keeper"}, Kept: map[string][]int{}, Served: true,
		}}
		Expect(k.listen()).To(Succeed())
		DeferCleanup(func() { unix.Close(k.Socket) })
	})

	Context("while another usher is about to take over from the one that runs", func() {
		BeforeEach(func() {
			k.Current, k.Next = &child{PID: 1 << 30, Ready: true, Since: time.Now()}, &child{PID: 1<<30 + 1}
		})

		It("hears that usher is well, and tells the service manager", func() {
			say(k.Current, "WATCHDOG=1")
			Expect(k.Current.Held).To(BeEmpty())
		})

		It("holds what it may have to keep, and not what is over by then", func() {
			files := []int{file(), file(), file()}
			k.hear(k.Current, &message{Text: "FDSTORE=1\nFDNAME=a", FDs: files[:1]})
			k.hear(k.Current, &message{Text: "FDSTORE=1\nFDNAME=b", FDs: files[1:2]})
			k.hear(k.Current, &message{Text: "FDSTOREREMOVE=1\nFDNAME=a"})
			k.hear(k.Current, &message{Text: "FDSTORE=1\nFDNAME=a", FDs: files[2:]})
			Expect(isOpen(files[0])).To(BeFalse())
			for range 10000 {
				k.hear(k.Current, &message{Text: "FDSTOREREMOVE=1\nFDNAME=c"})
			}
			k.upgradeFailed("exit code 1")
			Expect(k.Kept).To(Equal(map[string][]int{"a": files[2:], "b": files[1:2]}))
			k.drop()
		})

		It("starts one again if that ends when it has taken over, and does not yet serve", func() {
			fd := file()
			Expect(k.put("S1", []int{fd})).To(BeTrue())
			k.hear(k.Current, &message{Text: "STOPPING=1"})
			k.hear(k.Current, &message{Text: "FDSTOREREMOVE=1\nFDNAME=S1"})
			_, over := k.nextEnded(unix.WaitStatus(unix.SIGKILL))
			Expect(over).To(BeFalse())
			Expect(k.Current).To(BeNil())
			Expect(k.Next).To(BeNil())
			Expect(k.pause).NotTo(BeNil(), "it is started again")
			Expect(isOpen(fd)).To(BeTrue())
			Expect(k.Restarts).To(Equal(1))
		})

		It("goes on with the one that runs if that has not handed over", func() {
			current := k.Current
			_, over := k.nextEnded(unix.WaitStatus(unix.SIGKILL))
			Expect(over).To(BeFalse())
			Expect(k.Current).To(BeIdenticalTo(current))
			Expect(k.Next).To(BeNil())
			Expect(k.pause).To(BeNil())
		})

		It("lets go of the lock of one that is killed, so that nobody waits for its answer", func() {
			lock, socket := file(), file()
			Expect(k.put("lock", []int{lock})).To(BeTrue())
			Expect(k.put("S1", []int{socket})).To(BeTrue())
			k.currentGone(unix.WaitStatus(unix.SIGKILL))
			Expect(isOpen(lock)).To(BeFalse())
			Expect(isOpen(socket)).To(BeTrue())
			Expect(k.Next).To(BeNil())
			Expect(log.LastEntry().Message).To(ContainSubstring("exited unexpectedly"))
		})
	})

	It("does not wait for what a stranger sends", func() {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		Expect(err).NotTo(HaveOccurred())
		defer l.Close()
		c, err := net.Dial("tcp", l.Addr().String())
		Expect(err).NotTo(HaveOccurred())
		Expect(c.(*net.TCPConn).SetLinger(10)).To(Succeed()) // the last close waits until all data is read
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
		copied.Close() // the keeper's descriptor is the last one
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
		Expect(k.try()).To(MatchError(ContainSubstring("it does not support --keeper")))
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
