package forward_test

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gleak"

	"github.com/usherproxy/usher/proxy/forward"
	"github.com/usherproxy/usher/proxy/outcome"
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

// mover is one way to forward a pair.
type mover struct {
	name string
	// begin forwards a new pair and returns the far ends of its connections. It releases its resources when the spec
	// has ended.
	begin func(forward.Limits, forward.Owner) (client, endpoint *net.TCPConn, flow forward.Flow)
}

var copyMover = mover{"two goroutines", func(limits forward.Limits, owner forward.Owner) (client, endpoint *net.TCPConn, flow forward.Flow) {
	nearClient, client := tcpPair()
	nearEndpoint, endpoint := tcpPair()
	return client, endpoint, forward.Copy(nearClient, nearEndpoint, limits, owner)
}}

// opaque is a connection whose state only its own methods report, as the kernel does not know it.
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

var _ = Describe("a pair whose endpoint is not a socket", func() {
	It("ends when the endpoint has failed, even if the client does not read", func() {
		nearClient, client := tcpPair()
		defer client.Close()
		nearEndpoint, endpoint := tcpPair()
		defer endpoint.Close()
		ended := make(chan outcome.Result, 1)
		failed := make(chan struct{})
		forward.Copy(nearClient, opaque{nearEndpoint, failed}, forward.Limits{}, forward.Done(func(r outcome.Result) { ended <- r }))
		block := make([]byte, 1<<20)
		for full := 0; full < 2; { // as in fill
			Expect(endpoint.SetWriteDeadline(time.Now().Add(200 * time.Millisecond))).To(Succeed())
			n, _ := endpoint.Write(block)
			if full++; n > 0 {
				full = 0
			}
		}
		close(failed)
		var r outcome.Result
		Eventually(ended).WithTimeout(30 * time.Second).Should(Receive(&r))
		Expect(r.Outcome).To(Equal(outcome.EndpointReset))
		Expect(r.Err).To(MatchError(io.ErrUnexpectedEOF))
	})
})

var _ = Describe("a pair whose client has sent data before", func() {
	It("counts that data and does not report the client's first byte again", func() {
		nearClient, client := tcpPair()
		nearEndpoint, endpoint := tcpPair()
		p := &pair{Gomega: Default, ended: make(chan outcome.Result, 1)}
		p.flow = forward.CopyRest(nearClient, nearEndpoint, 10, forward.Limits{}, p)
		p.write(client, "more")
		Expect(p.read(endpoint, 4)).To(Equal("more"))
		Eventually(func() []int64 { toEndpoint, toClient := p.flow.Bytes(); return []int64{toEndpoint, toClient} }).Should(Equal([]int64{14, 0}))
		endpoint.Close()
		Expect(client.Read(make([]byte, 1))).Error().To(MatchError(io.EOF))
		client.Close()
		Expect(p.result()).To(Equal(outcome.Result{Outcome: outcome.EndpointClosed, ToEndpoint: 14}))
		Expect(p.asked.Load()).To(BeZero())
	})
})

// pair is a pair that a mover forwards.
type pair struct {
	Gomega
	client, endpoint *net.TCPConn // far ends
	began            time.Time    // before the flow began
	flow             forward.Flow
	ended            chan outcome.Result
	calls            atomic.Int32 // of Ended
	asked, answered  atomic.Int32 // calls of ClientFirstByte and EndpointFirstByte
}

// pair is its own owner.
func (p *pair) Ended(r outcome.Result)      { p.calls.Add(1); p.ended <- r }
func (p *pair) ClientFirstByte(time.Time)   { p.asked.Add(1) }
func (p *pair) EndpointFirstByte(time.Time) { p.answered.Add(1) }

// begin forwards a new pair. The connections are closed when the spec ends.
func begin(m mover, limits forward.Limits) *pair {
	GinkgoHelper()
	p := &pair{began: time.Now(), ended: make(chan outcome.Result, 2)}
	p.Gomega = NewGomega(func(message string, caller ...int) { Fail(m.name+": "+message, append(caller, 0)[0]+1) })
	p.client, p.endpoint, p.flow = m.begin(limits, p)
	DeferCleanup(func() {
		p.client.Close()
		p.endpoint.Close()
		p.Eventually(p.calls.Load).WithTimeout(30 * time.Second).Should(BeEquivalentTo(1))
	})
	return p
}

