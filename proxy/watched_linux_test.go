package proxy_test

import (
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gbytes"
	"github.com/onsi/gomega/gleak"
	"github.com/sirupsen/logrus"
	"k8s.io/apimachinery/pkg/types"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/proxy"
	"github.com/usherproxy/usher/proxy/balance"
	"github.com/usherproxy/usher/proxy/conn"
	"github.com/usherproxy/usher/proxy/trace"
	"github.com/usherproxy/usher/test/lab"
)

// webServer responds with a status that can be changed, and counts requests by probes and clients.
type webServer struct {
	addr                   netip.AddrPort
	status, asked, clients atomic.Int64 // asked counts probes
	last                   atomic.Pointer[http.Request]
}

func newWebServer(start func(*httptest.Server)) *webServer {
	GinkgoHelper()
	w := new(webServer)
	w.status.Store(200)
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/client" {
			w.clients.Add(1)
		} else {
			w.asked.Add(1)
			w.last.Store(r)
		}
		out.Header().Set("Location", "http://127.0.0.1:1/")
		out.WriteHeader(int(w.status.Load()))
		_, _ = io.WriteString(out, "hello")
	}))
	s.Config.ErrorLog = log.New(GinkgoWriter, "", 0)
	start(s)
	DeferCleanup(s.Close)
	w.addr = s.Listener.Addr().(*net.TCPAddr).AddrPort()
	return w
}

