package handover

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"iter"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/usherproxy/usher/test/lab"
)

const role = "HANDOVER_TEST_ROLE"

// TestMain runs the tests in a dedicated network namespace, where no other process holds a lock. It also plays the
// roles of other processes.
func TestMain(m *testing.M) {
	switch os.Getenv(role) {
	case "":
		cmd := again("tests", syscall.CLONE_NEWNET)
		cmd.Stdout = os.Stdout
		if noNamespace = cmd.Start(); noNamespace != nil {
			os.Exit(m.Run())
		}
		if cmd.Wait() != nil {
			os.Exit(1)
		}
		os.Exit(0)
	case "tests":
		os.Exit(m.Run())
	case "holder":
		l, err := newLock(nil)
		exitIf(err)
		l.held.Store(true)
		l.Serve(&holding{})
	case "mute holder":
		_, err := net.ListenUnix(network, &net.UnixAddr{Name: holderPrefix + "mute", Net: network})
		exitIf(err)
	case "mute holders":
		for range 2 * maxContacts {
			_, err := net.ListenUnix(network, &net.UnixAddr{Name: holderPrefix + random(), Net: network})
			exitIf(err)
		}
	case "full holders":
		fullHolders(64)
	case "lingering holder":
		l, err := net.ListenUnix(network, &net.UnixAddr{Name: holderPrefix + "lingering", Net: network})
		exitIf(err)
		go func() {
			for {
				c, err := l.AcceptUnix()
				exitIf(err)
				lingering = append(lingering, c)
				_ = giveLingering(peer{c}, stateHeld)
			}
		}()
	case "lingering guest":
		all, err := listeners()
		exitIf(err)
		for range 3 {
			c, err := net.DialUnix(network, nil, &net.UnixAddr{Name: all[0].name, Net: network})
			exitIf(err)
			lingering = append(lingering, c)
			// The holder may have closed the connection already.
			if err := giveLingering(peer{c}, wordWho); !errors.Is(err, unix.EPIPE) {
				exitIf(err)
			}
		}
	case "crowd":
		all, err := listeners()
		exitIf(err)
		go func() {
			for {
				if c, err := net.DialUnix(network, nil, &net.UnixAddr{Name: all[0].name, Net: network}); err == nil {
					c.Close()
				}
				time.Sleep(100 * time.Microsecond) // so as not to fill the backlog, which another spec covers
			}
		}()
	case "successor":
		// The successor claims to have signed, although it cannot.
		holder, _, err := look("", wordHandOver)
		exitIf(err)
		exitIf(holder.send(wordSigned))
		said, sockets, err := holder.receive()
		exitIf(err)
		fmt.Printf("%q and %d sockets\n", said, len(sockets))
	}
	fmt.Println("ready")
	_, _ = io.Copy(io.Discard, os.Stdin)
}

func exitIf(err error) {
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

// again returns the command for this program in another role, in a new namespace.
func again(as string, namespace uintptr) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), role+"="+as)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = lab.InNamespaces(namespace)
	return cmd
}

// noNamespace is the reason why this process does not run in a dedicated network namespace.
var noNamespace error

var _ = BeforeSuite(func() {
	if noNamespace != nil {
		Skip(fmt.Sprint("requires the capability to create a network namespace: ", noNamespace))
	}
	Expect(exec.Command("ip", "link", "set", "lo", "up").Run()).To(Succeed())
})

// fullHolders creates sockets with holders' names and full backlogs.
func fullHolders(n int) (closeAll func()) {
	var all []int
	for range n {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
		exitIf(err)
		name := holderPrefix + random()
		exitIf(unix.Bind(fd, &unix.SockaddrUnix{Name: name}))
		exitIf(unix.Listen(fd, 0))
		all = append(all, fd)
		for {
			c, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
			exitIf(err)
			all = append(all, c)
			if err = unix.Connect(c, &unix.SockaddrUnix{Name: name}); err == unix.EAGAIN {
				break
			}
			exitIf(err)
		}
	}
	return func() {
		for _, fd := range all {
			unix.Close(fd)
		}
	}
}

