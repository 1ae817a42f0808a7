package datagram

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"

	"github.com/usherproxy/usher/affinity"
	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/portal/none"
	"github.com/usherproxy/usher/proxy/balance"
	"github.com/usherproxy/usher/proxy/budget"
	"github.com/usherproxy/usher/proxy/forward"
	"github.com/usherproxy/usher/proxy/frontend"
	"github.com/usherproxy/usher/proxy/outcome"
	"github.com/usherproxy/usher/proxy/trace"
)

// dropNetAdmin drops CAP_NET_ADMIN, which conntrack requires, from this thread. The thread ends with the goroutine.
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

// redirectedFront returns a front end without listeners for a UDP Service, and a Server that can open some.
func redirectedFront(t *testing.T, log *logrus.Logger) (*frontend.FrontEnd, *Server) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to query conntrack")
	}
	node := &frontend.Node{Settings: frontend.Settings{Log: log, Trace: trace.NewLog(10_000)}, Budget: budget.New(budget.Limits{MaxUDPSessions: 65536, MaxClientShare: 25})}
	node.Init()
	srv := New(node, new(forward.Pollers))
	t.Cleanup(srv.Stop)
	endpoints := []config.Endpoint{{Addr: netip.MustParseAddrPort("127.0.0.1:9"), Ready: true}}
	port := config.ServicePort{
		ID:        config.PortID{Namespace: "default", Service: "dns", Family: config.IPv4},
		Protocol:  config.UDP,
		Policy:    config.DefaultPolicy(),
		VIPs:      []config.VIP{{Kind: config.ClusterIP, Addr: netip.MustParseAddr("10.96.0.1"), Port: 53}},
		Endpoints: endpoints, Cluster: endpoints, Internal: endpoints, External: endpoints,
	}
	var pool balance.Pool
	pool.Update(port, time.Now())
	f := frontend.New(node, port, affinity.NewTable(&affinity.Limits{}, 0))
	f.Swap(&frontend.View{Port: port, All: pool.All, Cluster: pool.Cluster, Internal: pool.Internal, External: pool.External})
	return f, srv
}

// frontWithEndpoint is redirectedFront without redirects, logs or a closed endpoint: the socket is the endpoint.
func frontWithEndpoint(t *testing.T) (*frontend.FrontEnd, *Server, *net.UDPConn) {
	t.Helper()
	g := NewWithT(t)
	log := logrus.New()
	log.SetOutput(io.Discard)
	f, srv := redirectedFront(t, log)
	var err error
	f.Portal, err = none.Mode.New(context.Background(), portal.Options{})
	g.Expect(err).NotTo(HaveOccurred())
	endpoint, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { endpoint.Close() })
	f.View().All[0].Endpoint.Addr = endpoint.LocalAddr().(*net.UDPAddr).AddrPort()
	return f, srv, endpoint
}

// listenAt opens a listener for the only VIP of f.
func listenAt(t *testing.T, f *frontend.FrontEnd, srv *Server, at netip.AddrPort) frontend.Listener {
	t.Helper()
	l, err := srv.Listen(f, portal.Bind{Addr: at, Targets: []portal.Target{frontend.Target(f.Protocol, f.View().Port.VIPs[0])}})
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return l
}

// anyPort is a loopback address whose port the kernel selects.
var anyPort = netip.MustParseAddrPort("127.0.0.1:0")

var anywhereRedirected = portal.Bind{Addr: netip.MustParseAddrPort("127.0.0.1:0"), Redirected: true,
	Targets: []portal.Target{{Protocol: portal.UDP, Addr: netip.MustParseAddr("10.96.0.1"), Port: 53}}}

func TestListenFailsWithoutConntrack(t *testing.T) {
	g := NewWithT(t)
	f, srv := redirectedFront(t, logrus.New())
	failed := make(chan error)
	go func() {
		if err := dropNetAdmin(); err != nil {
			failed <- err
			return
		}
		_, err := srv.Listen(f, anywhereRedirected)
		failed <- err
	}()
	g.Expect(<-failed).To(MatchError(And(
		ContainSubstring("cannot determine which UDP clients come through the portal"),
		ContainSubstring("operation not permitted"))))
	g.Expect(f.Budget.Listeners.Load()).To(BeZero())
}

func TestNewClientsAreDroppedAndCountedWhenConntrackFails(t *testing.T) {
	g := NewWithT(t)
	destinationErrors = rate.Sometimes{First: 1, Interval: time.Hour} // resets the rate limit of log messages
	var said bytes.Buffer
	log := logrus.New()
	log.SetOutput(&said)
	f, srv := redirectedFront(t, log)
	l, err := srv.Listen(f, anywhereRedirected)
	g.Expect(err).NotTo(HaveOccurred())
	closing := sync.OnceFunc(func() { l.Close(frontend.Stopped) })
	defer closing()
	for _, lp := range srv.loops {
		denied := make(chan error)
		g.Expect(lp.poller.Do(func() { denied <- dropNetAdmin() })).To(Succeed())
		g.Expect(<-denied).To(Succeed())
	}

	const clients = 200
	began := time.Now()
	for range clients {
		c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(l.Addr()))
		g.Expect(err).NotTo(HaveOccurred())
		_, err = c.Write([]byte("x"))
		g.Expect(err).NotTo(HaveOccurred())
		c.Close()
	}
	stats := func() frontend.SessionStats { return f.Stats().Sessions }
	g.Eventually(func() int64 { return stats().Dropped[frontend.DropUnknownDestination] }).WithTimeout(30 * time.Second).Should(BeEquivalentTo(clients))
	g.Expect(stats().Open).To(BeZero())
	// A flood uses a bounded part of the trace: two events per client.
	traced := stats().Ends[outcome.Internal]
	atMost := frontend.RefusalsPerSecond + int(frontend.RefusalsPerSecond*time.Since(began).Seconds()) + 1
	g.Expect(traced).To(And(BeNumerically(">", 0), BeNumerically("<=", atMost*len(srv.loops))))
	closing()
	g.Expect(said.String()).To(ContainSubstring("UDP clients are not served"))
	g.Expect(said.String()).To(ContainSubstring("operation not permitted"))
	g.Expect(bytes.Count(said.Bytes(), []byte("\n"))).To(Equal(1))
}
