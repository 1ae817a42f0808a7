package proxy_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gleak"
	"k8s.io/apimachinery/pkg/types"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/proxy"
	"github.com/usherproxy/usher/proxy/forward"
	"github.com/usherproxy/usher/proxy/trace"
	"github.com/usherproxy/usher/test/lab"
)

// tunnel is a connection that reaches an endpoint through a proxy. It is open at once, and Confirm reports whether
// the endpoint was reached.
type tunnel struct {
	*net.TCPConn
	verdict error
}

func (t tunnel) Confirm() error {
	if t.verdict != nil {
		// The client's bytes are in transit already: the next endpoint must get them too.
		_, _ = t.Read(make([]byte, 1))
	}
	return t.verdict
}

// stalled is a tunnel that accepts no byte.
type stalled struct {
	tunnel
	writing, closed chan struct{}
	once            *sync.Once
}

func (s stalled) Write([]byte) (int, error) {
	select {
	case s.writing <- struct{}{}:
	default: // after another attempt
	}
	<-s.closed
	return 0, net.ErrClosed
}

func (s stalled) Close() error {
	s.once.Do(func() { close(s.closed) })
	return s.tunnel.Close()
}

var _ = Describe("a Proxy with a custom Dial", func() {
	var (
		stall   chan struct{} // if not nil, endpoints are stalled; has a value once usher writes
		p       *proxy.Proxy
		events  *trace.Reader
		refuse  map[netip.AddrPort]bool
		refusal = errors.New("nobody there, after all")
	)
	// echo returns the received bytes after the client has sent FIN.
	echo := func(c net.Conn) {
		all, _ := io.ReadAll(c)
		_, _ = c.Write(all)
	}
	// swallow reports on a channel that it has received bytes.
	swallow := func(c net.Conn) {
		_, _ = c.Read(make([]byte, 1))
		_, _ = c.Write([]byte("!"))
		_, _ = io.Copy(io.Discard, c)
	}
	serve := func(protocol config.Protocol, endpoints ...netip.AddrPort) string {
		GinkgoHelper()
		port := config.ServicePort{
			ID: config.PortID{Namespace: "default", Service: "web", Family: config.IPv4}, Protocol: protocol, Policy: config.DefaultPolicy(),
			VIPs: []config.VIP{{Kind: config.ClusterIP, Addr: netip.MustParseAddr("10.96.0.10"), Port: 80}},
		}
		for _, e := range endpoints {
			port.Endpoints = append(port.Endpoints, config.Endpoint{Addr: e, Ready: true, Pod: "default/" + e.String()})
		}
		port.Cluster, port.Internal, port.External = port.Endpoints, port.Endpoints, port.Endpoints
		p.Apply([]config.Service{{Name: types.NamespacedName{Namespace: "default", Name: "web"}, Ports: []config.ServicePort{port}}})
		if status := p.Status()[0]; status.Problem == nil {
			return status.Listeners[0].String()
		}
		return ""
	}
	connect := func(at string) *net.TCPConn {
		GinkgoHelper()
		c, err := net.Dial("tcp", at)
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(func() { c.Close() })
		Expect(c.SetDeadline(time.Now().Add(30 * time.Second))).To(Succeed())
		return c.(*net.TCPConn)
	}

	BeforeEach(func() {
		goroutines := gleak.Goroutines()
		refuse, stall = map[netip.AddrPort]bool{}, nil
		o := defaults()
		events = o.Trace.Reader(true)
		o.Schedule = []time.Duration{20 * time.Second} // a busy machine may take longer than the default
		o.Quarantine.First = time.Hour                 // longer than any spec
		o.TCPOnly = errors.New("a tunnel carries TCP only")
		o.Dial = func(ctx context.Context, to *config.Endpoint) (forward.Conn, error) {
			c, err := o.DirectDial(ctx, to)
			if err != nil {
				return nil, err
			}
			t := tunnel{TCPConn: c.(*net.TCPConn)}
			if stall != nil {
				return stalled{t, stall, make(chan struct{}), new(sync.Once)}, nil
			}
			if refuse[to.Addr] {
				t.verdict = refusal
			}
			return t, nil
		}
		p = proxy.New(o)
		DeferCleanup(func() {
			p.Stop()
			ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
			defer cancel()
			p.Drain(ctx)
			Eventually(gleak.Goroutines).ShouldNot(gleak.HaveLeaked(goroutines))
		})
	})
	// tracedEvents returns the events of the connections so far, after the last connection has ended.
	tracedEvents := func() (list []trace.Event) {
		GinkgoHelper()
		Eventually(p.Connections).Should(BeZero())
		buf := make([]trace.Event, 100)
		n, _, err := events.Next(context.Background(), buf)
		Expect(err).NotTo(HaveOccurred())
		for _, e := range buf[:n] {
			if e.Kind == trace.Attempt || e.Kind == trace.Closed {
				list = append(list, e)
			}
		}
		return list
	}

	It("stops although an endpoint that is not confirmed accepts no byte", func() {
		stall = make(chan struct{}, 1)
		c := connect(serve(config.TCP, lab.Backend(swallow)))
		_, err := c.Write([]byte("question"))
		Expect(err).NotTo(HaveOccurred())
		Eventually(stall).Should(Receive())
		stopped := make(chan struct{})
		go func() {
			defer close(stopped)
			p.Stop()
			ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
			defer cancel()
			p.Drain(ctx)
		}()
		Eventually(stopped).WithTimeout(30 * time.Second).Should(BeClosed())
	})

	DescribeTable("sends early data of a client to the endpoint that is confirmed",
		func(question string) {
			dead, alive := lab.Backend(swallow), lab.Backend(echo)
			refuse[dead] = true
			at := serve(config.TCP, dead, alive)
			var clients sync.WaitGroup
			for range 2 { // covers both starts of the rotation
				c := connect(at)
				clients.Go(func() {
					defer GinkgoRecover()
					go func() {
						_, _ = io.Copy(c, strings.NewReader(question))
						_ = c.CloseWrite()
					}()
					answer, err := io.ReadAll(c)
					Expect(err).NotTo(HaveOccurred())
					Expect(string(answer)).To(Equal(question))
				})
			}
			clients.Wait()
			var attempts, failed int
			for _, e := range tracedEvents() {
				switch {
				case e.Kind == trace.Closed:
					Expect(e.End.ToEndpoint).To(BeEquivalentTo(len(question)), "%s", e)
					Expect(e.End.ToClient).To(BeEquivalentTo(len(question)), "%s", e)
				case e.Err != "":
					Expect(e.Err).To(Equal(refusal.Error()))
					failed++
				default:
					attempts++
				}
			}
			Expect(attempts).To(Equal(2))
			Expect(failed).To(Equal(1), "the endpoint is in quarantine after that")
		},
		Entry("few bytes", "GET /"),
		Entry("more than the buffer holds", strings.Repeat("0123456789abcdef", 20_000)),
	)

	It("does not serve other protocols, and reports the reason", func() {
		Expect(serve(config.UDP, netip.MustParseAddrPort("10.0.0.1:53"))).To(BeEmpty())
		problem := p.Status()[0].Problem
		Expect(problem.Reason).To(Equal(proxy.ReasonProtocol))
		Expect(problem.Err).To(MatchError("only TCP is supported: a tunnel carries TCP only"))
	})
})