// giveLingering sends p a socket whose last close blocks, as the peer does not read its data.
func giveLingering(p peer, text string) error {
	sink, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer func() { lingering = append(lingering, sink) }()
	c, err := net.Dial("tcp", sink.Addr().String())
	if err != nil {
		return err
	}
	defer func() { go c.Close() }() // the receiver may have closed its duplicate already
	tcp := c.(*net.TCPConn)
	accepted, err := sink.Accept()
	if err != nil {
		return err
	}
	lingering = append(lingering, accepted)
	if err := errors.Join(tcp.SetLinger(1<<20), tcp.SetWriteDeadline(time.Now().Add(100*time.Millisecond))); err != nil {
		return err
	}
	if _, err := io.Copy(tcp, zeros{}); !errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	f, err := tcp.File()
	if err != nil {
		return err
	}
	defer func() { go f.Close() }()
	if err = p.send(text, int(f.Fd())); err != nil {
		_ = tcp.SetLinger(0) // this process still has to close it
	}
	return err
}

var lingering []io.Closer

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { return len(b), nil }

func TestHandover(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "portal/handover")
}

// holding is a Holder that counts calls.
type holding struct {
	sockets              iter.Seq[Socket]
	mu                   sync.Mutex
	asked, back, forever int
}

func (o *holding) HandOver() (sockets, more iter.Seq[Socket], resume, release func(), err error) {
	o.count(&o.asked)
	if sockets = o.sockets; sockets == nil {
		sockets = None
	}
	return sockets, None, func() { o.count(&o.back) }, func() { o.count(&o.forever) }, nil
}

func (o *holding) count(n *int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	*n++
}

func (o *holding) counts() [3]int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return [3]int{o.asked, o.back, o.forever}
}

