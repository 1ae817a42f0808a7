package proxy_test

import (
	"context"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gleak"
	"k8s.io/apimachinery/pkg/types"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/portal/kernel"
	"github.com/usherproxy/usher/proxy"
	"github.com/usherproxy/usher/proxy/conn"
	"github.com/usherproxy/usher/proxy/forward"
	"github.com/usherproxy/usher/proxy/outcome"
	"github.com/usherproxy/usher/proxy/trace"
	"github.com/usherproxy/usher/test/lab"
)

// isSynSent reports whether a process is connecting to an IPv4 address of this machine.
func isSynSent(to netip.AddrPort) bool {
	text, err := os.ReadFile("/proc/self/net/tcp")
	Expect(err).NotTo(HaveOccurred())
	const synSent = "02" // TCP_SYN_SENT in the kernel's include/net/tcp_states.h
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line) // proc(5): sl, local_address, rem_address, st
		if at, err := kernel.ParseProcNet(fields[2]); err == nil && at == to && fields[3] == synSent {
			return true
		}
	}
	return false
}

// nobody returns an address that refuses connections.
func nobody() netip.AddrPort {
	GinkgoHelper()
	l, err := net.Listen("tcp", "127.117.0.3:0") // no other process uses this address
	Expect(err).NotTo(HaveOccurred())
	defer l.Close()
	return l.Addr().(*net.TCPAddr).AddrPort()
}

var _ = Describe("draining a Proxy", func() {
	var dialing chan struct{}
	BeforeEach(func() { dialing = make(chan struct{}, 10) })
	untilCanceled := func(ctx context.Context, _ *config.Endpoint) (forward.Conn, error) {
		dialing <- struct{}{}
		<-ctx.Done()
		return nil, ctx.Err()
	}
	isDialing := func(netip.AddrPort) bool { return len(dialing) > 0 }
	refuse := func(context.Context, *config.Endpoint) (forward.Conn, error) { return nil, syscall.ECONNREFUSED }

	DescribeTable("immediately resets a client that has no endpoint yet",
		func(endpoint func() netip.AddrPort, dial func(context.Context, *config.Endpoint) (forward.Conn, error), underWay func(netip.AddrPort) bool, last string) {
			goroutines := gleak.Goroutines()
			o := defaults()
			o.Schedule, o.Quarantine.First = []time.Duration{time.Hour}, 0
			o.Dial = dial
			p := proxy.New(o)
			to := endpoint()
			port := config.ServicePort{
				ID: config.PortID{Namespace: "default", Service: "web", Family: config.IPv4}, Protocol: config.TCP, Policy: config.DefaultPolicy(),
				VIPs:      []config.VIP{{Kind: config.ClusterIP, Addr: netip.MustParseAddr("10.96.0.10"), Port: 80}},
				Endpoints: []config.Endpoint{{Addr: to, Ready: true}},
			}
			port.Cluster, port.Internal, port.External = port.Endpoints, port.Endpoints, port.Endpoints
			p.Apply([]config.Service{{Name: types.NamespacedName{Namespace: "default", Name: "web"}, Ports: []config.ServicePort{port}}})
			client, err := net.Dial("tcp", p.Status()[0].Listeners[0].String())
			Expect(err).NotTo(HaveOccurred())
			defer client.Close()
			Eventually(p.Connections).Should(BeEquivalentTo(1))
			isUnderWay := func() bool { return p.Stats().Attempts[conn.Refused] == 1 }
			if underWay != nil {
				isUnderWay = func() bool { return underWay(to) }
			}
			Eventually(isUnderWay).WithTimeout(30 * time.Second).Should(BeTrue())

			p.Stop()
			over, cancel := context.WithCancel(context.Background())
			cancel()
			drained := make(chan int)
			go func() { drained <- p.Drain(over) }()
			Eventually(drained).WithTimeout(30 * time.Second).Should(Receive(Equal(1)))
			Expect(client.SetReadDeadline(time.Now().Add(10 * time.Second))).To(Succeed())
			Expect(client.Read(make([]byte, 1))).Error().To(MatchError(syscall.ECONNRESET))
			ends := o.Trace.Ended(10, func(*trace.Event) bool { return true })
			Expect(ends).To(HaveLen(1))
			Expect(ends[0].End.Outcome).To(Equal(outcome.Drained))
			tried := ends[0].Record.Attempts()
			Expect(tried).To(HaveLen(1))
			Expect(tried[0].Err).To(Equal(last))
			Eventually(gleak.Goroutines).WithTimeout(30 * time.Second).ShouldNot(gleak.HaveLeaked(goroutines))
		},
		Entry("while an event loop connects", lab.Silent, nil, isSynSent, "context canceled"),
		Entry("while an event loop waits to retry", nobody, nil, nil, "connection refused"),
		Entry("while a custom Dial connects", nobody, untilCanceled, isDialing, "context canceled"),
		Entry("while the proxy waits to retry a custom Dial", nobody, refuse, nil, "connection refused"),
	)
})
