package proxy_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/proxy"
	"github.com/usherproxy/usher/proxy/balance"
	"github.com/usherproxy/usher/proxy/outcome"
	"github.com/usherproxy/usher/proxy/trace"
	"github.com/usherproxy/usher/test/lab"
)

var _ = Describe("queued clients of a Proxy", func() {
	for _, portable := range []bool{false, true} {
		Context(map[bool]string{false: "with event loops", true: "with goroutines"}[portable], func() { inLine(portable) })
	}
})

// inLine holds the specs of queued clients. They are served by goroutines if portable is true, else by event loops.
func inLine(portable bool) {
	const soon = time.Minute // also on an emulated CPU
	var p *proxy.Proxy
	var port config.ServicePort
	var to string
	apply := func(endpoints ...netip.AddrPort) {
		port.Endpoints = nil
		for _, e := range endpoints {
			port.Endpoints = append(port.Endpoints, config.Endpoint{Addr: e, Ready: true})
		}
		slices.SortFunc(port.Endpoints, func(a, b config.Endpoint) int { return a.Addr.Compare(b.Addr) })
		port.Cluster, port.Internal, port.External = port.Endpoints, port.Endpoints, port.Endpoints
		p.Apply([]config.Service{{Name: types.NamespacedName{Namespace: "in-line", Name: "web"}, Ports: []config.ServicePort{port}}})
	}
	// serve serves endpoints with a limit of one connection each.
	serve := func(endpoints ...netip.AddrPort) {
		GinkgoHelper()
		o := defaults()
		if portable {
			o.Dial = o.DirectDial
		}
		p = proxy.New(o)
		DeferCleanup(func() { stop(p) })
		port = config.ServicePort{
			ID: config.PortID{Namespace: "in-line", Service: "web", Family: config.IPv4}, Protocol: config.TCP, Policy: config.Policy{EndpointLimit: 1, QueueTimeout: 30 * time.Second},
			VIPs: []config.VIP{{Kind: config.ClusterIP, Addr: netip.MustParseAddr("10.96.0.10"), Port: 80}},
		}
		apply(endpoints...)
		to = p.Status()[0].Listeners[0].String()
	}
	// echo starts an endpoint that sends its name and then echoes.
	echo := func(name string) netip.AddrPort {
		return lab.Backend(func(c net.Conn) {
			fmt.Fprintln(c, name)
			_, _ = io.Copy(c, c)
		})
	}
	connect := func() net.Conn {
		GinkgoHelper()
		c, err := net.Dial("tcp", to)
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(func() { c.Close() })
		return c
	}
	inLine := func() int { return p.Status()[0].Cluster.Queued() }
	// comes connects, and returns when n clients are queued.
	comes := func(n int) net.Conn {
		GinkgoHelper()
		c := connect()
		Eventually(inLine).WithTimeout(soon).Should(Equal(n))
		return c
	}
	greeted := func(c net.Conn) string {
		GinkgoHelper()
		Expect(c.SetReadDeadline(time.Now().Add(soon))).To(Succeed())
		line, err := bufio.NewReader(c).ReadString('\n')
		Expect(err).NotTo(HaveOccurred())
		return line
	}
	reset := func(c net.Conn) {
		GinkgoHelper()
		Expect(c.SetReadDeadline(time.Now().Add(soon))).To(Succeed())
		_, err := c.Read(make([]byte, 1))
		Expect(errors.Is(err, syscall.ECONNRESET)).To(BeTrue(), "%v", err)
	}
	ends := func(end outcome.Outcome) func() int64 { return func() int64 { return p.Stats().Ends[end] } }

	It("are served in order of arrival, and their early data is delivered", func() {
		serve(echo("a"))
		has := connect()
		Expect(greeted(has)).To(Equal("a\n"))
		var line []net.Conn
		for n := 1; n <= 3; n++ {
			c := comes(n)
			fmt.Fprintf(c, "I am %d\n", n)
			line = append(line, c)
		}
		for n, c := range line {
			has.Close()
			Expect(greeted(c)).To(HavePrefix("a\n"))
			Eventually(inLine).WithTimeout(soon).Should(Equal(2 - n))
			has = c
		}
		Expect(p.Stats().Choices).To(HaveKeyWithValue(balance.FirstInQueue, BeEquivalentTo(3)))
	})

	It("are reset with a reason at the queue timeout", func() {
		serve(echo("a"))
		port.QueueTimeout = time.Second
		apply(port.Endpoints[0].Addr)
		Expect(greeted(connect())).To(Equal("a\n"))
		began := time.Now()
		c := comes(1)
		reset(c)
		Expect(time.Since(began)).To(BeNumerically(">=", time.Second))
		Eventually(ends(outcome.QueueTimeout)).Should(BeEquivalentTo(1))
		Expect(inLine()).To(BeZero())
		late := p.Trace.Ended(1, func(e *trace.Event) bool { return e.End.Outcome == outcome.QueueTimeout })
		Expect(late).To(HaveLen(1))
		Expect(late[0].End.Queued).To(BeNumerically(">=", time.Second))
	})

	It("leave the queue when they close, unless they have sent a possible request", func() {
		serve(echo("a"))
		has := connect()
		Expect(greeted(has)).To(Equal("a\n"))
		gone := comes(1)
		asks := comes(2)
		waits := comes(3)
		fmt.Fprint(asks, "request")
		Expect(asks.(*net.TCPConn).CloseWrite()).To(Succeed())
		gone.Close()
		Eventually(inLine).WithTimeout(soon).Should(Equal(2))
		Eventually(ends(outcome.ClientReset)).WithTimeout(soon).Should(BeEquivalentTo(1))
		broken := comes(3)
		fmt.Fprint(broken, "request")
		Expect(broken.(*net.TCPConn).SetLinger(0)).To(Succeed())
		broken.Close()
		Eventually(inLine).WithTimeout(soon).Should(Equal(2))

		has.Close()
		Expect(asks.SetReadDeadline(time.Now().Add(soon))).To(Succeed())
		Expect(io.ReadAll(asks)).To(BeEquivalentTo("a\nrequest"))
		Expect(greeted(waits)).To(Equal("a\n"))
	})

	It("are served when an endpoint is added or the limit is raised or removed", func() {
		a, b := echo("a"), echo("b")
		serve(a)
		Expect(greeted(connect())).To(Equal("a\n"))
		first, second := comes(1), comes(2)
		apply(a, b)
		Expect(greeted(first)).To(Equal("b\n"))
		port.EndpointLimit = 2
		apply(a, b)
		Expect(greeted(second)).NotTo(BeEmpty())
		connect()
		third := comes(1)
		port.EndpointLimit = 0
		apply(a, b)
		Expect(greeted(third)).NotTo(BeEmpty())
	})

	It("are reset when the endpoints are removed or usher stops", func() {
		a := echo("a")
		serve(a)
		first := connect()
		Expect(greeted(first)).To(Equal("a\n"))
		c := comes(1)
		apply()
		reset(c)
		Eventually(ends(outcome.NoEndpoint)).WithTimeout(soon).Should(BeEquivalentTo(1))

		apply(a)
		to = p.Status()[0].Listeners[0].String()
		first.Close() // the connection counts until then, as the endpoint is the same
		Expect(greeted(connect())).To(Equal("a\n"))
		c = comes(1)
		stop(p)
		reset(c)
		Expect(ends(outcome.Drained)()).To(BeNumerically(">=", 1))
	})
}
