package proxy

import (
	"bytes"
	"net"
	"net/netip"
	"os"
	"runtime"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/proxy/trace"
)

// dropNetAdmin takes from this thread what conntrack wants to see. The thread
// ends with the goroutine.
func dropNetAdmin() error {
	runtime.LockOSThread()
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	if err := unix.Capget(&header, &sets[0]); err != nil {
		return err
	}
	sets[0].Effective &^= 1 << unix.CAP_NET_ADMIN
	return unix.Capset(&header, &sets[0])
}

// redirectedFront is a front end without listeners for a UDP Service.
func redirectedFront(t *testing.T, log *logrus.Logger) *frontEnd {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to ask conntrack")
	}
	o := Defaults()
	o.Log, o.Trace = log, trace.NewLog(10_000)
	p := New(o)
	t.Cleanup(p.Stop)
	endpoints := []config.Endpoint{{Addr: netip.MustParseAddrPort("127.0.0.1:9"), Ready: true}}
	port := config.ServicePort{
		ID:        config.PortID{Namespace: "default", Service: "dns", Family: config.IPv4},
		Protocol:  config.UDP,
		VIPs:      []config.VIP{{Kind: config.ClusterIP, Addr: netip.MustParseAddr("10.96.0.1"), Port: 53}},
		Endpoints: endpoints, Cluster: endpoints, Internal: endpoints, External: endpoints,
	}
	f := newFrontEnd(p, port)
	f.swapView(port)
	return f
}

var anywhereRedirected = portal.Bind{Addr: netip.MustParseAddrPort("127.0.0.1:0"), Redirected: true}

func TestWhereConntrackCannotBeAskedThereIsNoListener(t *testing.T) {
	g := NewWithT(t)
	f := redirectedFront(t, logrus.New())
	failed := make(chan error)
	go func() {
		if err := dropNetAdmin(); err != nil {
			failed <- err
			return
		}
		_, err := openUDP(f, anywhereRedirected)
		failed <- err
	}()
	g.Expect(<-failed).To(MatchError(And(
		ContainSubstring("cannot tell which UDP clients come through the portal"),
		ContainSubstring("operation not permitted"))))
	g.Expect(f.proxy.budget.listeners.Load()).To(BeZero())
}

func TestWhereConntrackCannotBeAskedAnyMoreNewClientsAreDroppedAndCounted(t *testing.T) {
	g := NewWithT(t)
	originErrors = rate.Sometimes{First: 1, Interval: time.Hour} // whatever was logged before
	var said bytes.Buffer
	log := logrus.New()
	log.SetOutput(&said)
	f := redirectedFront(t, log)
	l, err := openUDP(f, anywhereRedirected)
	g.Expect(err).NotTo(HaveOccurred())
	f.listeners = append(f.listeners, l)
	defer f.closeListeners()
	for _, loop := range f.proxy.udp.loops {
		denied := make(chan error)
		g.Expect(loop.poller.Do(func() { denied <- dropNetAdmin() })).To(Succeed())
		g.Expect(<-denied).To(Succeed())
	}

	const clients = 200
	for range clients {
		c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(l.addr()))
		g.Expect(err).NotTo(HaveOccurred())
		_, err = c.Write([]byte("x"))
		g.Expect(err).NotTo(HaveOccurred())
		c.Close()
	}
	stats := func() UDPStats { return f.proxy.Stats().Sessions }
	g.Eventually(func() int64 { return stats().Dropped[DropUnknownOrigin] }).WithTimeout(5 * time.Second).Should(BeEquivalentTo(clients))
	g.Expect(stats().Open).To(BeZero())
	// A flood takes a bounded part of the trace: two events for each.
	loops := len(f.proxy.udp.loops)
	g.Expect(stats().Ends[trace.Internal]).To(And(BeNumerically(">", 0), BeNumerically("<=", 2*refusalsPerSecond*loops)))
	f.closeListeners()
	f.listeners = nil
	g.Expect(said.String()).To(ContainSubstring("UDP clients are not served"))
	g.Expect(said.String()).To(ContainSubstring("operation not permitted"))
	g.Expect(bytes.Count(said.Bytes(), []byte("\n"))).To(Equal(1))
}