func (p *pair) result() (r outcome.Result) {
	GinkgoHelper()
	p.Eventually(p.ended).WithTimeout(30 * time.Second).Should(Receive(&r))
	return r
}

func (p *pair) read(c net.Conn, n int) string {
	GinkgoHelper()
	buf := make([]byte, n)
	p.Expect(c.SetReadDeadline(time.Now().Add(30 * time.Second))).To(Succeed())
	_, err := io.ReadFull(c, buf)
	p.Expect(err).NotTo(HaveOccurred())
	return string(buf)
}

func (p *pair) write(c net.Conn, s string) {
	GinkgoHelper()
	_, err := io.WriteString(c, s)
	p.Expect(err).NotTo(HaveOccurred())
}

// moved returns the number of bytes that the pair has moved.
func (p *pair) moved() int64 { a, b := p.flow.Bytes(); return a + b }

// fill writes to c until neither c nor the pair accepts more, and returns the number of bytes written. It requires
// two failures in a row, as a busy machine may have stopped the pair during the first one.
func (p *pair) fill(c *net.TCPConn) (sent int) {
	GinkgoHelper()
	chunk := make([]byte, 1<<20)
	full := 0
	p.Eventually(func() int {
		before := p.moved()
		p.Expect(c.SetWriteDeadline(time.Now().Add(200 * time.Millisecond))).To(Succeed())
		n, _ := c.Write(chunk)
		sent += n
		if full++; n > 0 || p.moved() > before {
			full = 0
		}
		return full
	}).WithTimeout(20 * time.Second).Should(Equal(2))
	return sent
}

// block writes to c until the pair moves no more, and returns the number of bytes written. A FIN still reaches the
// pair.
func (p *pair) block(c *net.TCPConn) (sent int64) {
	GinkgoHelper()
	for before := p.moved(); ; {
		n, err := c.Write(make([]byte, 64<<10))
		p.Expect(err).NotTo(HaveOccurred())
		sent += int64(n)
		// It counts looks instead of time, as a busy machine may have stopped both sides for a while.
		for looks := 0; p.moved() < before+sent; time.Sleep(time.Millisecond) {
			if looks++; looks > 500 {
				return sent
			}
		}
	}
}

func (p *pair) reset(c *net.TCPConn) {
	GinkgoHelper()
	p.Expect(c.SetLinger(0)).To(Succeed())
	c.Close()
}

// noLeaks makes the spec check, after its pairs are closed, that no goroutine is left and that Ended was called once
// for each pair that pairs returns.
func noLeaks(pairs func() []*pair) {
	goroutines := gleak.Goroutines()
	DeferCleanup(func() {
		Consistently(func() (calls []int32) {
			for _, p := range pairs() {
				calls = append(calls, p.calls.Load())
			}
			return calls
		}).WithTimeout(20 * time.Millisecond).Should(HaveEach(BeEquivalentTo(1)))
	})
	DeferCleanup(func() { Eventually(gleak.Goroutines).ShouldNot(gleak.HaveLeaked(goroutines)) })
}

var _ = Describe("a pair", func() {
	movers := append(systemMovers(), copyMover)
	for _, m := range movers {
		Context("forwarded by "+m.name, func() { specify(m) })
	}
	Context("forwarded by any mover", func() { specifySlow(movers) })
})

