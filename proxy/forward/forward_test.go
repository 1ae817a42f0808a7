package forward_test

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gleak"

	"github.com/usherproxy/usher/proxy/forward"
)

func TestForward(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "forward")
}

// tcpPair returns the two ends of a TCP connection.
func tcpPair() (near, far *net.TCPConn) {
	GinkgoHelper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	Expect(err).NotTo(HaveOccurred())
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	Expect(err).NotTo(HaveOccurred())
	a, err := l.Accept()
	Expect(err).NotTo(HaveOccurred())
	return a.(*net.TCPConn), c.(*net.TCPConn)
}

// mover is one of the ways to forward a pair.
type mover struct {
	name string
	// begin forwards a new pair and returns the far ends of its connections. What
	// it takes for that is given back when the spec has ended.
	begin func(limits forward.Limits, done func(forward.Result)) (client, endpoint *net.TCPConn, flow forward.Flow)
}

var copyMover = mover{"two goroutines", func(limits forward.Limits, done func(forward.Result)) (client, endpoint *net.TCPConn, flow forward.Flow) {
	nearClient, client := tcpPair()
	nearEndpoint, endpoint := tcpPair()
	return client, endpoint, forward.Copy(nearClient, nearEndpoint, limits, done)
}}

// opaque is a connection of which nothing but itself can tell how it is.
type opaque struct {
	forward.Conn
	failed chan struct{}
}

func (o opaque) HungUp() (ended bool, err error) {
	select {
	case <-o.failed:
		return true, io.ErrUnexpectedEOF
	default:
		return false, nil
	}
}

var _ = Describe("a pair whose endpoint is no socket", func() {
	It("ends when the endpoint has failed, though the client does not read", func() {
		nearClient, client := tcpPair()
		defer client.Close()
		nearEndpoint, endpoint := tcpPair()
		defer endpoint.Close()
		ended := make(chan forward.Result, 1)
		failed := make(chan struct{})
		forward.Copy(nearClient, opaque{nearEndpoint, failed}, forward.Limits{}, func(r forward.Result) { ended <- r })
		for block := make([]byte, 1<<20); ; {
			Expect(endpoint.SetWriteDeadline(time.Now().Add(200 * time.Millisecond))).To(Succeed())
			if _, err := endpoint.Write(block); err != nil {
				break
			}
		}
		close(failed)
		var r forward.Result
		Eventually(ended).WithTimeout(5 * time.Second).Should(Receive(&r))
		Expect(r.End).To(Equal(forward.EndpointReset))
		Expect(r.Err).To(MatchError(io.ErrUnexpectedEOF))
	})
})

var _ = Describe("a pair", func() {
	for _, m := range append(systemMovers(), copyMover) {
		Context("of "+m.name, func() { specify(m) })
	}
})

