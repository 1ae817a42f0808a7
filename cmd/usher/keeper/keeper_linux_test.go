package keeper

import (
	"net"
	"os"
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
	// say sends the keeper a message from this process, in the role of child c.
	say := func(c *child, text string) {
		c.pid = os.Getpid()
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM, 0)
		Expect(err).NotTo(HaveOccurred())
		defer unix.Close(fd)
		Expect(unix.Sendto(fd, []byte(text), 0, &unix.SockaddrUnix{Name: k.address})).To(Succeed())
		k.receive()
		c.pid = 1 << 30 // so that no process gets a signal
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
		k = &keeper{
			Options: Options{Log: logger, Arguments: []string{"usher", "run", "--keeper"}},
			taken:   make(chan struct{}, 1), kept: map[string][]int{}, served: true,
		}
		Expect(k.listen()).To(Succeed())
		DeferCleanup(func() { unix.Close(k.socket) })
	})

	Context("while a new instance is about to take over from the current one", func() {
		BeforeEach(func() {
			k.current, k.next = &child{pid: 1 << 30, ready: true, since: time.Now()}, &child{pid: 1<<30 + 1}
		})

		It("does not hold back a watchdog message of the current instance", func() {
			say(k.current, "WATCHDOG=1")
			Expect(k.current.held).To(BeEmpty())
		})

		It("keeps the descriptors stored meanwhile if the takeover fails, except removed ones", func() {
			files := []int{file(), file(), file()}
			k.hear(k.current, &message{text: "FDSTORE=1\nFDNAME=a", fds: files[:1]})
			k.hear(k.current, &message{text: "FDSTORE=1\nFDNAME=b", fds: files[1:2]})
			k.hear(k.current, &message{text: "FDSTOREREMOVE=1\nFDNAME=a"})
			k.hear(k.current, &message{text: "FDSTORE=1\nFDNAME=a", fds: files[2:]})
			Expect(isOpen(files[0])).To(BeFalse())
			for range 10000 {
				k.hear(k.current, &message{text: "FDSTOREREMOVE=1\nFDNAME=c"})
			}
			k.upgradeFailed("exit code 1")
			Expect(k.kept).To(Equal(map[string][]int{"a": files[2:], "b": files[1:2]}))
			k.drop()
		})

		It("restarts usher if the new instance exits after taking over, before it serves", func() {
			fd := file()
			Expect(k.put("S1", []int{fd})).To(BeTrue())
			k.hear(k.current, &message{text: "STOPPING=1"})
			k.hear(k.current, &message{text: "FDSTOREREMOVE=1\nFDNAME=S1"})
			_, over := k.nextEnded(unix.WaitStatus(unix.SIGKILL))
			Expect(over).To(BeFalse())
			Expect(k.current).To(BeNil())
			Expect(k.next).To(BeNil())
			Expect(k.pause).NotTo(BeNil(), "usher is restarted")
			Expect(isOpen(fd)).To(BeTrue())
			Expect(k.restarts).To(Equal(1))
		})

		It("keeps the current instance if the new one exits before the handover", func() {
			current := k.current
			_, over := k.nextEnded(unix.WaitStatus(unix.SIGKILL))
			Expect(over).To(BeFalse())
			Expect(k.current).To(BeIdenticalTo(current))
			Expect(k.next).To(BeNil())
			Expect(k.pause).To(BeNil())
		})

		It("releases the lock of a killed instance, and keeps its sockets", func() {
			lock, socket := file(), file()
			Expect(k.put("lock", []int{lock})).To(BeTrue())
			Expect(k.put("S1", []int{socket})).To(BeTrue())
			k.currentEnded(unix.WaitStatus(unix.SIGKILL))
			Expect(isOpen(lock)).To(BeFalse())
			Expect(isOpen(socket)).To(BeTrue())
			Expect(k.next).To(BeNil())
			Expect(k.draining).To(BeEmpty(), "it has been reaped")
			Expect(log.LastEntry().Message).To(ContainSubstring("exited unexpectedly"))
		})
	})

	It("does not block when it closes a descriptor sent by an unknown process", func() {
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
		Expect(unix.Sendmsg(fd, []byte("X=1"), unix.UnixRights(int(copied.Fd())), &unix.SockaddrUnix{Name: k.address}, 0)).To(Succeed())
		copied.Close() // the keeper's descriptor is the last one
		began := time.Now()
		k.receive()
		Expect(time.Since(began)).To(BeNumerically("<", 8*time.Second))
	})

	It("does not restart usher if another instance takes over during the pause", func() {
		k.pause = &pause{timer: time.NewTimer(time.Hour)}
		k.taken <- struct{}{}
		k.start()
		Expect(k.current).To(BeNil())
		Expect(k.taken).To(HaveLen(1), "the keeper then exits")
	})

	It("stays in a Pod if usher crashes after it has handed over to another instance", func() {
		GinkgoT().Setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
		k.current = &child{pid: 1 << 30, ready: true, since: time.Now()}
		Expect(k.put("S1", []int{file()})).To(BeTrue())
		k.obey(k.current, &message{text: "STOPPING=1"})
		_, over := k.ended(unix.WaitStatus(unix.SIGKILL))
		Expect(over).To(BeFalse())
		Expect(k.pause).To(BeNil(), "usher is not restarted")
		Expect(k.kept).To(BeEmpty())
		Expect(k.unclaimed).NotTo(BeNil())
		k.upgrade()
		Expect(log.LastEntry().Message).To(ContainSubstring("Ignoring SIGHUP"))
	})
})
