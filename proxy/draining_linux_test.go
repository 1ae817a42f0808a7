package proxy_test

import (
	"context"
	"io"
	"net"
	"net/netip"
	"syscall"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/proxy"
	"github.com/usherproxy/usher/proxy/forward"
	"github.com/usherproxy/usher/proxy/outcome"
	"github.com/usherproxy/usher/test/lab"
)

var _ = Describe("a Proxy whose endpoints leave", func() {
	for name, portable := range map[string]bool{"with event loops": false, "with goroutines": true} {
		Context(name, func() { specifyLeaving(portable) })
	}
})

func specifyLeaving(portable bool) {
	var (
		p       *proxy.Proxy
		port    config.ServicePort
		echo    config.Endpoint
		another config.Endpoint
	)
	apply := func(endpoints ...config.Endpoint) {
		port.Endpoints, port.Cluster = endpoints, nil
		for _, e := range endpoints {
			if e.Ready {
				port.Cluster = append(port.Cluster, e)
			}
		}
		port.Internal, port.External = port.Cluster, port.Cluster
		p.Apply([]config.Service{{Name: types.NamespacedName{Namespace: "leaving", Name: "web"}, Ports: []config.ServicePort{port}}})
	}
	BeforeEach(func() {
		o := defaults()
		o.FirstTurn = func() uint32 { return 0 }
		if portable {
			o.Dial = func(ctx context.Context, to *config.Endpoint) (forward.Conn, error) { return o.DirectDial(ctx, to) }
		}
		p = proxy.New(o)
		DeferCleanup(func() { stop(p) })
		backend := func() config.Endpoint {
			return config.Endpoint{Addr: lab.Backend(func(c net.Conn) { _, _ = io.Copy(c, c) }), Ready: true, Serving: true}
		}
		echo, another = backend(), backend()
		port = config.ServicePort{
			ID: config.PortID{Namespace: "leaving", Service: "web", Family: config.IPv4}, Protocol: config.TCP, Policy: config.DefaultPolicy(),
			VIPs: []config.VIP{{Kind: config.ClusterIP, Addr: netip.MustParseAddr("10.96.0.10"), Port: 80}},
		}
		apply(echo)
	})
	// ask sends a byte and waits for the echo.
	ask := func(c net.Conn) error {
		if _, err := c.Write([]byte("x")); err != nil {
			return err
		}
		_, err := io.ReadFull(c, make([]byte, 1))
		return err
	}
	connect := func() net.Conn {
		GinkgoHelper()
		c, err := net.Dial("tcp", p.Status()[0].Listeners[0].String())
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(func() { c.Close() })
		Expect(c.SetDeadline(time.Now().Add(20 * time.Second))).To(Succeed())
		Expect(ask(c)).To(Succeed())
		return c
	}
	ends := func() map[outcome.Outcome]int64 { return p.Stats().Ends }
	drained := map[outcome.Outcome]int64{outcome.EndpointDrained: 1}

	It("resets an idle connection to a removed endpoint after the drain timeout, not before", func() {
		c := connect()
		port.DrainTimeout = time.Second
		began := time.Now()
		apply(another)
		Expect(c.Read(make([]byte, 1))).Error().To(MatchError(syscall.ECONNRESET))
		Expect(time.Since(began)).To(BeNumerically(">=", time.Second))
		Eventually(ends).Should(Equal(drained))
	})

	It("resets a busy connection to a removed endpoint after the drain timeout", func() {
		c := connect()
		port.DrainTimeout = 500 * time.Millisecond
		apply(another)
		for began := time.Now(); ; time.Sleep(time.Millisecond) {
			if ask(c) != nil {
				break
			}
			Expect(time.Since(began)).To(BeNumerically("<", 10*time.Second))
		}
		Eventually(ends).Should(Equal(drained))
	})

	It("ends connections to a terminating endpoint, and no others", func() {
		apply(echo, another)
		first, second := connect(), connect()
		port.DrainTimeout = 100 * time.Millisecond
		leaving := echo
		leaving.Ready, leaving.Terminating = false, true
		apply(leaving, another)
		Eventually(ends).WithTimeout(30 * time.Second).Should(Equal(drained))
		alive := 0
		for _, c := range []net.Conn{first, second} {
			if ask(c) == nil {
				alive++
			}
		}
		Expect(alive).To(Equal(1))
	})

	It("measures the drain timeout from the removal, even if it is set later", func() {
		c := connect()
		apply(another)
		left := time.Now()
		time.Sleep(300 * time.Millisecond) // longer than the new drain timeout
		port.DrainTimeout = 200 * time.Millisecond
		apply(another)
		Expect(c.Read(make([]byte, 1))).Error().To(MatchError(syscall.ECONNRESET))
		Expect(time.Since(left)).To(BeNumerically(">=", 300*time.Millisecond))
		Eventually(ends).Should(Equal(drained))
	})

	It("keeps connections to an endpoint that returns in time, until it leaves again", func() {
		c := connect()
		port.DrainTimeout = 3 * time.Second // longer than a busy machine takes between two calls
		apply(another)
		apply(echo, another)
		Consistently(func() error { return ask(c) }).WithTimeout(4500 * time.Millisecond).Should(Succeed())
		apply(another)
		Expect(c.Read(make([]byte, 1))).Error().To(MatchError(syscall.ECONNRESET))
	})

	It("keeps connections if the drain timeout is disabled", func() {
		c := connect()
		port.DrainTimeout = 3 * time.Second // as above
		apply(another)
		port.DrainTimeout = 0
		apply(another)
		Consistently(func() error { return ask(c) }).WithTimeout(4500 * time.Millisecond).Should(Succeed())
	})

	It("ends connections of a removed Service", func() {
		c := connect()
		port.DrainTimeout = 100 * time.Millisecond
		apply(echo)
		p.Apply([]config.Service{{Name: types.NamespacedName{Namespace: "leaving", Name: "web"}}})
		Expect(c.Read(make([]byte, 1))).Error().To(MatchError(syscall.ECONNRESET))
		Eventually(ends).Should(Equal(drained))
	})
}
