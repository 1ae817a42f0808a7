package fdstore

import (
	"context"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/sirupsen/logrus"
	"github.com/sirupsen/logrus/hooks/test"

	"github.com/usherproxy/usher/portal/fdpass"
)

func TestStore(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "the file descriptor store")
}

var _ = Describe("a manager", func() {
	var (
		socket *net.UnixConn
		log    *test.Hook
		logger *logrus.Logger
	)
	set := func(name, value string) {
		was, is := os.LookupEnv(name)
		Expect(os.Setenv(name, value)).To(Succeed())
		DeferCleanup(func() {
			if is {
				os.Setenv(name, was)
			} else {
				os.Unsetenv(name)
			}
		})
	}
	BeforeEach(func() {
		path := filepath.Join(GinkgoT().TempDir(), "notify")
		var err error
		socket, err = net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(func() { socket.Close() })
		set("NOTIFY_SOCKET", path)
		logger, log = test.NewNullLogger()
	})
	manager := func() *Manager {
		GinkgoHelper()
		m, err := FromEnvironment(logger)
		Expect(err).NotTo(HaveOccurred())
		return m
	}
	receive := func() (string, []int) {
		GinkgoHelper()
		Expect(socket.SetReadDeadline(time.Now().Add(20 * time.Second))).To(Succeed())
		text := make([]byte, 1000)
		n, fds, err := fdpass.Receive(socket, text, 10)
		Expect(err).NotTo(HaveOccurred())
		return string(text[:n]), fds
	}
	said := func() string {
		GinkgoHelper()
		text, fds := receive()
		Expect(fds).To(BeEmpty())
		return text
	}
	file := func() *os.File {
		GinkgoHelper()
		f, err := os.Open(os.DevNull)
		Expect(err).NotTo(HaveOccurred())
		return f
	}

	It("is nil without NOTIFY_SOCKET, and its methods can be called", func() {
		set("NOTIFY_SOCKET", "")
		m := manager()
		Expect(m).To(BeNil())
		m.Notify("READY=1")
		m.Put("lock", nil)
		m.Remove("lock")
		m.Forget()
		m.Wait(time.Minute)
		Expect(m.Take("lock")).To(BeEmpty())
	})

	It("sends messages in order, and obtains descriptors when their message is sent", func() {
		m := manager()
		f := file()
		m.Put("S1", func() *os.File { return f })
		m.Put("S2", func() *os.File { return nil })
		m.Remove("S1")
		m.Notify("READY=1")
		text, fds := receive()
		Expect(text).To(Equal("FDSTORE=1\nFDNAME=S1\nFDPOLL=0"))
		Expect(fds).To(HaveLen(1))
		os.NewFile(uintptr(fds[0]), "").Close()
		Expect(said()).To(Equal("FDSTOREREMOVE=1\nFDNAME=S1"))
		Expect(said()).To(Equal("READY=1"))
		Expect(f.Close()).To(MatchError(os.ErrClosed), "the service manager has a copy")
	})

	It("waits until the service manager has processed all messages", func() {
		m := manager()
		done := make(chan struct{})
		go func() {
			m.Wait(time.Minute)
			close(done)
		}()
		text, fds := receive()
		Expect(text).To(Equal("BARRIER=1"))
		Expect(done).NotTo(BeClosed())
		os.NewFile(uintptr(fds[0]), "").Close()
		Eventually(done).WithTimeout(20 * time.Second).Should(BeClosed())
	})

	It("tolerates a service manager that is busy for some seconds", func() {
		m := manager()
		for i := range 300 { // more than a socket queues
			m.Notify("STATUS=" + strconv.Itoa(i))
		}
		Consistently(log.AllEntries).WithTimeout(6 * time.Second).Should(BeEmpty())
		for i := range 300 {
			text, _ := receive()
			Expect(text).To(Equal("STATUS=" + strconv.Itoa(i)))
		}
	})

	It("sends the first sign of life at once", func() {
		set("WATCHDOG_USEC", "3600000000")
		m := manager()
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		go m.Watch(ctx, func() bool { return true })
		text, _ := receive()
		Expect(text).To(Equal("WATCHDOG=1"))
	})

	It("sends signs of life while another message waits", func() {
		set("WATCHDOG_USEC", "3600000000")
		m := manager()
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		m.Put("S1", func() *os.File { <-ctx.Done(); return nil })
		go m.Watch(ctx, func() bool { return true })
		Expect(said()).To(Equal("WATCHDOG=1"))
	})

	It("stops, and logs this once, if the service manager does not listen", func() {
		m := manager()
		socket.Close()
		m.Notify("READY=1")
		Eventually(log.AllEntries).WithTimeout(20 * time.Second).Should(HaveLen(1))
		m.Notify("WATCHDOG=1")
		m.Wait(time.Hour)
		Expect(log.AllEntries()).To(HaveLen(1))
	})

	It("reads and unsets its environment variables", func() {
		set("LISTEN_FDS", "0")
		set(KeeperVariable, "restarts=3 at=1767323045 last=signal: killed")
		set("WATCHDOG_USEC", "20000000")
		m := manager()
		Expect(m.Restarts).To(Equal(3))
		Expect(m.Why).To(Equal("signal: killed"))
		Expect(m.Crashed).To(BeTemporally("==", time.Unix(1767323045, 0)))
		Expect(m.watchdog).To(Equal(20 * time.Second))
		for _, name := range Variables {
			_, is := os.LookupEnv(name)
			Expect(is).To(BeFalse(), name)
		}
	})

	It("ignores descriptors that were passed to another process", func() {
		set("LISTEN_FDS", "1")
		set("LISTEN_PID", strconv.Itoa(os.Getpid()+1))
		Expect(manager().Kept).To(BeEmpty())
	})

	It("removes stored descriptors that were not taken", func() {
		m := manager()
		f := file()
		m.Kept = map[string][]*os.File{"affinity": {f}, "old": {file()}}
		Expect(m.Take("affinity")).To(ConsistOf(f))
		m.Forget()
		Expect(said()).To(Equal("FDSTOREREMOVE=1\nFDNAME=old"))
		Expect(io.ReadAll(f)).To(BeEmpty(), "it is open")
		f.Close()
	})
})