var _ = Describe("a Proxy whose Services configure probes", func() {
	var (
		p       *proxy.Proxy
		options proxy.Options
		how     config.Probe
		said    *gbytes.Buffer
	)
	BeforeEach(func() {
		goroutines := gleak.Goroutines()
		said = gbytes.NewBuffer()
		options = defaults()
		options.Log.(*logrus.Logger).SetOutput(io.MultiWriter(GinkgoWriter, said))
		how = config.Probe{Check: config.Check{Kind: config.CheckHTTP, Path: "/healthz?x=y"}, Interval: 10 * time.Millisecond, Timeout: 5 * time.Second, Rise: 2, Fall: 3}
		DeferCleanup(func() {
			stop(p)
			Eventually(gleak.Goroutines).WithTimeout(30 * time.Second).ShouldNot(gleak.HaveLeaked(goroutines))
		})
	})
	service := func(protocol config.Protocol, endpoints ...netip.AddrPort) config.Service {
		id := types.NamespacedName{Namespace: "of-probes", Name: "web"}
		port := config.ServicePort{
			ID: config.PortID{Namespace: id.Namespace, Service: id.Name, Family: config.IPv4}, Protocol: protocol, Policy: config.Policy{Probe: how},
			VIPs: []config.VIP{{Kind: config.ClusterIP, Addr: netip.MustParseAddr("10.96.0.1"), Port: 80}},
		}
		for _, e := range endpoints {
			port.Endpoints = append(port.Endpoints, config.Endpoint{Addr: e, Ready: true})
		}
		port.Cluster, port.Internal, port.External = port.Endpoints, port.Endpoints, port.Endpoints
		return config.Service{Name: id, Ports: []config.ServicePort{port}}
	}
	serve := func(s config.Service) {
		p = proxy.New(options)
		p.Apply([]config.Service{s})
	}
	// why returns the reason for the n-th endpoint's quarantine, or "".
	why := func(n int) func() string {
		return func() string {
			if h := p.Status()[0].Endpoints[n].Health(time.Now()); h.State == balance.Down {
				return h.Err.Error()
			}
			return ""
		}
	}
	// more waits until a server has received that many more probes.
	more := func(w *webServer, times int64) {
		GinkgoHelper()
		from := w.asked.Load()
		Eventually(w.asked.Load).WithTimeout(30 * time.Second).Should(BeNumerically(">=", from+times))
	}
	kinds := func() (list []string) {
		buf := make([]trace.Event, 1000)
		n, _ := options.Trace.Reader(false).Poll(buf)
		for _, e := range buf[:n] {
			list = append(list, fmt.Sprint(e.Kind, " ", e.Reason))
		}
		return list
	}

	It("skips an endpoint with a bad HTTP status until its status is good", func() {
		good, bad := newWebServer((*httptest.Server).Start), newWebServer((*httptest.Server).Start)
		serve(service(config.TCP, good.addr, bad.addr))
		more(bad, 5)
		Expect(why(1)()).To(BeEmpty())
		r := bad.last.Load()
		Expect([]string{r.Method, r.Host, r.RequestURI, r.UserAgent()}).To(Equal([]string{"GET", bad.addr.String(), "/healthz?x=y", "usher/probe"}))

		bad.status.Store(503)
		Eventually(why(1)).WithTimeout(30 * time.Second).Should(MatchRegexp(`^\d+ probes failed: HTTP status 503$`))
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		for range 5 {
			answer, err := client.Get("http://" + p.Status()[0].Listeners[0].String() + "/client")
			Expect(err).NotTo(HaveOccurred())
			Expect(answer.StatusCode).To(Equal(200))
			answer.Body.Close()
		}
		Expect([]int64{good.clients.Load(), bad.clients.Load()}).To(Equal([]int64{5, 0}))
		Expect(why(0)()).To(BeEmpty())
		Expect(p.Stats().Probes[conn.BadStatus]).To(BeNumerically(">=", 3))

		bad.status.Store(302) // the target of the redirect has no listener
		Eventually(why(1)).WithTimeout(30 * time.Second).Should(BeEmpty())
		Eventually(kinds).Should(ContainElements("endpoint-quarantined probes", "endpoint-recovered probes"))
		s := p.Stats() // the counter changes before the event
		Expect([]int64{s.Quarantines, s.Recoveries}).To(Equal([]int64{1, 1}))
	})

	DescribeTable("reports briefly why an HTTP probe failed", func(kind config.CheckKind, endpoint func(net.Conn), want string) {
		how.Check.Kind, how.Timeout = kind, 500*time.Millisecond
		serve(service(config.TCP, lab.Backend(endpoint)))
		Eventually(why(0)).WithTimeout(20 * time.Second).Should(MatchRegexp(`^\d+ probes failed: ` + want + `$`))
	},
		Entry("the endpoint does not answer", config.CheckHTTP, func(c net.Conn) { _, _ = io.Copy(io.Discard, c) }, "no answer"),
		Entry("the endpoint does not answer over TLS", config.CheckHTTPS, func(c net.Conn) { _, _ = io.Copy(io.Discard, c) }, "no answer"),
		Entry("the endpoint answers in another protocol, with much data", config.CheckHTTP, func(c net.Conn) { fmt.Fprintln(c, strings.Repeat("x", 5000)) }, `.*malformed HTTP response "x{100,150}…`),
		Entry("the endpoint does not use TLS", config.CheckHTTPS, func(c net.Conn) { fmt.Fprintln(c, "hello, this is not TLS") }, "tls: .*"),
	)

	It("accepts any certificate in HTTPS probes", func() {
		how.Check.Kind = config.CheckHTTPS
		w := newWebServer((*httptest.Server).StartTLS)
		serve(service(config.TCP, w.addr))
		more(w, 5)
		Expect(why(0)()).To(BeEmpty())
	})

	It("probes another port by TCP, even for a UDP Service", func() {
		dead := nobody()
		how.Check = config.Check{Kind: config.CheckTCP, Port: dead.Port()}
		serve(service(config.UDP, netip.AddrPortFrom(dead.Addr(), 9)))
		Eventually(why(0)).WithTimeout(30 * time.Second).Should(MatchRegexp(`^\d+ probes failed: connection refused$`))
	})

	It("follows changes of the Service's probes", func() {
		w := newWebServer((*httptest.Server).Start)
		w.status.Store(500)
		serve(service(config.TCP, w.addr))
		Eventually(why(0)).WithTimeout(30 * time.Second).Should(ContainSubstring("HTTP status 500"))

		By("changing other endpoints")
		p.Apply([]config.Service{service(config.TCP, w.addr, nobody())})
		Expect(why(0)()).NotTo(BeEmpty())
		Expect(p.Stats().Recoveries).To(BeZero())

		By("changing the probe")
		how.Check = config.Check{Kind: config.CheckTCP}
		p.Apply([]config.Service{service(config.TCP, w.addr)})
		Expect(why(0)()).To(BeEmpty())
		Expect(kinds()).To(ContainElement("endpoint-recovered no longer probed"))

		By("removing the probe")
		how.Check = config.Check{Kind: config.CheckHTTP, Path: "/"}
		p.Apply([]config.Service{service(config.TCP, w.addr)})
		Eventually(why(0)).WithTimeout(30 * time.Second).ShouldNot(BeEmpty())
		how = config.Probe{}
		p.Apply([]config.Service{service(config.TCP, w.addr)})
		Expect(why(0)()).To(BeEmpty())
		last := int64(-1)
		Eventually(func() bool { // one may be in progress
			before := last
			last = w.asked.Load()
			return last == before
		}).WithTimeout(10 * time.Second).WithPolling(200 * time.Millisecond).Should(BeTrue())
	})

	It("logs when Services request more probes than the limit", func() {
		how.Check, how.Interval = config.Check{Kind: config.CheckTCP}, time.Microsecond
		serve(service(config.TCP, nobody(), nobody(), nobody()))
		Eventually(said).WithTimeout(30 * time.Second).Should(gbytes.Say(`A requested probe starts late, because a limit on probes is reached" .*maxPerNamespace=\d+ maxPerSecond=500`))
		Expect(p.Stats().LateProbes).To(BeNumerically(">", 0))
	})

	It("does not probe an endpoint that clients may not use", func() {
		used, unused := newWebServer((*httptest.Server).Start), newWebServer((*httptest.Server).Start)
		s := service(config.TCP, used.addr, unused.addr)
		port := &s.Ports[0]
		port.Endpoints[1].Ready = false
		port.Cluster, port.Internal, port.External = port.Endpoints[:1], port.Endpoints[:1], port.Endpoints[:1]
		serve(s)
		more(used, 20)
		Expect(unused.asked.Load()).To(BeZero())
	})
})