func specify(m mover) {
	var p *pair
	BeforeEach(func() {
		noLeaks(func() []*pair { return []*pair{p} })
		p = begin(m, forward.Limits{HalfClosed: time.Minute})
	})

	It("carries bytes both ways and counts them", func() {
		p.write(p.client, "question")
		Expect(p.read(p.endpoint, 8)).To(Equal("question"))
		p.write(p.endpoint, "yes")
		Expect(p.read(p.client, 3)).To(Equal("yes"))
		Eventually(func() [2]int64 { a, b := p.flow.Bytes(); return [2]int64{a, b} }).Should(Equal([2]int64{8, 3}))
		p.client.Close()
		Expect(p.endpoint.Read(make([]byte, 1))).Error().To(MatchError(io.EOF))
		p.endpoint.Close()
		Expect(p.result()).To(Equal(outcome.Result{Outcome: outcome.ClientClosed, ToEndpoint: 8, ToClient: 3}))
	})

	It("reports the first byte of each side once, and none without data", func() {
		Consistently(p.asked.Load).WithTimeout(20 * time.Millisecond).Should(BeZero())
		p.write(p.client, "question")
		Expect(p.read(p.endpoint, 8)).To(Equal("question"))
		Consistently(p.answered.Load).WithTimeout(20 * time.Millisecond).Should(BeZero())
		for range 3 {
			p.write(p.endpoint, "yes")
			Expect(p.read(p.client, 3)).To(Equal("yes"))
			Expect(p.answered.Load()).To(BeEquivalentTo(1))
		}
		p.write(p.client, "more")
		Expect(p.read(p.endpoint, 4)).To(Equal("more"))
		Expect(p.asked.Load()).To(BeEquivalentTo(1))
		p.client.Close()
		p.endpoint.Close()
		p.result()

		other := begin(m, forward.Limits{})
		other.endpoint.Close()
		other.client.Close()
		other.result()
		Expect(other.asked.Load() + other.answered.Load()).To(BeZero())
	})

	It("reports that the endpoint ended first", func() {
		p.endpoint.Close()
		Expect(p.client.Read(make([]byte, 1))).Error().To(MatchError(io.EOF))
		p.client.Close()
		Expect(p.result().Outcome).To(Equal(outcome.EndpointClosed))
	})

	// If both sides have ended, the protocol may have no answers, whichever side ended first.
	// What a spec does after a FIN may take long on a busy machine. So the half-closed timeout is short only where the
	// outcome does not depend on that, and far where the pair must end earlier.
	const short, longer, far = 500 * time.Millisecond, 3 * time.Second, 20 * time.Second
	DescribeTable("reports whether the client got no response", func(halfClosed time.Duration, how func(p *pair), is outcome.Outcome) {
		p := begin(m, forward.Limits{HalfClosed: halfClosed})
		how(p)
		Expect(p.result().Outcome).To(Equal(is))
	},
		Entry("it sent data, and resets", far, func(p *pair) {
			p.write(p.client, "question")
			p.read(p.endpoint, 8)
			p.reset(p.client)
		}, outcome.NoResponse),
		Entry("it sent data and closed, and the endpoint does nothing", short, func(p *pair) {
			p.write(p.client, "question")
			p.client.Close()
			p.read(p.endpoint, 8)
		}, outcome.NoResponse),
		Entry("it sent data and closed, and the endpoint answers later", far, func(p *pair) {
			p.write(p.client, "question")
			p.client.Close()
			p.read(p.endpoint, 8)
			Expect(p.endpoint.Read(make([]byte, 1))).Error().To(MatchError(io.EOF))
			p.write(p.endpoint, "answer")
		}, map[bool]outcome.Outcome{true: outcome.NoResponse, false: outcome.ClientReset}[runtime.GOOS == "linux"]),
		Entry("it sent nothing, and resets", far, func(p *pair) { p.reset(p.client) }, outcome.ClientReset),
		Entry("it sent nothing and closed, and the endpoint does nothing", short, func(p *pair) { p.client.Close() }, outcome.HalfClosed),
		Entry("it got an answer, and the endpoint does not close", longer, func(p *pair) {
			p.write(p.client, "question")
			Expect(p.client.CloseWrite()).To(Succeed())
			p.read(p.endpoint, 8)
			p.write(p.endpoint, "answer")
			p.read(p.client, 6)
		}, outcome.HalfClosed),
		Entry("it got an answer, and resets", far, func(p *pair) {
			p.write(p.client, "question")
			p.read(p.endpoint, 8)
			p.write(p.endpoint, "answer")
			p.read(p.client, 6)
			p.reset(p.client)
		}, outcome.ClientReset),
		Entry("it uploads data, and both sides close", far, func(p *pair) {
			p.write(p.client, "question")
			p.client.Close()
			Expect(io.ReadAll(p.endpoint)).To(BeEquivalentTo("question"))
			p.endpoint.Close()
		}, outcome.ClientClosed),
		Entry("it uploads data, and the endpoint closes first", far, func(p *pair) {
			p.write(p.client, "question")
			p.read(p.endpoint, 8)
			p.endpoint.Close()
			Expect(p.client.Read(make([]byte, 1))).Error().To(MatchError(io.EOF))
			p.client.Close()
		}, outcome.EndpointClosed),
	)

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
				defer p.endpoint.Close()
				all, err := io.ReadAll(p.endpoint) // until the client's FIN
				Expect(err).NotTo(HaveOccurred())
				Expect(sha256.Sum256(all)).To(Equal(sha256.Sum256(question)))
				_, err = p.endpoint.Write(answer)
				Expect(err).NotTo(HaveOccurred())
			})
			_, err := p.client.Write(question)
			Expect(err).NotTo(HaveOccurred())
			Expect(p.client.CloseWrite()).To(Succeed())
			got, err = io.ReadAll(p.client)
			Expect(err).NotTo(HaveOccurred())
			Expect(bytes.Equal(got, answer)).To(BeTrue())
			wg.Wait()
			Expect(p.result()).To(Equal(outcome.Result{Outcome: outcome.ClientClosed, ToEndpoint: int64(size), ToClient: int64(size)}))
		},
		Entry("no bytes", 0),
		Entry("one byte", 1),
		Entry("1 MiB", 1<<20),
		Entry("64 MiB", 64<<20),
	)

	It("forwards a reset by the client to the endpoint", func() {
		p.write(p.client, "x")
		p.read(p.endpoint, 1)
		Expect(p.client.SetLinger(0)).To(Succeed())
		p.client.Close()
		Expect(p.endpoint.Read(make([]byte, 1))).Error().To(MatchError(syscall.ECONNRESET))
		r := p.result()
		Expect(r.Outcome).To(Equal(outcome.NoResponse))
		Expect(errors.Is(r.Err, syscall.ECONNRESET)).To(BeTrue())
	})

	It("forwards a reset by the endpoint to the client", func() {
		p.write(p.client, "x")
		p.read(p.endpoint, 1)
		Expect(p.endpoint.SetLinger(0)).To(Succeed())
		p.endpoint.Close()
		Expect(p.client.Read(make([]byte, 1))).Error().To(MatchError(syscall.ECONNRESET))
		Expect(p.result().Outcome).To(Equal(outcome.EndpointReset))
	})

	It("ends as closed by the client if the endpoint answers its FIN with a reset", func() {
		p.write(p.client, "question")
		Expect(p.read(p.endpoint, 8)).To(Equal("question"))
		p.write(p.endpoint, "answer")
		Expect(p.read(p.client, 6)).To(Equal("answer"))
		Expect(p.client.CloseWrite()).To(Succeed())
		Expect(io.ReadAll(p.endpoint)).To(BeEmpty())
		p.reset(p.endpoint)
		Expect(p.result()).To(Equal(outcome.Result{Outcome: outcome.ClientClosed, ToEndpoint: 8, ToClient: 6}))
		_, err := p.client.Read(make([]byte, 1))
		Expect(err).To(MatchError(syscall.ECONNRESET))
	})

	It("ends as reset by the endpoint if that sends only a reset after the client's FIN", func() {
		p.write(p.client, "question")
		Expect(p.client.CloseWrite()).To(Succeed())
		Expect(io.ReadAll(p.endpoint)).To(Equal([]byte("question")))
		p.reset(p.endpoint)
		Expect(p.result().Outcome).To(Equal(outcome.EndpointReset))
	})

	It("delivers an answer that was sent before the endpoint stopped reading", func() {
		p.write(p.endpoint, "too large")
		Expect(p.read(p.client, 9)).To(Equal("too large"))
		// The endpoint closes with bytes unread, so its kernel sends a reset.
		p.write(p.client, "a long question")
		Eventually(func() int64 { n, _ := p.flow.Bytes(); return n }).Should(BeEquivalentTo(15))
		p.endpoint.Close()
		Expect(p.client.Read(make([]byte, 1))).Error().To(HaveOccurred())
		Expect(p.result().Outcome).To(Equal(outcome.EndpointReset))
	})

	It("does not turn a reset into a regular end of the answer", func() {
		for n := range 20 {
			if n > 0 {
				p = begin(m, forward.Limits{})
			}
			p.write(p.endpoint, "half of the ")
			Expect(p.read(p.client, 12)).To(Equal("half of the "))
			// The reset arrives while the pair is writing, so that a write reports it, not a read.
			sent := make(chan error)
			go func() {
				for {
					if _, err := p.client.Write([]byte("more ")); err != nil {
						sent <- err
						return
					}
				}
			}()
			p.read(p.endpoint, 100)
			Expect(p.endpoint.SetLinger(0)).To(Succeed())
			p.endpoint.Close()
			_, err := p.client.Read(make([]byte, 1))
			// One of the client's own two calls reports the reset.
			Expect([]error{err, <-sent}).To(ContainElement(MatchError(syscall.ECONNRESET)))
			Expect(p.result().Outcome).To(Equal(outcome.EndpointReset))
		}
	})

	It("stops reading from one side while the other does not read", func() {
		sent := p.fill(p.client)
		Expect(p.client.CloseWrite()).To(Succeed())
		n, err := io.Copy(io.Discard, p.endpoint)
		Expect(err).NotTo(HaveOccurred())
		Expect(n).To(BeEquivalentTo(sent))
		p.endpoint.Close()
		Expect(p.result().ToEndpoint).To(BeEquivalentTo(sent))
	})

	It("ends at its maximum age even if it is never idle", func() {
		// A busy machine may cause a pause, but hardly each time.
		Eventually(func() time.Duration {
			p = begin(m, forward.Limits{Age: 800 * time.Millisecond})
			began := time.Now()
			for ; ; time.Sleep(time.Millisecond) {
				if _, err := p.client.Write([]byte("x")); err != nil {
					break
				}
			}
			Expect(p.result().Outcome).To(Equal(outcome.MaxAge))
			return time.Since(began)
		}).WithTimeout(30 * time.Second).Should(BeNumerically(">=", 780*time.Millisecond))
	})

	It("ends at the retirement deadline if it is never idle before", func() {
		began := time.Now()
		p.flow.Retire(began.Add(time.Second))
		for ; ; time.Sleep(time.Millisecond) {
			if _, err := p.client.Write([]byte("x")); err != nil {
				break
			}
			if _, err := p.endpoint.Read(make([]byte, 1)); err != nil {
				break // the pair may end in between
			}
		}
		Expect(p.result().Outcome).To(Equal(outcome.EndpointDrained))
		Expect(time.Since(began)).To(BeNumerically("<", 10*time.Second), "even on a busy machine")
		p.flow.Retire(began) // a second call has no effect
	})

	It("moves data both ways concurrently, byte for byte, while readers pause", func() {
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
		both.Go(func() { exchange(p.client, a, b, 1) })
		both.Go(func() { exchange(p.endpoint, b, a, 2) })
		both.Wait()
		r := p.result()
		Expect([]int64{r.ToEndpoint, r.ToClient}).To(Equal([]int64{size, size}))
	})

	It("resets both sides when Break is called", func() {
		p.write(p.client, "x")
		p.read(p.endpoint, 1)
		p.flow.Break()
		Expect(p.client.Read(make([]byte, 1))).Error().To(MatchError(syscall.ECONNRESET))
		Expect(p.endpoint.Read(make([]byte, 1))).Error().To(MatchError(syscall.ECONNRESET))
		Expect(p.result()).To(Equal(outcome.Result{Outcome: outcome.Drained, ToEndpoint: 1}))
		p.flow.Break() // a second call has no effect
	})
}

