package fdpass_test

import (
	"io"
	"net"
	"os"
	"runtime"
	"slices"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/usherproxy/usher/portal/fdpass"
)

func TestFdpass(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "portal/fdpass")
}

var _ = Describe("file descriptors that are passed over a socket", func() {
	var here, there *net.UnixConn
	BeforeEach(func() {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
		Expect(err).NotTo(HaveOccurred())
		for i, c := range []**net.UnixConn{&here, &there} {
			f := os.NewFile(uintptr(fds[i]), "")
			conn, err := net.FileConn(f)
			Expect(err).NotTo(HaveOccurred())
			Expect(f.Close()).To(Succeed())
			*c = conn.(*net.UnixConn)
			DeferCleanup(func() { conn.Close() })
		}
	})
	// pipe returns the read end of a pipe that contains a word.
	pipe := func(word string) int {
		GinkgoHelper()
		var ends [2]int
		Expect(unix.Pipe2(ends[:], unix.O_CLOEXEC)).To(Succeed())
		Expect(unix.Write(ends[1], []byte(word))).To(Equal(len(word)))
		Expect(unix.Close(ends[1])).To(Succeed())
		DeferCleanup(func() { unix.Close(ends[0]) })
		return ends[0]
	}
	read := func(fd int) string {
		GinkgoHelper()
		f := os.NewFile(uintptr(fd), "")
		defer f.Close()
		text, err := io.ReadAll(f)
		Expect(err).NotTo(HaveOccurred())
		return string(text)
	}

	It("arrive with their message, in order, and with close-on-exec set", func() {
		Expect(fdpass.Send(here, []byte("two"), pipe("one"), pipe("other"))).To(Succeed())
		buf := make([]byte, 10)
		n, fds, err := fdpass.Receive(there, buf, 2)
		Expect(err).NotTo(HaveOccurred())
		Expect(string(buf[:n])).To(Equal("two"))
		Expect(fds).To(HaveLen(2))
		for i, word := range []string{"one", "other"} {
			flags, err := unix.FcntlInt(uintptr(fds[i]), unix.F_GETFD, 0)
			Expect(err).NotTo(HaveOccurred())
			Expect(flags & unix.FD_CLOEXEC).NotTo(BeZero())
			Expect(read(fds[i])).To(Equal(word))
		}
	})

	It("are not sent while too many of the user's descriptors are in flight", func() {
		if os.Geteuid() != 0 {
			Skip("only root can switch to a user without descriptors in flight")
		}
		var limit unix.Rlimit
		Expect(unix.Getrlimit(unix.RLIMIT_NOFILE, &limit)).To(Succeed())
		low := unix.Rlimit{Cur: 300, Max: limit.Max}
		Expect(unix.Setrlimit(unix.RLIMIT_NOFILE, &low)).To(Succeed())
		DeferCleanup(func() { Expect(unix.Setrlimit(unix.RLIMIT_NOFILE, &limit)).To(Succeed()) })
		fd, sent, full := pipe("one"), make(chan error, 1), make(chan struct{})
		go func() {
			runtime.LockOSThread() // not unlocked: the thread, now another user's, ends with the goroutine
			const user = 61234
			if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, user, user, user); errno != 0 {
				sent <- errno
				return
			}
			for range 4 { // 4 × 100 exceed the limit
				if err := fdpass.Send(here, []byte("full"), slices.Repeat([]int{fd}, 100)...); err != nil {
					sent <- err
					return
				}
			}
			close(full)
			sent <- fdpass.Send(here, []byte("late"), fd)
		}()
		Eventually(full).Should(BeClosed())
		Consistently(sent).WithTimeout(100 * time.Millisecond).ShouldNot(Receive())
		for range 4 {
			_, fds, err := fdpass.Receive(there, make([]byte, 10), 100)
			Expect(err).NotTo(HaveOccurred())
			for _, fd := range fds {
				Expect(unix.Close(fd)).To(Succeed())
			}
		}
		Eventually(sent).Should(Receive(Succeed()))
	})

	It("are optional", func() {
		Expect(fdpass.Send(here, []byte("a word"))).To(Succeed())
		n, fds, err := fdpass.Receive(there, make([]byte, 10), 0)
		Expect(n, err).To(Equal(6))
		Expect(fds).To(BeEmpty())
	})

	DescribeTable("arrive with ErrTruncated if the receiver has too little space for",
		func(room, maxFDs, arrive int) {
			Expect(fdpass.Send(here, []byte("0123456789"), pipe("a"), pipe("b"), pipe("c"), pipe("d"))).To(Succeed())
			_, fds, err := fdpass.Receive(there, make([]byte, room), maxFDs)
			Expect(err).To(MatchError(fdpass.ErrTruncated))
			Expect(fds).To(HaveLen(arrive))
			for _, fd := range fds {
				Expect(unix.Close(fd)).To(Succeed())
			}
		},
		Entry("bytes", 5, 4, 4),
		Entry("descriptors", 10, 2, 2),
	)

	It("are followed by io.EOF when the peer has closed", func() {
		Expect(here.Close()).To(Succeed())
		_, _, err := fdpass.Receive(there, make([]byte, 10), 1)
		Expect(err).To(MatchError(io.EOF))
	})
})
