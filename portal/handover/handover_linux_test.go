package handover

import (
	"bufio"
	"fmt"
	"io"
	"iter"
	"net"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/usherproxy/usher/test/lab"
)

const role = "HANDOVER_TEST_ROLE"

// TestMain runs the tests in a network namespace of their own, where nobody else has
// a lock, and plays the parts of other processes for them.
func TestMain(m *testing.M) {
	switch os.Getenv(role) {
	case "":
		os.Exit(run(again("tests", syscall.CLONE_NEWNET)))
	case "tests":
		os.Exit(m.Run())
	case "holder":
		l, err := newLock()
		exitIf(err)
		l.held.Store(true)
		l.Serve(&office{})
	case "mute holder":
		_, err := net.ListenUnix(network, &net.UnixAddr{Name: holderPrefix + "mute", Net: network})
		exitIf(err)
	case "successor":
		// It says that it has signed, although it could not.
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
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: namespace}
	if namespace == syscall.CLONE_NEWUSER || os.Geteuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Geteuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getegid(), Size: 1}}
	}
	return cmd
}

func run(cmd *exec.Cmd) int {
	cmd.Stdout = os.Stdout
	if err := cmd.Start(); err != nil {
		fmt.Println("skipped: needs the right to make a network namespace:", err)
		return 0
	}
	if err := cmd.Wait(); err != nil {
		return 1
	}
	return 0
}

func TestHandover(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "portal/handover")
}

// office is a Holder that counts.
type office struct {
	sockets              iter.Seq[Socket]
	mu                   sync.Mutex
	asked, back, forever int
}

func (o *office) HandOver() (iter.Seq[Socket], func(), func(), error) {
	o.count(&o.asked)
	sockets := o.sockets
	if sockets == nil {
		sockets = func(func(Socket) bool) {}
	}
	return sockets, func() { o.count(&o.back) }, func() { o.count(&o.forever) }, nil
}

func (o *office) count(n *int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	*n++
}

func (o *office) counts() [3]int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return [3]int{o.asked, o.back, o.forever}
}

var _ = Describe("the lock", func() {
	// rootWithoutRights starts this program as a root that may change nothing in this
	// network namespace, as in a container without capabilities on the host's network,
	// and returns what it says first.
	rootWithoutRights := func(as string) (pid int, says string) {
		GinkgoHelper()
		lab.UserNamespaces()
		cmd := again(as, syscall.CLONE_NEWUSER)
		in, err := cmd.StdinPipe()
		Expect(err).NotTo(HaveOccurred())
		out, err := cmd.StdoutPipe()
		Expect(err).NotTo(HaveOccurred())
		Expect(cmd.Start()).To(Succeed())
		DeferCleanup(func() {
			in.Close()
			_ = cmd.Wait() // the role says itself how it went
		})
		says, err = bufio.NewReader(out).ReadString('\n')
		Expect(err).NotTo(HaveOccurred())
		return cmd.Process.Pid, says
	}
	serve := func(o *office) *Lock {
		GinkgoHelper()
		l, err := Acquire()
		Expect(err).NotTo(HaveOccurred())
		l.Serve(o)
		DeferCleanup(l.Release)
		return l
	}

	It("is one process's at a time", func() {
		for range 5 {
			var mu sync.Mutex
			var got []*Lock
			var refused []error
			var all sync.WaitGroup
			for range 8 {
				all.Go(func() {
					l, err := Acquire()
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
			Expect(got).To(HaveLen(1))
			Expect(refused).To(HaveEach(MatchError(ErrLocked)))
			Expect(refused[0]).To(MatchError(ContainSubstring("process %d of user %d", os.Getpid(), os.Getuid())))
			got[0].Release()
		}
	})
	It("cannot be kept by who has not the rights, root or not", func() {
		pid, says := rootWithoutRights("holder")
		Expect(says).To(Equal("ready\n"))
		mute, says := rootWithoutRights("mute holder")
		Expect(says).To(Equal("ready\n"))
		l, err := Acquire()
		Expect(err).NotTo(HaveOccurred())
		defer l.Release()
		Expect(l.Strangers()).To(ConsistOf(
			fmt.Sprintf("process %d of user %d", pid, os.Getuid()),
			fmt.Sprintf("process %d of user %d", mute, os.Getuid())))
	})
	It("is not handed over to who has not the rights, root or not", func() {
		o := &office{}
		serve(o)
		_, says := rootWithoutRights("successor")
		Expect(says).To(HaveSuffix("EOF\n"))
		Expect(o.counts()).To(Equal([3]int{}), "the holder is not even asked")
		Expect(Acquire()).Error().To(MatchError(ErrLocked))
	})
	It("is handed over to who has", func() {
		null, err := os.Open(os.DevNull)
		Expect(err).NotTo(HaveOccurred())
		o := &office{sockets: func(yield func(Socket) bool) { yield(Socket{Name: "null", File: null}) }}
		serve(o)
		s, err := Ask()
		Expect(err).NotTo(HaveOccurred())
		Expect(s.Sockets).To(HaveKey("null"))
		l, err := s.Take()
		Expect(err).NotTo(HaveOccurred())
		defer l.Release()
		Expect(o.counts()).To(Equal([3]int{1, 0, 1}))
	})
	It("is handed over although many come and say nothing", func() {
		o := &office{}
		l := serve(o)
		for range 4 * maxGuests {
			c, err := net.DialUnix(network, nil, &net.UnixAddr{Name: l.name, Net: network})
			Expect(err).NotTo(HaveOccurred())
			defer c.Close()
		}
		began := time.Now()
		s, err := Ask()
		Expect(err).NotTo(HaveOccurred())
		Expect(time.Since(began)).To(BeNumerically("<", answerTime), "it does not wait for them to go")
		s.Abort()
		Eventually(o.counts).WithTimeout(5 * time.Second).Should(Equal([3]int{1, 1, 0}))
	})
	It("stays with the holder if the successor does not take the sockets", func() {
		o := &office{sockets: func(yield func(Socket) bool) {
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
		Expect(holder.challenge.sign(holder.name, bySuccessor)).To(Succeed())
		Expect(holder.send(wordSigned)).To(Succeed())
		Eventually(o.counts).WithTimeout(patience / 2).Should(Equal([3]int{1, 1, 0}))
	})
})

var _ = Describe("a challenge", func() {
	It("is not signed for another connection, nor by the other side of its own", func() {
		d, err := newChallenge("@one", byHolder)
		Expect(err).NotTo(HaveOccurred())
		defer d.close()
		Expect(d.sign("@other", byHolder)).NotTo(Succeed())
		Expect(d.sign("@one", bySuccessor)).NotTo(Succeed())
		Expect(d.signed()).To(BeFalse())
		Expect(d.sign("@one", byHolder)).To(Succeed())
		Expect(d.signed()).To(BeTrue())
	})
	It("is no other descriptor", func() {
		r, w, err := os.Pipe()
		Expect(err).NotTo(HaveOccurred())
		defer r.Close()
		defer w.Close()
		Expect(challenge(int(r.Fd())).sign("@one", byHolder)).NotTo(Succeed())
	})
})