var _ = Describe("the lock", func() {
	// start starts another process, and returns its first line of output.
	start := func(cmd *exec.Cmd) (pid int, says string) {
		GinkgoHelper()
		in, err := cmd.StdinPipe()
		Expect(err).NotTo(HaveOccurred())
		out, err := cmd.StdoutPipe()
		Expect(err).NotTo(HaveOccurred())
		err = cmd.Start()
		if cmd.SysProcAttr.Credential != nil && errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EPERM) {
			Skip("requires root outside a user namespace")
		}
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(func() {
			in.Close()
			_ = cmd.Wait() // the process prints its own errors
		})
		says, err = bufio.NewReader(out).ReadString('\n')
		Expect(err).NotTo(HaveOccurred())
		return cmd.Process.Pid, says
	}
	// rootWithoutRights starts this program as a root user without capabilities in this network namespace, as in an
	// unprivileged container on the host's network.
	rootWithoutRights := func(as string) (pid int, says string) {
		GinkgoHelper()
		lab.UserNamespaces()
		return start(again(as, syscall.CLONE_NEWUSER))
	}
	otherUser := func(as string) (pid int, says string) {
		GinkgoHelper()
		cmd := again(as, 0)
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: 65534, Gid: 65534}
		return start(cmd)
	}
	fullHoldersOfOtherUser := func() {
		GinkgoHelper()
		_, says := otherUser("full holders")
		Expect(says).To(Equal("ready\n"))
		if all, err := diagnose(); errors.Is(err, unix.ENOENT) || err == nil && all[0].user == unknownUser {
			Skip("requires Linux 5.3 with unix_diag")
		}
	}
	serve := func(o *holding) *Lock {
		GinkgoHelper()
		l, err := Acquire(nil)
		Expect(err).NotTo(HaveOccurred())
		l.Serve(o)
		DeferCleanup(l.Release)
		return l
	}

	It("is held by one process at a time", func() {
		for range 5 {
			var mu sync.Mutex
			var got []*Lock
			var refused []error
			var all sync.WaitGroup
			for range 8 {
				all.Go(func() {
					l, err := Acquire(nil)
					mu.Lock()
					defer mu.Unlock()
					if err == nil {
						got = append(got, l)
					} else {
						refused = append(refused, err)
					}
				})
			}
			all.Wait()
			Expect(got).To(HaveLen(1), "refused: %v", refused)
			Expect(refused).To(HaveEach(MatchError(ErrLocked)))
			Expect(refused[0]).To(MatchError(ContainSubstring("process %d of user %d", os.Getpid(), os.Getuid())))
			got[0].Release()
		}
	})
	It("cannot be kept by a root process without capabilities", func() {
		pid, says := rootWithoutRights("holder")
		Expect(says).To(Equal("ready\n"))
		mute, says := rootWithoutRights("mute holder")
		Expect(says).To(Equal("ready\n"))
		l, err := Acquire(nil)
		Expect(err).NotTo(HaveOccurred())
		defer l.Release()
		Expect(l.Strangers()).To(ConsistOf(
			fmt.Sprintf("process %d of user %d", pid, os.Getuid()),
			fmt.Sprintf("process %d of user %d", mute, os.Getuid())))
	})
	It("is not handed over to a root process without capabilities", func() {
		o := &holding{}
		serve(o)
		_, says := rootWithoutRights("successor")
		Expect(says).To(HaveSuffix("EOF\n"))
		Expect(o.counts()).To(Equal([3]int{}), "the holder is not even asked")
		Expect(Acquire(nil)).Error().To(MatchError(ErrLocked))
	})
	It("is handed over to a process with capabilities", func() {
		null, err := os.Open(os.DevNull)
		Expect(err).NotTo(HaveOccurred())
		o := &holding{sockets: func(yield func(Socket) bool) { yield(Socket{Name: "null", File: null}) }}
		serve(o)
		s, err := Ask()
		Expect(err).NotTo(HaveOccurred())
		Expect(s.Sockets).To(HaveKey("null"))
		l, err := s.Take()
		Expect(err).NotTo(HaveOccurred())
		defer l.Release()
		Expect(o.counts()).To(Equal([3]int{1, 0, 1}))
	})
	It("is handed over despite many idle connections", func() {
		o := &holding{}
		l := serve(o)
		for range 4 * maxGuests {
			c, err := net.DialUnix(network, nil, &net.UnixAddr{Name: l.name, Net: network})
			Expect(err).NotTo(HaveOccurred())
			defer c.Close()
		}
		began := time.Now()
		s, err := Ask()
		Expect(err).NotTo(HaveOccurred())
		Expect(time.Since(began)).To(BeNumerically("<", answerTime), "it does not wait for them to close")
		s.Abort()
		Eventually(o.counts).WithTimeout(30 * time.Second).Should(Equal([3]int{1, 1, 0}))
	})
	It("is unclaimed although another user's processes have a holder's name", func() {
		_, says := otherUser("mute holder")
		Expect(says).To(Equal("ready\n"))
		fullHoldersOfOtherUser()
		Eventually(Unclaimed()).WithTimeout(time.Minute).Should(BeClosed())
		l, err := Acquire(nil)
		Expect(err).NotTo(HaveOccurred())
		l.Serve(&holding{})
		defer l.Release()
		Consistently(Unclaimed()).WithTimeout(3 * claimInterval).ShouldNot(BeClosed())
	})
	for _, who := range []struct {
		name   string
		start  func(string) (int, string)
		within time.Duration
		user   int
	}{
		{"another user", otherUser, answerTime, 65534},
		{"root without capabilities", rootWithoutRights, 2 * lookTime, os.Getuid()},
	} {
		for _, as := range []string{"mute holder", "lingering holder"} {
			It("is not delayed by a "+as+" that is "+who.name, func() {
				pid, says := who.start(as)
				Expect(says).To(Equal("ready\n"))
				stranger := Equal(fmt.Sprintf("process %d of user %d", pid, who.user))
				if who.user != os.Geteuid() { // nothing connects to it, if the kernel gives the user
					stranger = Or(stranger, Equal(fmt.Sprintf("a process of user %d", who.user)))
				}
				for range 2 {
					began := time.Now()
					l, err := Acquire(nil)
					Expect(err).NotTo(HaveOccurred())
					Expect(time.Since(began)).To(BeNumerically("<", who.within))
					Expect(l.Strangers()).To(ConsistOf(stranger))
					l.Release()
				}
			})
		}
		It("is reported as held, and released, although "+who.name+" sends sockets that are slow to close", func() {
			l := serve(&holding{})
			_, says := who.start("lingering guest")
			Expect(says).To(Equal("ready\n"))
			Expect(Acquire(nil)).Error().To(MatchError(ErrLocked))
			released := make(chan struct{})
			go func() {
				defer close(released)
				l.Release()
			}()
			Eventually(released).WithTimeout(lookTime).Should(BeClosed())
		})
		It("is reported as held although "+who.name+" connects repeatedly", func() {
			serve(&holding{})
			_, says := who.start("crowd")
			Expect(says).To(Equal("ready\n"))
			for range 3 {
				Expect(Acquire(nil)).Error().To(MatchError(ErrLocked))
			}
		})
	}
	It("is delayed only once by many holders with full backlogs", func() {
		_, says := rootWithoutRights("full holders")
		Expect(says).To(Equal("ready\n"))
		began := time.Now()
		l, err := Acquire(nil)
		Expect(err).NotTo(HaveOccurred())
		defer l.Release()
		Expect(time.Since(began)).To(BeNumerically("<", 2*lookTime))
		Expect(l.Strangers()).To(ConsistOf("a process that accepts no connections"))
	})
	It("is not delayed by another user's holders with full backlogs", func() {
		fullHoldersOfOtherUser()
		began := time.Now()
		l, err := Acquire(nil)
		Expect(err).NotTo(HaveOccurred())
		defer l.Release()
		Expect(time.Since(began)).To(BeNumerically("<", time.Second))
		Expect(l.Strangers()).To(ConsistOf("a process of user 65534"))
	})
	It("is reported as held although more mute processes than are asked at once have a holder's name", func() {
		_, says := rootWithoutRights("mute holders")
		Expect(says).To(Equal("ready\n"))
		serve(&holding{})
		for range 3 {
			Expect(Acquire(nil)).Error().To(MatchError(ErrLocked))
		}
	})
	It("is found if another user made its socket", func() {
		l, err := Hold(nil)
		Expect(err).NotTo(HaveOccurred())
		file := l.File()
		Expect(file).NotTo(BeNil())
		l.Release()
		Expect(file.Chown(65534, -1)).To(Succeed())
		l, err = Acquire(file)
		Expect(err).NotTo(HaveOccurred())
		defer l.Release()
		Expect(Acquire(nil)).Error().To(MatchError(ErrLocked))
	})
	It("passes to the successor although other processes compete for it", func() {
		for range 5 {
			serve(&holding{})
			s, err := Ask()
			Expect(err).NotTo(HaveOccurred())
			stop := make(chan struct{})
			var others sync.WaitGroup
			var taken atomic.Int32
			for range 4 {
				others.Go(func() {
					for {
						if other, err := Acquire(nil); err == nil {
							taken.Add(1)
							other.Release()
						}
						select {
						case <-stop:
							return
						default:
						}
					}
				})
			}
			l, err := s.Take()
			close(stop)
			others.Wait()
			Expect(err).NotTo(HaveOccurred())
			l.Release()
			Expect(taken.Load()).To(BeZero())
		}
	})
	It("is reported as held although accepting fails temporarily", func() {
		listener, err := net.ListenUnix(network, &net.UnixAddr{Name: holderPrefix + random(), Net: network})
		Expect(err).NotTo(HaveOccurred())
		l := newLockAt(listener)
		l.held.Store(true)
		failures := 3
		l.serving.Go(func() {
			l.accept(func() (*net.UnixConn, error) {
				if failures--; failures >= 0 {
					return nil, unix.EMFILE
				}
				return listener.AcceptUnix()
			})
		})
		DeferCleanup(l.Release)
		Expect(Acquire(nil)).Error().To(MatchError(ErrLocked))
	})
	It("stays with the holder if the successor does not take the sockets", func() {
		o := &holding{sockets: func(yield func(Socket) bool) {
			for {
				null, err := os.Open(os.DevNull)
				if err != nil || !yield(Socket{Name: fmt.Sprint(null.Fd()), File: null}) {
					return
				}
			}
		}}
		serve(o)
		holder, _, err := look("", wordHandOver)
		Expect(err).NotTo(HaveOccurred())
		defer holder.close()
		Expect(holder.theirs.sign(holder.name, bySuccessor)).To(Succeed())
		Expect(holder.send(wordSigned)).To(Succeed())
		Eventually(o.counts).WithTimeout(stepTimeout / 2).Should(Equal([3]int{1, 1, 0}))
	})
})

