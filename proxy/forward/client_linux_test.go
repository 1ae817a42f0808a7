package forward_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/usherproxy/usher/proxy/forward"
	"github.com/usherproxy/usher/proxy/outcome"
	"github.com/usherproxy/usher/test/lab"
)

var _ = Describe("a client that has no endpoint yet", func() {
	var (
		loop    *forward.Loop
		near    *forward.Client
		client  *net.TCPConn
		results chan outcome.Result
	)
	BeforeEach(func() {
		loop = newLoop(4)
		near, client = accepted()
		DeferCleanup(func() { client.Close() }) // may be closed already
		results = make(chan outcome.Result, 2)
	})
	join := func() *net.TCPConn {
		GinkgoHelper()
		d, endpoint := dialed(loop, near.Opening())
		DeferCleanup(func() { endpoint.Close() })
		on(loop, func() bool {
			loop.Forward(new(forward.Pair), near, d, &forward.Limits{}, forward.Done(func(r outcome.Result) { results <- r }))
			return true
		})
		return endpoint
	}
	readAhead := func() bool { return on(loop, func() bool { loop.ReadAhead(near); return near.First() != nil }) }

	It("has its early data delivered before its later data", func() {
		long := strings.Repeat("0123456789", 1000) // more than is read ahead
		Expect(client.Write([]byte(long))).Error().NotTo(HaveOccurred())
		Eventually(readAhead).Should(BeTrue())
		endpoint := join()
		Expect(client.Write([]byte("later"))).Error().NotTo(HaveOccurred())
		Expect(client.CloseWrite()).To(Succeed())
		Expect(io.ReadAll(endpoint)).To(BeEquivalentTo(long + "later"))
		endpoint.Close()
		var r outcome.Result
		Eventually(results).Should(Receive(&r))
		Expect(r.Outcome).To(Equal(outcome.ClientClosed))
		Expect(r.ToEndpoint).To(BeEquivalentTo(len(long) + len("later")))
	})

	It("has a preface delivered immediately, before its data and without being counted", func() {
		near.Preface = []byte("preface ")
		endpoint := join()
		Expect(io.ReadFull(endpoint, make([]byte, 8))).To(Equal(8), "the client has sent no data")
		Expect(client.Write([]byte("later"))).Error().NotTo(HaveOccurred())
		Expect(client.CloseWrite()).To(Succeed())
		Expect(io.ReadAll(endpoint)).To(BeEquivalentTo("later"))
		endpoint.Close()
		var r outcome.Result
		Eventually(results).Should(Receive(&r))
		Expect(r.ToEndpoint).To(BeEquivalentTo(5))
	})

	It("has a preface delivered together with its early data", func() {
		Expect(client.Write([]byte("first"))).Error().NotTo(HaveOccurred())
		Eventually(readAhead).Should(BeTrue())
		near.Preface = []byte("preface ")
		endpoint := join()
		buf := make([]byte, 100)
		n, err := endpoint.Read(buf)
		Expect(err).NotTo(HaveOccurred())
		Expect(string(buf[:n])).To(Equal("preface first"), "in one packet")
		Expect(client.CloseWrite()).To(Succeed())
		endpoint.Close()
		var r outcome.Result
		Eventually(results).Should(Receive(&r))
		Expect(r.ToEndpoint).To(BeEquivalentTo(5))
	})

	Describe("whose early data is sent with the connection request", func() {
		connect := func(to netip.AddrPort) chan error {
			GinkgoHelper()
			done := make(chan error, 1)
			Expect(loop.Do(func() {
				loop.Connect(netip.AddrPort{}, to, 0, near.Opening(), 100*time.Millisecond, func(d *forward.Dialed, err error) {
					if err == nil {
						loop.Forward(new(forward.Pair), near, d, &forward.Limits{}, forward.Done(func(r outcome.Result) { results <- r }))
					}
					done <- err
				})
			})).To(Succeed())
			return done
		}
		BeforeEach(func() {
			Expect(client.Write([]byte("first"))).Error().NotTo(HaveOccurred())
			Eventually(readAhead).Should(BeTrue())
			near.Preface = []byte("preface ")
		})

		It("has it delivered once, before its later data", func() {
			endpoints, err := net.Listen("tcp", "127.0.0.1:0")
			Expect(err).NotTo(HaveOccurred())
			defer endpoints.Close()
			Eventually(connect(endpoints.Addr().(*net.TCPAddr).AddrPort())).Should(Receive(BeNil()))
			endpoint, err := endpoints.Accept()
			Expect(err).NotTo(HaveOccurred())
			defer endpoint.Close()
			Expect(client.Write([]byte(" later"))).Error().NotTo(HaveOccurred())
			Expect(client.CloseWrite()).To(Succeed())
			Expect(io.ReadAll(endpoint)).To(BeEquivalentTo("preface first later"))
			endpoint.Close()
			var r outcome.Result
			Eventually(results).Should(Receive(&r))
			Expect(r.ToEndpoint).To(BeEquivalentTo(len("first later")))
		})

		It("has it kept for the next endpoint if one refuses or does not answer", func() {
			for to, want := range map[netip.AddrPort]error{netip.MustParseAddrPort("127.0.0.1:1"): unix.ECONNREFUSED, lab.Silent(): context.DeadlineExceeded} {
				Eventually(connect(to)).WithTimeout(30 * time.Second).Should(Receive(MatchError(want)))
			}
			Expect(string(near.Opening())).To(Equal("preface first"))
			near.Close()
		})
	})

	Describe("that must send a line first", func() {
		line := func(first []byte) bool { return strings.Contains(string(first), "\n") }
		await := func(timeout time.Duration) chan error {
			done := make(chan error, 1)
			Expect(loop.Do(func() { loop.AwaitHeader(near, timeout, line, func(err error) { done <- err }) })).To(Succeed())
			return done
		}

		It("can send it in pieces, and the data after it is delivered", func() {
			done := await(time.Minute)
			for _, piece := range []string{"a l", "in", "e"} {
				Expect(client.Write([]byte(piece))).Error().NotTo(HaveOccurred())
			}
			Consistently(done, "50ms").ShouldNot(Receive())
			Expect(client.Write([]byte("\nmore"))).Error().NotTo(HaveOccurred())
			Eventually(done).Should(Receive(BeNil()))
			Expect(string(near.First())).To(Equal("a line\nmore"))
			near.Skip(len("a line\n"))
			endpoint := join()
			Expect(client.Write([]byte(" and more"))).Error().NotTo(HaveOccurred())
			Expect(client.CloseWrite()).To(Succeed())
			Expect(io.ReadAll(endpoint)).To(BeEquivalentTo("more and more"))
		})

		It("can send only the line and then receive from the endpoint", func() {
			done := await(time.Minute)
			Expect(client.Write([]byte("\n"))).Error().NotTo(HaveOccurred())
			Eventually(done).Should(Receive(BeNil()))
			near.Skip(1)
			endpoint := join()
			Expect(endpoint.Write([]byte("hello"))).Error().NotTo(HaveOccurred())
			Expect(io.ReadFull(client, make([]byte, 5))).To(Equal(5))
		})

		It("can have sent it earlier", func() {
			Expect(client.Write([]byte("\n"))).Error().NotTo(HaveOccurred())
			Eventually(func() error { return <-await(time.Minute) }).Should(Succeed())
			Expect(string(near.First())).To(Equal("\n"))
		})

		It("can send more than the read limit", func() {
			done := await(time.Minute)
			Expect(client.Write(make([]byte, 10_000))).Error().NotTo(HaveOccurred())
			Eventually(done).Should(Receive(BeNil()))
			Expect(near.First()).To(HaveLen(4096))
		})

		It("causes an error if it closes its side before that", func() {
			done := await(time.Minute)
			Expect(client.Write([]byte("a li"))).Error().NotTo(HaveOccurred())
			Expect(client.CloseWrite()).To(Succeed())
			Eventually(done).Should(Receive(MatchError(io.ErrUnexpectedEOF)))
			done = await(time.Minute)
			Eventually(done).Should(Receive(MatchError(io.ErrUnexpectedEOF)), "a second wait fails immediately")
		})

		It("causes an error if it resets before that", func() {
			done := await(time.Minute)
			Expect(client.SetLinger(0)).To(Succeed())
			Expect(client.Close()).To(Succeed())
			Eventually(done).Should(Receive(MatchError(unix.ECONNRESET)))
		})

		It("causes an error at the timeout or when dials are canceled", func() {
			done := await(50 * time.Millisecond)
			Expect(client.Write([]byte("a li"))).Error().NotTo(HaveOccurred())
			Eventually(done).Should(Receive(MatchError(context.DeadlineExceeded)))
			done = await(time.Minute)
			Expect(loop.Do(loop.CancelDials)).To(Succeed())
			Eventually(done).Should(Receive(MatchError(context.Canceled)))
		})
	})

	It("can have closed its side without sending data", func() {
		Expect(client.CloseWrite()).To(Succeed())
		Expect(readAhead()).To(BeFalse())
		endpoint := join()
		Expect(io.ReadAll(endpoint)).To(BeEmpty())
	})

	It("can have been reset, and the endpoint is reset too", func() {
		Expect(client.SetLinger(0)).To(Succeed())
		Expect(client.Close()).To(Succeed())
		Expect(readAhead()).To(BeFalse())
		endpoint := join()
		_, err := io.ReadAll(endpoint)
		Expect(err).To(MatchError(unix.ECONNRESET))
		var r outcome.Result
		Eventually(results).Should(Receive(&r))
		Expect(r.Outcome).To(Equal(outcome.ClientReset))
	})

	It("and its endpoint get keepalive probes once the pair has existed for some time", func() {
		for range 2 { // the second pair begins after the loop has checked the first
			endpoint := join()
			for _, far := range []*net.TCPConn{client, endpoint} {
				Eventually(func() string { return timerOf(far.RemoteAddr(), far.LocalAddr()) }).WithTimeout(30 * time.Second).Should(Equal("02"))
			}
			near, client = accepted()
			DeferCleanup(client.Close)
		}
		Expect(near.Close()).To(Succeed())
	})
})

// timerOf returns the active timer of a TCP socket of this machine in the kernel's notation: 02 is keepalive (see
// proc_net_tcp.txt of its documentation).
func timerOf(local, remote net.Addr) string {
	table, err := os.ReadFile("/proc/self/net/tcp")
	Expect(err).NotTo(HaveOccurred())
	port := func(a net.Addr) string { return fmt.Sprintf(":%04X", a.(*net.TCPAddr).Port) }
	for line := range strings.Lines(string(table)) {
		words := strings.Fields(line) // number, local, remote, state, queues, timer:when
		if len(words) > 5 && strings.HasSuffix(words[1], port(local)) && strings.HasSuffix(words[2], port(remote)) {
			timer, _, _ := strings.Cut(words[5], ":")
			return timer
		}
	}
	return ""
}
