package forward_test

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"sync"
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

var _ = Describe("a pair", func() {
	var client, endpoint *net.TCPConn // the far ends
	var flow *forward.Flow
	var ended chan forward.Result

	start := func(o forward.Options) {
		GinkgoHelper()
		nearClient, farClient := tcpPair()
		nearEndpoint, farEndpoint := tcpPair()
		client, endpoint = farClient, farEndpoint
		done := make(chan forward.Result, 2)
		ended = done
		flow = forward.New(o).Forward(nearClient, nearEndpoint, func(r forward.Result) { done <- r })
	}
	BeforeEach(func() {
		goroutines := gleak.Goroutines()
		DeferCleanup(func() {
			client.Close()
			endpoint.Close()
			Eventually(gleak.Goroutines).ShouldNot(gleak.HaveLeaked(goroutines))
			Expect(ended).NotTo(Receive(), "done must be called once")
		})
		start(forward.Options{HalfClosed: time.Minute})
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

	It("stops reading from one side while the other does not read", func() {
		chunk := make([]byte, 1<<20)
		sent := 0
		Eventually(func() error {
			Expect(client.SetWriteDeadline(time.Now().Add(200 * time.Millisecond))).To(Succeed())
			n, err := client.Write(chunk)
			sent += n
			return err
		}).WithTimeout(20 * time.Second).Should(HaveOccurred())
		Expect(client.CloseWrite()).To(Succeed())
		n, err := io.Copy(io.Discard, endpoint)
		Expect(err).NotTo(HaveOccurred())
		Expect(n).To(BeEquivalentTo(sent))
		endpoint.Close()
		Expect(result().ToEndpoint).To(BeEquivalentTo(sent))
	})

	It("ends when half closed and silent for too long", func() {
		client.Close()
		endpoint.Close()
		result()
		start(forward.Options{HalfClosed: 300 * time.Millisecond})
		Expect(client.CloseWrite()).To(Succeed())
		for range 6 { // it is silence that counts
			write(endpoint, "tick")
			read(client, 4)
			Consistently(ended).WithTimeout(100 * time.Millisecond).ShouldNot(Receive())
		}
		Expect(client.Read(make([]byte, 1))).Error().To(MatchError(syscall.ECONNRESET))
		Expect(result().End).To(Equal(forward.HalfClosedTimeout))
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
})