var _ = Describe("a challenge", func() {
	It("cannot be signed for another connection, or by the wrong side", func() {
		d, err := newChallenge("@one", byHolder)
		Expect(err).NotTo(HaveOccurred())
		defer d.close()
		Expect(d.sign("@other", byHolder)).NotTo(Succeed())
		Expect(d.sign("@one", bySuccessor)).NotTo(Succeed())
		Expect(d.signed()).To(BeFalse())
		Expect(d.sign("@one", byHolder)).To(Succeed())
		Expect(d.signed()).To(BeTrue())
	})
	It("cannot be signed on a descriptor of another kind", func() {
		r, w, err := os.Pipe()
		Expect(err).NotTo(HaveOccurred())
		defer r.Close()
		defer w.Close()
		Expect(challenge(int(r.Fd())).sign("@one", byHolder)).NotTo(Succeed())
	})
})

var _ = Describe("the name of a peer", func() {
	It("is exact, and none but an abstract one", func() {
		GinkgoT().Chdir(GinkgoT().TempDir())
		at := &net.UnixAddr{Name: holderPrefix + random(), Net: network}
		listener, err := net.ListenUnix(network, at)
		Expect(err).NotTo(HaveOccurred())
		defer listener.Close()
		name := successorPrefix + random()
		peerOf := func(bound []byte) peer {
			GinkgoHelper()
			fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
			Expect(err).NotTo(HaveOccurred())
			defer unix.Close(fd)
			Expect(bindTo(fd, bound)).To(Succeed())
			Expect(unix.Connect(fd, &unix.SockaddrUnix{Name: at.Name})).To(Succeed())
			c, err := listener.AcceptUnix()
			Expect(err).NotTo(HaveOccurred())
			DeferCleanup(c.Close)
			Expect(c.RemoteAddr().String()).To(Equal(name), "although only one has it")
			return peer{c}
		}
		abstract := append([]byte{0}, name[1:]...)
		Expect(peerOf(abstract).name()).To(Equal(name))
		Expect(peerOf(append(abstract, 0, 'x')).name()).NotTo(Equal(name))
		Expect(os.Mkdir(strings.TrimSuffix(successorPrefix, "/"), 0o700)).To(Succeed())
		_, err = peerOf(append([]byte(name), 0)).name()
		Expect(err).To(MatchError(ContainSubstring("no abstract name")))
	})
})

// bindTo binds a socket to these bytes of sun_path, which package unix would change.
func bindTo(fd int, path []byte) error {
	addr := unix.RawSockaddrUnix{Family: unix.AF_UNIX}
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&addr.Path)), len(addr.Path)), path)
	_, _, errno := unix.RawSyscall(unix.SYS_BIND, uintptr(fd), uintptr(unsafe.Pointer(&addr)), unsafe.Offsetof(addr.Path)+uintptr(len(path)))
	if errno != 0 {
		return errno
	}
	return nil
}
