package proxy_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gleak"
	"k8s.io/apimachinery/pkg/types"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/proxy"
	"github.com/usherproxy/usher/proxy/conn"
	"github.com/usherproxy/usher/proxy/forward"
	"github.com/usherproxy/usher/proxy/outcome"
	"github.com/usherproxy/usher/proxy/proxyproto"
	"github.com/usherproxy/usher/proxy/stream"
	"github.com/usherproxy/usher/proxy/trace"
	"github.com/usherproxy/usher/test/lab"
)

// reset is the error that a rejected client gets.
var reset = MatchError(syscall.ECONNRESET)

// Headers of the PROXY protocol are the same for every mover.
var _ = Describe("PROXY protocol headers", func() {
	Describe("with a direct connection", func() { headerSpecs(false) })
	Describe("with a tunneled connection", func() { headerSpecs(true) })
})

func headerSpecs(tunneled bool) {
	var (
		o       proxy.Options
		p       *proxy.Proxy
		refuse  map[netip.AddrPort]bool
		said    = netip.MustParseAddrPort("203.0.113.9:4711") // from a header
		saidVIP = netip.MustParseAddrPort("192.0.2.80:443")
		v1      = proxyproto.Header(config.ProxyV1, config.TCP, said, saidVIP)
		v2      = proxyproto.Header(config.ProxyV2, config.TCP, said, saidVIP)
	)
	BeforeEach(func() {
		goroutines := gleak.Goroutines()
		refuse = map[netip.AddrPort]bool{}
		o = defaults()
		o.SCTP = stream.SCTPOff
		o.Quarantine.First = time.Hour // longer than any spec
		if tunneled {
			o.Dial = func(ctx context.Context, to *config.Endpoint) (forward.Conn, error) {
				c, err := o.DirectDial(ctx, to)
				if err != nil {
					return nil, err
				}
				t := tunnel{TCPConn: c.(*net.TCPConn)}
				if refuse[to.Addr] {
					t.verdict = errors.New("nobody there, after all")
				}
				return t, nil
			}
		}
		DeferCleanup(func() {
			p.Stop()
			ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
			defer cancel()
			p.Drain(ctx)
			Eventually(gleak.Goroutines).ShouldNot(gleak.HaveLeaked(goroutines))
		})
	})
	// serve serves a Service with these endpoints, and returns its address.
	serve := func(change func(*config.ServicePort), endpoints ...netip.AddrPort) string {
		GinkgoHelper()
		p = proxy.New(o)
		port := config.ServicePort{
			ID: config.PortID{Namespace: "of-headers", Service: fmt.Sprint("web-", tunneled), Family: config.IPv4}, Protocol: config.TCP, Policy: config.DefaultPolicy(),
			VIPs: []config.VIP{{Kind: config.ExternalIP, Addr: netip.MustParseAddr("192.0.2.10"), Port: 80}},
		}
		for _, e := range endpoints {
			port.Endpoints = append(port.Endpoints, config.Endpoint{Addr: e, Ready: true})
		}
		port.Cluster, port.Internal, port.External = port.Endpoints, port.Endpoints, port.Endpoints
		change(&port)
		p.Apply([]config.Service{{Name: types.NamespacedName{Namespace: "of-headers", Name: "web"}, Ports: []config.ServicePort{port}}})
		return p.Status()[0].Listeners[0].String()
	}
	connect := func(at string) *net.TCPConn {
		GinkgoHelper()
		c, err := net.Dial("tcp", at)
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(func() { c.Close() })
		Expect(c.SetDeadline(time.Now().Add(20 * time.Second))).To(Succeed())
		return c.(*net.TCPConn)
	}
	// listen starts an endpoint. The channel receives the bytes of each connection once it has ended or, if atLeast
	// is not 0, has sent that many bytes.
	listen := func(atLeast int) (netip.AddrPort, chan string) {
		GinkgoHelper()
		got := make(chan string, 100)
		return lab.Backend(func(c net.Conn) {
			if atLeast > 0 {
				buf := make([]byte, atLeast)
				n, _ := io.ReadFull(c, buf)
				got <- string(buf[:n])
				fmt.Fprint(c, "hello")
				_, _ = io.Copy(io.Discard, c)
				return
			}
			all, _ := io.ReadAll(c)
			got <- string(all)
		}), got
	}
	// last returns the end of the only connection.
	last := func() *trace.Event {
		GinkgoHelper()
		var ended []trace.Event
		Eventually(func() int {
			ended = p.Trace.Ended(2, func(*trace.Event) bool { return true })
			return len(ended)
		}).WithTimeout(20 * time.Second).Should(Equal(1))
		return &ended[0]
	}

	Describe("to endpoints", func() {
		for _, version := range []config.ProxyProtocol{config.ProxyV1, config.ProxyV2} {
			asked := func(port *config.ServicePort) { port.ProxyProtocol = version }
			header := func(c net.Conn) string {
				addr := func(a net.Addr) netip.AddrPort { return a.(*net.TCPAddr).AddrPort() }
				return string(proxyproto.Header(version, config.TCP, addr(c.LocalAddr()), addr(c.RemoteAddr())))
			}

			It(fmt.Sprintf("%s: precede the client's first byte and are not counted", version), func() {
				endpoint, got := listen(0)
				c := connect(serve(asked, endpoint))
				Expect(c.Write([]byte("payload"))).Error().NotTo(HaveOccurred())
				Expect(c.CloseWrite()).To(Succeed())
				Eventually(got).WithTimeout(30 * time.Second).Should(Receive(Equal(header(c) + "payload")))
				Expect(last().End.ToEndpoint).To(BeEquivalentTo(len("payload")))
			})

			It(fmt.Sprintf("%s: are sent immediately, even if the client waits for the endpoint's data", version), func() {
				probe := proxyproto.Header(version, config.TCP, netip.MustParseAddrPort("127.0.0.1:10000"), netip.MustParseAddrPort("127.0.0.1:10000"))
				endpoint, got := listen(len(probe) - 20) // ports and addresses may be shorter
				c := connect(serve(asked, endpoint))
				Eventually(got).WithTimeout(30 * time.Second).Should(Receive(Equal(header(c)[:len(probe)-20])))
				Expect(io.ReadFull(c, make([]byte, 5))).To(Equal(5))
				c.Close()
				Expect(last().End.ToEndpoint).To(BeZero())
			})

			It(fmt.Sprintf("%s: are sent to each endpoint that is tried", version), func() {
				dead, alive := netip.AddrPort{}, netip.AddrPort{}
				var got, lost chan string
				alive, got = listen(0)
				if tunneled {
					dead, lost = listen(1)
					refuse[dead] = true
				} else {
					dead = lab.Refusing()
				}
				at := serve(asked, dead, alive)
				for range 2 { // covers both starts of the rotation
					c := connect(at)
					Expect(c.Write([]byte("payload"))).Error().NotTo(HaveOccurred())
					Expect(c.CloseWrite()).To(Succeed())
					Eventually(got).WithTimeout(30 * time.Second).Should(Receive(Equal(header(c) + "payload")))
				}
				if tunneled {
					Expect(lost).To(Receive(BeElementOf("P", "\r")), "the failed endpoint received a header too")
				}
				Expect(p.Stats().Attempts[conn.Connected]).To(BeEquivalentTo(2))
			})
		}
	})

	Describe("from load balancers", func() {
		var balancers *config.Balancers
		due := func(port *config.ServicePort) { port.VIPs[0].Balancers = balancers }
		BeforeEach(func() {
			balancers = &config.Balancers{Networks: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}}
		})

		DescribeTable("name the client, and the payload arrives complete, however it is split",
			func(header []byte, want netip.AddrPort) {
				endpoint, got := listen(0)
				at := serve(due, endpoint)
				payload := bytes.Repeat([]byte("0123456789"), 1000)
				all := append(bytes.Clone(header), payload...)
				for _, cuts := range [][]int{{}, {len(header)}, {1, 5, 12, len(header) - 1}, {len(header) + 1}} {
					c := connect(at)
					from := 0
					for _, cut := range append(cuts, len(all)) {
						Expect(c.Write(all[from:cut])).Error().NotTo(HaveOccurred())
						from = cut
					}
					Expect(c.CloseWrite()).To(Succeed())
					Eventually(got).WithTimeout(30 * time.Second).Should(Receive(Equal(string(payload))))
					c.Close()
					Eventually(p.Connections).Should(BeZero())
					ended := p.Trace.Ended(1, func(*trace.Event) bool { return true })[0]
					peer := c.LocalAddr().(*net.TCPAddr).AddrPort()
					Expect(ended.End.ToEndpoint).To(BeEquivalentTo(len(payload)))
					if want.IsValid() {
						Expect(ended.Client).To(Equal(want))
						Expect(ended.Via).To(HaveValue(Equal(peer)))
					} else {
						Expect(ended.Client).To(Equal(peer))
						Expect(ended.Via).To(BeNil())
					}
				}
			},
			Entry("version 1", v1, said),
			Entry("version 2", v2, said),
			Entry("version 2, of IPv6", proxyproto.Header(config.ProxyV2, config.TCP, netip.MustParseAddrPort("[2001:db8::9]:4711"), saidVIP), netip.MustParseAddrPort("[2001:db8::9]:4711")),
			Entry("version 2, LOCAL: a connection of the load balancer itself", []byte("\r\n\r\n\x00\r\nQUIT\n\x20\x00\x00\x00"), netip.AddrPort{}),
			Entry("version 1, UNKNOWN", []byte("PROXY UNKNOWN\r\n"), netip.AddrPort{}),
		)

		It("may be the only data, and the endpoint's data reaches the client", func() {
			c := connect(serve(due, lab.Backend(func(c net.Conn) { fmt.Fprint(c, "hello") })))
			Expect(c.Write(v2)).Error().NotTo(HaveOccurred())
			Expect(io.ReadAll(c)).To(BeEquivalentTo("hello"))
		})

		It("are replaced by usher's header, which names the same client", func() {
			endpoint, got := listen(0)
			c := connect(serve(func(port *config.ServicePort) {
				due(port)
				port.ProxyProtocol = config.ProxyV1
			}, endpoint))
			Expect(c.Write(append(bytes.Clone(v2), "payload"...))).Error().NotTo(HaveOccurred())
			Expect(c.CloseWrite()).To(Succeed())
			to := c.RemoteAddr().(*net.TCPAddr).AddrPort()
			Eventually(got).WithTimeout(30 * time.Second).Should(Receive(Equal(string(proxyproto.Header(config.ProxyV1, config.TCP, said, to)) + "payload")))
		})

		DescribeTable("that are invalid cause a reset and reach no endpoint",
			func(first string, hangUp bool, says string) {
				endpoint, got := listen(0)
				c := connect(serve(due, endpoint))
				Expect(c.Write([]byte(first))).Error().NotTo(HaveOccurred())
				if hangUp {
					Expect(c.CloseWrite()).To(Succeed())
				}
				Expect(c.Read(make([]byte, 1))).Error().To(reset)
				e := last()
				Expect(e.End.Outcome).To(Equal(outcome.ProxyHeaderInvalid))
				Expect(e.Err).To(ContainSubstring(says))
				Expect(e.Record.Tries()).To(BeZero())
				Expect(got).NotTo(Receive())
			},
			Entry("missing", "GET / HTTP/1.1\r\n\r\n", false, "missing PROXY"),
			Entry("truncated", string(v2[:20]), true, "truncated"),
			Entry("empty", "", true, "missing PROXY"),
			Entry("too long", "\r\n\r\n\x00\r\nQUIT\n\x21\x11\xff\xff", false, "too long"),
			Entry("with an invalid address", "PROXY TCP4 a b c d\r\n", false, "invalid PROXY protocol header: proxyproto: invalid address"),
		)

		It("that arrive too slowly cause a reset", func() {
			lab.Long()
			endpoint, got := listen(0)
			c := connect(serve(due, endpoint))
			began := time.Now()
			for i := range v2 {
				if _, err := c.Write(v2[i : i+1]); err != nil {
					break
				}
				Expect(c.SetReadDeadline(time.Now().Add(time.Second))).To(Succeed())
				if _, err := c.Read(make([]byte, 1)); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
					Expect(err).To(reset)
					break
				}
			}
			Expect(time.Since(began)).To(BeNumerically("<", 15*time.Second))
			Expect(last().Err).To(Equal("no PROXY protocol header received within 5s"))
			Expect(got).NotTo(Receive())
		})

		It("that are missing do not prolong draining", func() {
			endpoint, _ := listen(0)
			c := connect(serve(due, endpoint))
			Eventually(p.Connections).Should(BeEquivalentTo(1))
			p.Stop()
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
			defer cancel()
			Expect(p.Drain(ctx)).To(Equal(1))
			Expect(c.Read(make([]byte, 1))).Error().To(reset)
			Expect(last().End.Outcome).To(Equal(outcome.Drained))
		})

		It("are not parsed in the data of other clients", func() {
			endpoint, got := listen(0)
			balancers.Networks = []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}
			c := connect(serve(due, endpoint))
			Expect(c.Write(v1)).Error().NotTo(HaveOccurred())
			Expect(c.CloseWrite()).To(Succeed())
			Eventually(got).WithTimeout(30 * time.Second).Should(Receive(Equal(string(v1))))
			e := last()
			Expect(e.Client).To(Equal(c.LocalAddr().(*net.TCPAddr).AddrPort()))
		})

		It("determine the client for admission, affinity and the limit per client", func() {
			o.MaxConnections, o.MaxConnectionsPerPort = 16, 16
			o.LoadBalancers = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
			balancers.Clients = []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")}
			one, two := lab.Backend(func(c net.Conn) { fmt.Fprint(c, "1"); _, _ = io.Copy(io.Discard, c) }), lab.Backend(func(c net.Conn) { fmt.Fprint(c, "2"); _, _ = io.Copy(io.Discard, c) })
			at := serve(func(port *config.ServicePort) {
				due(port)
				port.AffinityTimeout = time.Hour
			}, one, two)
			asks := func(client string) (string, error) {
				c := connect(at)
				answer := make([]byte, 1)
				_, err := c.Write(proxyproto.Header(config.ProxyV2, config.TCP, netip.MustParseAddrPort(client+":99"), saidVIP))
				if err == nil { // a received reset is reported once
					_, err = io.ReadFull(c, answer)
				}
				return string(answer), err
			}
			for i := range 8 { // more than one client's share; rejected connections count for no client
				_, err := asks(fmt.Sprint("198.51.100.", i))
				Expect(err).To(reset)
			}
			Eventually(func() int64 { return p.Stats().Ends[outcome.SourceDenied] }).Should(BeEquivalentTo(8))
			had := map[string]string{}
			for i := range 14 {
				client := fmt.Sprint("203.0.113.", i%7)
				answer, err := asks(client)
				Expect(err).NotTo(HaveOccurred())
				if i < 7 {
					had[client] = answer
				}
				Expect(answer).To(Equal(had[client]), "affinity of %s", client)
			}
			Expect(had).To(And(ContainElement("1"), ContainElement("2")))
			for range 2 { // little capacity is left; only the balancer uses much of it
				_, err := asks("203.0.113.6")
				Expect(err).NotTo(HaveOccurred())
			}
			Expect(p.Connections()).To(BeEquivalentTo(16))
		})

		It("count toward the load balancer's limit if only the Service configures it", func() {
			o.MaxConnections, o.MaxConnectionsPerPort = 16, 16
			balancers.Networks = []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}
			endpoint := lab.Backend(func(c net.Conn) { fmt.Fprint(c, "1"); _, _ = io.Copy(io.Discard, c) })
			at := serve(due, endpoint)
			served := func(from string, first []byte) error {
				d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
				c, err := d.Dial("tcp", at)
				if err != nil {
					return err // it was reset before connect(2) returned
				}
				DeferCleanup(func() { c.Close() })
				Expect(c.SetDeadline(time.Now().Add(20 * time.Second))).To(Succeed())
				if _, err = c.Write(first); err == nil { // a received reset is reported once
					_, err = io.ReadFull(c, make([]byte, 1))
				}
				return err
			}
			named := func(client string) []byte {
				return proxyproto.Header(config.ProxyV2, config.TCP, netip.MustParseAddrPort(client+":99"), saidVIP)
			}
			const victim = "127.0.0.2"
			for i := range 14 { // half of them on behalf of the victim
				Expect(served("127.0.0.1", named([]string{victim, fmt.Sprint("203.0.113.", i)}[i%2]))).To(Succeed())
			}
			Expect(served("127.0.0.1", named("203.0.113.99"))).To(reset, "the load balancer has reached its limit, regardless of the header")
			Expect(served(victim, []byte("payload"))).To(Succeed(), "the victim has no connection yet")
		})

		It("that are corrupt reach no endpoint, and usher serves later clients", func() {
			n := 2000
			if lab.Asked() {
				n = 20_000
			}
			endpoint, got := listen(0)
			at := serve(due, endpoint)
			var clients sync.WaitGroup
			jobs := make(chan uint64)
			for range 16 {
				clients.Go(func() {
					defer GinkgoRecover()
					for seed := range jobs {
						first := lab.SpoiledHeader(rand.New(rand.NewPCG(seed, 100)))
						c, err := net.Dial("tcp", at)
						Expect(err).NotTo(HaveOccurred())
						_, _ = c.Write(first) // the connection may have been reset already
						_ = c.(*net.TCPConn).CloseWrite()
						Expect(c.SetReadDeadline(time.Now().Add(30 * time.Second))).To(Succeed())
						_, err = c.Read(make([]byte, 1))
						Expect(err).To(HaveOccurred())
						Expect(err.(net.Error).Timeout()).To(BeFalse(), "%q", first)
						c.Close()
					}
				})
			}
			for seed := range uint64(n) {
				jobs <- seed
			}
			close(jobs)
			clients.Wait()
			Eventually(p.Connections).WithTimeout(20 * time.Second).Should(BeZero())
			Expect(p.Stats().Ends).To(Equal(map[outcome.Outcome]int64{outcome.ProxyHeaderInvalid: int64(n)}))
			Expect(got).To(BeEmpty())
			c := connect(at)
			Expect(c.Write(v2)).Error().NotTo(HaveOccurred())
			Expect(c.CloseWrite()).To(Succeed())
			Eventually(got).WithTimeout(30 * time.Second).Should(Receive(BeEmpty()))
		})
	})
}
