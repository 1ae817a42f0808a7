package proxy_test

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/proxy"
	"github.com/usherproxy/usher/proxy/outcome"
	"github.com/usherproxy/usher/test/lab"
)

var _ = Describe("a client of a Proxy", func() {
	const soon = 10 * time.Second
	for _, portable := range []bool{false, true} {
		Context(map[bool]string{false: "with event loops", true: "with goroutines"}[portable], func() {
			var p *proxy.Proxy
			var to string
			port := config.ServicePort{
				ID: config.PortID{Namespace: "resets", Service: "web", Family: config.IPv4}, Protocol: config.TCP, Policy: config.DefaultPolicy(),
				VIPs: []config.VIP{{Kind: config.ClusterIP, Addr: netip.MustParseAddr("10.96.0.10"), Port: 80}},
			}
			apply := func(endpoint netip.AddrPort) {
				port.Endpoints = []config.Endpoint{{Addr: endpoint, Ready: true}}
				port.Cluster, port.Internal, port.External = port.Endpoints, port.Endpoints, port.Endpoints
				p.Apply([]config.Service{{Name: types.NamespacedName{Namespace: "resets", Name: "web"}, Ports: []config.ServicePort{port}}})
			}
			// serve serves one endpoint with an attempt timeout of at least an hour.
			serve := func(endpoint netip.AddrPort) {
				GinkgoHelper()
				o := defaults()
				o.Schedule = []time.Duration{time.Hour, time.Hour}
				if portable {
					o.Dial = o.DirectDial
				}
				p = proxy.New(o)
				DeferCleanup(func() { stop(p) })
				apply(endpoint)
				to = p.Status()[0].Listeners[0].String()
			}
			// comes connects, sends 100 bytes, and returns when usher has accepted the client.
			comes := func() *net.TCPConn {
				GinkgoHelper()
				c, err := net.Dial("tcp", to)
				Expect(err).NotTo(HaveOccurred())
				DeferCleanup(func() { c.Close() })
				_, err = c.Write(make([]byte, 100))
				Expect(err).NotTo(HaveOccurred())
				Eventually(func() int64 { return p.Stats().Open }).WithTimeout(soon).Should(BeEquivalentTo(1))
				return c.(*net.TCPConn)
			}
			resets := func(c *net.TCPConn) {
				GinkgoHelper()
				Expect(c.SetLinger(0)).To(Succeed())
				c.Close()
				Eventually(func() int64 { return p.Stats().Ends[outcome.ClientReset] }).WithTimeout(soon).Should(BeEquivalentTo(1))
				// The counter of ends changes first, the number of open connections a moment later.
				Eventually(func() int64 { return p.Stats().Open }).WithTimeout(soon).Should(BeZero())
				Eventually(func() int64 { return p.Stats().Established }).WithTimeout(soon).Should(BeZero())
			}

			It("ends the attempt that is under way when it resets", func() {
				serve(lab.Silent())
				resets(comes())
				Expect(p.Stats().All.Attempts).To(BeNumerically("<=", 1))
			})

			It("ends the search when it resets while usher waits to retry", func() {
				serve(lab.Refusing())
				c := comes()
				Eventually(func() int64 { return p.Stats().All.Attempts }).WithTimeout(soon).Should(BeEquivalentTo(1))
				resets(c)
				Expect(p.Stats().All.Attempts).To(BeEquivalentTo(1))
			})

			It("gets no-response, not a failure, when the endpoint closes first but answers others", func() {
				serve(lab.Backend(func(c net.Conn) {
					if request := make([]byte, 100); readFull(c, request) && request[0] > 0 {
						fmt.Fprint(c, "answer")
					}
				}))
				ask := func(request ...byte) string {
					GinkgoHelper()
					c, err := net.Dial("tcp", to)
					Expect(err).NotTo(HaveOccurred())
					defer c.Close()
					Expect(c.Write(append(request, make([]byte, 99)...))).To(Equal(100))
					Expect(c.SetReadDeadline(time.Now().Add(soon))).To(Succeed())
					answer, err := io.ReadAll(c)
					Expect(err).NotTo(HaveOccurred())
					return string(answer)
				}
				ends := func(o outcome.Outcome) func() int64 { return func() int64 { return p.Stats().Ends[o] } }
				Expect(ask(0)).To(BeEmpty())
				Eventually(ends(outcome.EndpointClosed)).WithTimeout(soon).Should(BeEquivalentTo(1), "no client has received an answer yet")
				Expect(ask(1)).To(Equal("answer"))
				Expect(ask(0)).To(BeEmpty())
				Eventually(ends(outcome.NoResponse)).WithTimeout(soon).Should(BeEquivalentTo(1))
				Expect(p.Stats().All.Failed).To(BeZero())
				endpoint := p.Status()[0].Endpoints[0]
				ever, lately := endpoint.NoResponse(time.Now())
				Expect([]int64{ever, lately}).To(Equal([]int64{1, 1}))
				Expect(endpoint.Failed.Load()).To(BeZero())
			})

			It("gets no-response when it resets and the endpoint hangs, but not after uploads", func() {
				serve(lab.Backend(func(c net.Conn) { _, _ = io.Copy(io.Discard, c) }))
				for range 3 {
					c := comes()
					c.Close()
					Eventually(func() int64 { return p.Stats().Open }).WithTimeout(soon).Should(BeZero())
				}
				Expect(p.Stats().Ends).To(Equal(map[outcome.Outcome]int64{outcome.ClientClosed: 3}))
				c := comes()
				Eventually(func() int64 { return p.Stats().Established }).WithTimeout(soon).Should(BeEquivalentTo(4))
				Expect(c.SetLinger(0)).To(Succeed())
				c.Close()
				Eventually(func() int64 { return p.Stats().Ends[outcome.NoResponse] }).WithTimeout(soon).Should(BeEquivalentTo(1))
				Expect(p.Stats().All.Failed).To(BeZero())
			})

			It("gets its answer if it has closed only its own side", func() {
				serve(lab.Refusing())
				c := comes()
				Expect(c.CloseWrite()).To(Succeed())
				Eventually(func() int64 { return p.Stats().All.Attempts }).WithTimeout(soon).Should(BeEquivalentTo(1))
				apply(lab.Backend(func(c net.Conn) {
					n, _ := io.Copy(io.Discard, c)
					fmt.Fprint(c, n)
				}))
				Expect(c.SetReadDeadline(time.Now().Add(soon))).To(Succeed())
				Expect(io.ReadAll(c)).To(BeEquivalentTo("100"))
			})
		})
	}
})

func readFull(c net.Conn, b []byte) bool {
	_, err := io.ReadFull(c, b)
	return err == nil
}
