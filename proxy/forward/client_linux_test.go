package forward_test

import (
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/usherproxy/usher/proxy/forward"
)

var _ = Describe("A client that has no endpoint yet", func() {
	var (
		loop    *forward.Loop
		near    *forward.Client
		client  *net.TCPConn
		results chan forward.Result
	)
	BeforeEach(func() {
		loop = newLoop(4)
		near, client = accepted()
		DeferCleanup(func() { client.Close() }) // perhaps again
		results = make(chan forward.Result, 1)
	})
	join := func() *net.TCPConn {
		GinkgoHelper()
		d, endpoint := dialed(loop)
		DeferCleanup(func() { endpoint.Close() })
		on(loop, func() forward.Flow {
			return loop.Forward(near, d, &forward.Limits{}, func(r forward.Result) { results <- r })
		})
		return endpoint
	}
	readAhead := func() bool { return on(loop, func() bool { return loop.ReadAhead(near) }) }

	It("has what it sent delivered, before what it sends later", func() {
		long := strings.Repeat("0123456789", 1000) // more than is read ahead
		Expect(client.Write([]byte(long))).Error().NotTo(HaveOccurred())
		Eventually(readAhead).Should(BeTrue())
		endpoint := join()
		Expect(client.Write([]byte("later"))).Error().NotTo(HaveOccurred())
		Expect(client.CloseWrite()).To(Succeed())
		Expect(io.ReadAll(endpoint)).To(BeEquivalentTo(long + "later"))
		endpoint.Close()
		var r forward.Result
		Eventually(results).Should(Receive(&r))
		Expect(r.End).To(Equal(forward.ClientClosed))
		Expect(r.ToEndpoint).To(BeEquivalentTo(len(long) + len("later")))
	})

	It("may have sent nothing, and ended", func() {
		Expect(client.CloseWrite()).To(Succeed())
		Expect(readAhead()).To(BeFalse())
		endpoint := join()
		Expect(io.ReadAll(endpoint)).To(BeEmpty())
	})

	It("may have been reset, which the endpoint is told", func() {
		Expect(client.SetLinger(0)).To(Succeed())
		Expect(client.Close()).To(Succeed())
		Expect(readAhead()).To(BeFalse())
		endpoint := join()
		_, err := io.ReadAll(endpoint)
		Expect(err).To(MatchError(unix.ECONNRESET))
		var r forward.Result
		Eventually(results).Should(Receive(&r))
		Expect(r.End).To(Equal(forward.ClientReset))
	})

	It("and its endpoint are probed when they are silent, once the pair has lasted", func() {
		endpoint := join()
		for _, far := range []*net.TCPConn{client, endpoint} {
			Eventually(func() string { return timerOf(far.RemoteAddr(), far.LocalAddr()) }).WithTimeout(10 * time.Second).Should(Equal("02"))
		}
	})
})

// timerOf returns which timer a TCP socket of this machine has, as the kernel
// writes it: 02 is keepalive (see proc_net_tcp.txt of its documentation).
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