// specifySlow runs the specs that take long: the pairs of all movers wait concurrently.
func specifySlow(movers []mover) {
	var pairs []*pair
	BeforeEach(func() {
		pairs = nil
		noLeaks(func() []*pair { return pairs })
	})
	// each checks n pairs of each mover concurrently, and passes the pair's index to check.
	each := func(limits forward.Limits, n int, check func(p *pair, i int)) {
		GinkgoHelper()
		var all sync.WaitGroup
		for _, m := range movers {
			for i := range n {
				p := begin(m, limits)
				pairs = append(pairs, p)
				all.Go(func() {
					defer GinkgoRecover()
					check(p, i)
				})
			}
		}
		all.Wait()
	}

	Context("with one side that does not read", func() {
		// eachSide checks pairs whose client leaves (gone) and whose endpoint does not read (deaf), and pairs with
		// the sides swapped. A pair ends with outcome reset when gone sends a reset.
		eachSide := func(limits forward.Limits, check func(p *pair, gone, deaf *net.TCPConn, reset outcome.Outcome)) {
			GinkgoHelper()
			each(limits, 2, func(p *pair, i int) {
				if i == 0 {
					check(p, p.client, p.endpoint, outcome.ClientReset)
				} else {
					check(p, p.endpoint, p.client, outcome.EndpointReset)
				}
			})
		}
		ends := func(p *pair, deaf *net.TCPConn, with outcome.Outcome) {
			GinkgoHelper()
			p.Expect(p.result().Outcome).To(Equal(with))
			_, err := io.Copy(io.Discard, deaf)
			p.Expect(err).To(MatchError(syscall.ECONNRESET))
		}
		unlimited := forward.Limits{HalfClosed: time.Minute}

		It("ends when the other side resets", func() {
			eachSide(unlimited, func(p *pair, gone, deaf *net.TCPConn, reset outcome.Outcome) {
				if reset == outcome.ClientReset {
					reset = outcome.NoResponse // the client sends nothing else
				}
				p.fill(gone)
				p.reset(gone)
				ends(p, deaf, reset)
			})
		})

		It("ends when the other side resets and has not read either", func() {
			eachSide(unlimited, func(p *pair, gone, deaf *net.TCPConn, reset outcome.Outcome) {
				p.fill(deaf)
				p.fill(gone)
				p.reset(gone)
				ends(p, deaf, reset)
			})
		})

		It("ends when the other side's FIN cannot be delivered within the half-closed timeout", func() {
			eachSide(forward.Limits{HalfClosed: 300 * time.Millisecond}, func(p *pair, gone, deaf *net.TCPConn, _ outcome.Outcome) {
				p.block(gone)
				p.Expect(gone.CloseWrite()).To(Succeed())
				ends(p, deaf, outcome.HalfClosed)
			})
		})

		It("delivers all data that the other side sent before it closed", func() {
			eachSide(unlimited, func(p *pair, gone, deaf *net.TCPConn, _ outcome.Outcome) {
				sent := p.block(gone)
				gone.Close()
				for range 2 { // the kernel answers the first write with a reset
					p.write(deaf, "late")
					p.Consistently(p.ended).WithTimeout(50 * time.Millisecond).ShouldNot(Receive())
				}
				p.Expect(io.Copy(io.Discard, deaf)).To(Equal(sent))
				deaf.Close()
				p.result()
			})
		})

		It("stays open while the endpoint reads the client's remaining data slowly", func() {
			each(forward.Limits{HalfClosed: 5 * time.Second}, 1, func(p *pair, _ int) {
				p.Expect(p.endpoint.SetReadBuffer(32 << 10)).To(Succeed()) // so that the pair soon notices that the endpoint reads
				sent := p.block(p.client)
				p.Expect(p.client.CloseWrite()).To(Succeed())
				// The kernel lets the pair write more when a third of its buffer is empty, some 800 kB: at this rate,
				// that takes more than twice the time allowed.
				read := int64(0)
				for slow := time.NewTicker(250 * time.Millisecond); read < min(1<<20, sent/2); <-slow.C {
					n, err := io.CopyN(io.Discard, p.endpoint, 16<<10)
					read += n
					p.Expect(err).NotTo(HaveOccurred(), "after %d bytes", read)
				}
				n, err := io.Copy(io.Discard, p.endpoint)
				p.Expect(err).NotTo(HaveOccurred())
				p.Expect(read + n).To(Equal(sent))
				p.endpoint.Close()
				p.result()
			})
		})
	})

	It("ends when it is half closed and idle for the half-closed timeout", func() {
		each(forward.Limits{HalfClosed: 6 * time.Second}, 1, func(p *pair, _ int) {
			p.Expect(p.client.CloseWrite()).To(Succeed())
			for range 16 { // only silence counts
				p.write(p.endpoint, "tick")
				p.read(p.client, 4)
				p.Consistently(p.ended).WithTimeout(500 * time.Millisecond).ShouldNot(Receive())
			}
			p.Expect(p.client.Read(make([]byte, 1))).Error().To(MatchError(syscall.ECONNRESET))
			p.Expect(p.result().Outcome).To(Equal(outcome.HalfClosed))
		})
	})

	It("ends when no data has moved for the idle timeout", func() {
		each(forward.Limits{Idle: 6 * time.Second}, 1, func(p *pair, _ int) {
			for range 16 {
				p.write(p.client, "tick")
				p.read(p.endpoint, 4)
				p.Consistently(p.ended).WithTimeout(500 * time.Millisecond).ShouldNot(Receive())
			}
			p.Expect(p.endpoint.Read(make([]byte, 1))).Error().To(MatchError(syscall.ECONNRESET))
			p.Expect(p.result()).To(Equal(outcome.Result{Outcome: outcome.Idle, ToEndpoint: 64}))
		})
	})

	It("ends at about its maximum age if it is idle", func() {
		each(forward.Limits{Age: 800 * time.Millisecond}, 1, func(p *pair, _ int) {
			p.Expect(p.client.Read(make([]byte, 1))).Error().To(MatchError(syscall.ECONNRESET))
			p.Expect(time.Since(p.began)).To(BeNumerically(">=", 690*time.Millisecond))
			p.Expect(p.result().Outcome).To(Equal(outcome.MaxAge))
		})
	})

	It("ends when it is retired and idle", func() {
		each(forward.Limits{}, 1, func(p *pair, _ int) {
			p.flow.Retire(time.Now().Add(time.Hour))
			p.Expect(p.client.Read(make([]byte, 1))).Error().To(MatchError(syscall.ECONNRESET))
			p.Expect(p.endpoint.Read(make([]byte, 1))).Error().To(MatchError(syscall.ECONNRESET))
			p.Expect(p.result().Outcome).To(Equal(outcome.EndpointDrained))
		})
	})

	It("stays open after it is retired while a peer has data left to read", func() {
		each(forward.Limits{}, 1, func(p *pair, _ int) {
			sent := p.fill(p.endpoint)
			p.flow.Retire(time.Now().Add(time.Hour))
			p.Consistently(p.ended).WithTimeout(time.Second).ShouldNot(Receive())
			p.read(p.client, sent)
			p.Expect(p.result().Outcome).To(Equal(outcome.EndpointDrained))
		})
	})
}