func specify(m mover) {
	var client, endpoint *net.TCPConn // the far ends
	var flow forward.Flow
	var ended chan forward.Result
	var calls atomic.Int32 // of done

	start := func(limits forward.Limits) {
		GinkgoHelper()
		calls.Store(0)
		done := make(chan forward.Result, 2)
		ended = done
		client, endpoint, flow = m.begin(limits, func(r forward.Result) { calls.Add(1); done <- r })
	}
	BeforeEach(func() {
		goroutines := gleak.Goroutines()
		DeferCleanup(func() { Eventually(gleak.Goroutines).ShouldNot(gleak.HaveLeaked(goroutines)) })
		start(forward.Limits{HalfClosed: time.Minute})
		DeferCleanup(func() {
			client.Close()
			endpoint.Close()
			Eventually(calls.Load).WithTimeout(5 * time.Second).Should(BeEquivalentTo(1))
			Consistently(calls.Load).WithTimeout(20*time.Millisecond).Should(BeEquivalentTo(1), "done is called once")
		})
	})
	result := func() (r forward.Result) {
		GinkgoHelper()
		Eventually(ended).WithTimeout(5 * time.Second).Should(Receive(&r))
		return r
	}
	read := func(c net.Conn, n int) string {
		GinkgoHelper()
		buf := make([]byte, n)
		Expect(c.SetReadDeadline(time.Now().Add(5 * time.Second))).To(Succeed())
		_, err := io.ReadFull(c, buf)
		Expect(err).NotTo(HaveOccurred())
		return string(buf)
	}
	write := func(c net.Conn, s string) {
		GinkgoHelper()
		_, err := io.WriteString(c, s)
		Expect(err).NotTo(HaveOccurred())
	}

	again := func(limits forward.Limits) {
		client.Close()
		endpoint.Close()
		result()
		start(limits)
	}

	It("carries bytes both ways and counts them", func() {
		write(client, "question")
		Expect(read(endpoint, 8)).To(Equal("question"))
		write(endpoint, "yes")
		Expect(read(client, 3)).To(Equal("yes"))
		Eventually(func() [2]int64 { a, b := flow.Bytes(); return [2]int64{a, b} }).Should(Equal([2]int64{8, 3}))
		client.Close()
		Expect(endpoint.Read(make([]byte, 1))).Error().To(MatchError(io.EOF))
		endpoint.Close()
		Expect(result()).To(Equal(forward.Result{End: forward.ClientClosed, ToEndpoint: 8, ToClient: 3}))
	})

	It("says when it was the endpoint that ended first", func() {
		endpoint.Close()
		Expect(client.Read(make([]byte, 1))).Error().To(MatchError(io.EOF))
		client.Close()
		Expect(result().End).To(Equal(forward.EndpointClosed))
	})

	DescribeTable("carries half-close across and keeps the other direction open, byte for byte",
		func(size int) {
			question, answer := make([]byte, size), make([]byte, size)
			rnd := rand.NewChaCha8([32]byte{1})
			rnd.Read(question)
			rnd.Read(answer)
			var got []byte
			var wg sync.WaitGroup
			wg.Go(func() {
				defer GinkgoRecover()
				defer endpoint.Close()
				all, err := io.ReadAll(endpoint) // until the client's FIN
				Expect(err).NotTo(HaveOccurred())
				Expect(sha256.Sum256(all)).To(Equal(sha256.Sum256(question)))
				_, err = endpoint.Write(answer)
				Expect(err).NotTo(HaveOccurred())
			})
			_, err := client.Write(question)
			Expect(err).NotTo(HaveOccurred())
			Expect(client.CloseWrite()).To(Succeed())
			got, err = io.ReadAll(client)
			Expect(err).NotTo(HaveOccurred())
			Expect(bytes.Equal(got, answer)).To(BeTrue())
			wg.Wait()
			Expect(result()).To(Equal(forward.Result{End: forward.ClientClosed, ToEndpoint: int64(size), ToClient: int64(size)}))
		},
		Entry("nothing at all", 0),
		Entry("one byte", 1),
		Entry("1 MiB", 1<<20),
		Entry("64 MiB", 64<<20),
	)

	It("makes the client's reset a reset of the endpoint", func() {
		write(client, "x")
		read(endpoint, 1)
		Expect(client.SetLinger(0)).To(Succeed())
		client.Close()
		Expect(endpoint.Read(make([]byte, 1))).Error().To(MatchError(syscall.ECONNRESET))
		r := result()
		Expect(r.End).To(Equal(forward.ClientReset))
		Expect(errors.Is(r.Err, syscall.ECONNRESET)).To(BeTrue())
	})

	It("makes the endpoint's reset a reset of the client", func() {
		write(client, "x")
		read(endpoint, 1)
		Expect(endpoint.SetLinger(0)).To(Succeed())
		endpoint.Close()
		Expect(client.Read(make([]byte, 1))).Error().To(MatchError(syscall.ECONNRESET))
		Expect(result().End).To(Equal(forward.EndpointReset))
	})

	It("delivers an answer that was sent before the endpoint stopped reading", func() {
		write(endpoint, "too large")
		Expect(read(client, 9)).To(Equal("too large"))
		// The endpoint closes with bytes unread: its kernel answers with a reset.
		write(client, "a long question")
		Eventually(func() int64 { n, _ := flow.Bytes(); return n }).Should(BeEquivalentTo(15))
		endpoint.Close()
		Expect(client.Read(make([]byte, 1))).Error().To(HaveOccurred())
		Expect(result().End).To(Equal(forward.EndpointReset))
	})

	It("lets no reset look like the end of an answer", func() {
		for n := range 20 {
			if n > 0 {
				start(forward.Limits{})
			}
			write(endpoint, "half of the ")
			Expect(read(client, 12)).To(Equal("half of the "))
			// The reset meets a pair that is writing: writing meets it, not reading.
			sent := make(chan error)
			go func() {
				for {
					if _, err := client.Write([]byte("more ")); err != nil {
						sent <- err
						return
					}
				}
			}()
			read(endpoint, 100)
			Expect(endpoint.SetLinger(0)).To(Succeed())
			endpoint.Close()
			_, err := client.Read(make([]byte, 1))
			// Of the client's own two calls, one is told.
			Expect([]error{err, <-sent}).To(ContainElement(MatchError(syscall.ECONNRESET)))
			Expect(result().End).To(Equal(forward.EndpointReset))
		}
	})

	// fill writes to c until neither c nor the pair takes any more, and returns how much
	// that was.
	fill := func(c *net.TCPConn) (sent int) {
		GinkgoHelper()
		chunk := make([]byte, 1<<20)
		Eventually(func() error {
			Expect(c.SetWriteDeadline(time.Now().Add(200 * time.Millisecond))).To(Succeed())
			n, err := c.Write(chunk)
			sent += n
			return err
		}).WithTimeout(20 * time.Second).Should(HaveOccurred())
		return sent
	}
	// block writes to c until the pair moves no more of it, and returns how much that
	// was. A FIN still gets through to the pair.
	block := func(c *net.TCPConn) (sent int64) {
		GinkgoHelper()
		moved := func() int64 { a, b := flow.Bytes(); return a + b }
		for before := moved(); ; {
			n, err := c.Write(make([]byte, 64<<10))
			Expect(err).NotTo(HaveOccurred())
			sent += int64(n)
			for began := time.Now(); moved() < before+sent; time.Sleep(time.Millisecond) {
				if time.Since(began) > 300*time.Millisecond {
					return sent
				}
			}
		}
	}
	reset := func(c *net.TCPConn) {
		GinkgoHelper()
		Expect(c.SetLinger(0)).To(Succeed())
		c.Close()
	}

	It("stops reading from one side while the other does not read", func() {
		sent := fill(client)
		Expect(client.CloseWrite()).To(Succeed())
		n, err := io.Copy(io.Discard, endpoint)
		Expect(err).NotTo(HaveOccurred())
		Expect(n).To(BeEquivalentTo(sent))
		endpoint.Close()
		Expect(result().ToEndpoint).To(BeEquivalentTo(sent))
	})

	Context("of which one side does not read", func() {
		for _, byClient := range []bool{true, false} {
			var gone, deaf *net.TCPConn
			end := forward.EndpointReset
			name := "the endpoint"
			if byClient {
				name, end = "the client", forward.ClientReset
			}
			pick := func() {
				if gone, deaf = endpoint, client; byClient {
					gone, deaf = client, endpoint
				}
			}
			ends := func(with forward.End) {
				GinkgoHelper()
				Expect(result().End).To(Equal(with))
				_, err := io.Copy(io.Discard, deaf)
				Expect(err).To(MatchError(syscall.ECONNRESET))
			}

			It("ends when "+name+" is reset", func() {
				pick()
				fill(gone)
				reset(gone)
				ends(end)
			})

			It("ends when "+name+" is reset, and has not read either", func() {
				pick()
				fill(deaf)
				fill(gone)
				reset(gone)
				ends(end)
			})

			It("ends when the end of what "+name+" sends cannot be delivered for too long", func() {
				again(forward.Limits{HalfClosed: 300 * time.Millisecond})
				pick()
				block(gone)
				Expect(gone.CloseWrite()).To(Succeed())
				ends(forward.HalfClosedTimeout)
			})

			It("delivers all that "+name+" has sent before its end, though it takes nothing any more", func() {
				pick()
				sent := block(gone)
				gone.Close()
				for range 2 { // the first is answered by a reset
					write(deaf, "late")
					Consistently(ended).WithTimeout(50 * time.Millisecond).ShouldNot(Receive())
				}
				Expect(io.Copy(io.Discard, deaf)).To(Equal(sent))
				deaf.Close()
				result()
			})
		}

		It("goes on while what the client has sent before its end is read, however slowly", func() {
			again(forward.Limits{HalfClosed: time.Second})
			Expect(endpoint.SetReadBuffer(32 << 10)).To(Succeed()) // what it takes is seen soon
			sent := block(client)
			Expect(client.CloseWrite()).To(Succeed())
			// The kernel finds room for more when a third of its buffer is empty,
			// some 800 kB: at this rate, in more than twice the time allowed.
			read := int64(0)
			for slow := time.NewTicker(100 * time.Millisecond); read < min(1<<20, sent/2); <-slow.C {
				n, err := io.CopyN(io.Discard, endpoint, 32<<10)
				read += n
				Expect(err).NotTo(HaveOccurred(), "after %d bytes", read)
			}
			n, err := io.Copy(io.Discard, endpoint)
			Expect(err).NotTo(HaveOccurred())
			Expect(read + n).To(Equal(sent))
			endpoint.Close()
			result()
		})
	})

	It("ends when half closed and silent for too long", func() {
		again(forward.Limits{HalfClosed: 1200 * time.Millisecond})
		Expect(client.CloseWrite()).To(Succeed())
		for range 6 { // it is silence that counts
			write(endpoint, "tick")
			read(client, 4)
			Consistently(ended).WithTimeout(250 * time.Millisecond).ShouldNot(Receive())
		}
		Expect(client.Read(make([]byte, 1))).Error().To(MatchError(syscall.ECONNRESET))
		Expect(result().End).To(Equal(forward.HalfClosedTimeout))
	})

	It("ends when nothing has moved for the idle time", func() {
		again(forward.Limits{Idle: 1200 * time.Millisecond})
		for range 6 {
			write(client, "tick")
			read(endpoint, 4)
			Consistently(ended).WithTimeout(250 * time.Millisecond).ShouldNot(Receive())
		}
		Expect(endpoint.Read(make([]byte, 1))).Error().To(MatchError(syscall.ECONNRESET))
		Expect(result()).To(Equal(forward.Result{End: forward.IdleTimeout, ToEndpoint: 24}))
	})

	It("ends when it is too old, at the first silence if there is one", func() {
		again(forward.Limits{Age: 800 * time.Millisecond})
		began := time.Now()
		Expect(client.Read(make([]byte, 1))).Error().To(MatchError(syscall.ECONNRESET))
		Expect(time.Since(began)).To(BeNumerically(">=", 650*time.Millisecond))
		Expect(result().End).To(Equal(forward.Aged))

		// With traffic without a pause there is no silence to end in. A busy machine may
		// make one, but hardly each time.
		Eventually(func() time.Duration {
			start(forward.Limits{Age: 800 * time.Millisecond})
			began := time.Now()
			for ; ; time.Sleep(time.Millisecond) {
				if _, err := client.Write([]byte("x")); err != nil {
					break
				}
			}
			Expect(result().End).To(Equal(forward.Aged))
			return time.Since(began)
		}).WithTimeout(30 * time.Second).Should(BeNumerically(">=", 780*time.Millisecond))
	})

	It("moves both ways at once, through readers that stop and go, byte for byte", func() {
		const size = 24 << 20
		exchange := func(c *net.TCPConn, mine, others [32]byte, pauses uint64) {
			defer GinkgoRecover()
			var wg sync.WaitGroup
			wg.Go(func() {
				defer GinkgoRecover()
				_, err := io.Copy(c, io.LimitReader(rand.NewChaCha8(mine), size))
				Expect(err).NotTo(HaveOccurred())
				Expect(c.CloseWrite()).To(Succeed())
			})
			expected, buf, want := rand.NewChaCha8(others), make([]byte, 100<<10), make([]byte, 100<<10)
			rnd := rand.New(rand.NewPCG(pauses, 1))
			total := 0
			for {
				n, err := c.Read(buf[:1+rnd.IntN(len(buf))])
				total += n
				expected.Read(want[:n])
				Expect(bytes.Equal(buf[:n], want[:n])).To(BeTrue(), "bytes before %d", total)
				if err == io.EOF {
					break
				}
				Expect(err).NotTo(HaveOccurred())
				if rnd.IntN(200) == 0 {
					time.Sleep(time.Duration(rnd.IntN(20)) * time.Millisecond)
				}
			}
			Expect(total).To(Equal(size))
			wg.Wait()
		}
		a, b := [32]byte{1}, [32]byte{2}
		var both sync.WaitGroup
		both.Go(func() { exchange(client, a, b, 1) })
		both.Go(func() { exchange(endpoint, b, a, 2) })
		both.Wait()
		r := result()
		Expect([]int64{r.ToEndpoint, r.ToClient}).To(Equal([]int64{size, size}))
	})

	It("ends with a reset of both sides when it is broken", func() {
		write(client, "x")
		read(endpoint, 1)
		flow.Break()
		Expect(client.Read(make([]byte, 1))).Error().To(MatchError(syscall.ECONNRESET))
		Expect(endpoint.Read(make([]byte, 1))).Error().To(MatchError(syscall.ECONNRESET))
		Expect(result()).To(Equal(forward.Result{End: forward.Broken, ToEndpoint: 1}))
		flow.Break() // again: nothing happens
	})
}