var _ = Describe("an idle pair of two goroutines", func() {
	const pairs = 200

	// taken returns how many bytes of memory f retains, without stacks: those of the race detector are larger.
	taken := func(f func()) int64 {
		used := func() int64 {
			runtime.GC()
			runtime.GC() // the first run leaves the contents of pools
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			return int64(m.HeapAlloc)
		}
		before := used()
		f()
		return used() - before
	}

	DescribeTable("has no receive buffers", func(wrap func(forward.Conn) forward.Conn, most int) {
		type ends struct{ near, far *net.TCPConn }
		var clients, endpoints []ends
		for range pairs {
			for _, list := range []*[]ends{&clients, &endpoints} {
				near, far := tcpPair()
				*list = append(*list, ends{near, far})
			}
		}
		ended := make(chan outcome.Result, pairs)
		DeferCleanup(func() {
			for i := range pairs {
				clients[i].far.Close()
				endpoints[i].far.Close()
			}
			for range pairs {
				Eventually(ended).Should(Receive())
			}
		})
		Expect(taken(func() {
			for i := range pairs {
				client, endpoint := clients[i], endpoints[i]
				forward.Copy(wrap(client.near), wrap(endpoint.near), forward.Limits{}, forward.Done(func(r outcome.Result) { ended <- r }))
				for _, way := range [][2]net.Conn{{client.far, endpoint.far}, {endpoint.far, client.far}} {
					Expect(way[0].Write(make([]byte, 100))).To(Equal(100))
					Expect(io.ReadFull(way[1], make([]byte, 100))).To(Equal(100))
				}
			}
		}) / pairs).To(BeNumerically("<", most))
	},
		Entry("of sockets", func(c forward.Conn) forward.Conn { return c }, 4<<10),
		Entry("of other connections", func(c forward.Conn) forward.Conn { return struct{ forward.Conn }{c} }, 6<<10),
	)
})
