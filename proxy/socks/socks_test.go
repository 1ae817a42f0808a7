package socks

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gleak"
	"github.com/sirupsen/logrus"
	xproxy "golang.org/x/net/proxy"
	"k8s.io/apimachinery/pkg/types"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/portal/none"
	"github.com/usherproxy/usher/proxy"
	"github.com/usherproxy/usher/proxy/outcome"
	"github.com/usherproxy/usher/proxy/trace"
	"github.com/usherproxy/usher/test/lab"
)

func TestSOCKS(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "proxy/socks")
}

var _ = DescribeTable("a host name", func(host string, want string) {
	name, certain, ok := serviceOf(host, "cluster.local")
	got := "no Service"
	switch {
	case ok && certain:
		got = name.String()
	case ok:
		got = "perhaps " + name.String()
	case certain:
		got = "nothing"
	}
	Expect(got).To(Equal(want))
},
	Entry(nil, "web", "perhaps default/web"),
	Entry(nil, "web.shop", "perhaps shop/web"),
	Entry(nil, "web.shop.svc", "shop/web"),
	Entry(nil, "web.shop.svc.cluster.local", "shop/web"),
	Entry(nil, "Web.Shop.SVC.Cluster.Local.", "shop/web"),
	Entry(nil, "example.com", "perhaps com/example"),
	Entry(nil, "www.example.com", "no Service"),
	Entry(nil, "shop.svc", "nothing"),
	Entry(nil, "web-0.web.shop.svc", "nothing"),
	Entry(nil, "10-0-0-1.shop.pod.cluster.local", "nothing"),
	Entry(nil, "kubernetes.cluster.local", "nothing"),
	Entry(nil, ".", "no Service"),
)

var _ = Describe("the SOCKS and HTTP proxy", func() {
	var (
		p      *proxy.Proxy
		events *trace.Reader
		dialer xproxy.Dialer
		at     string // where the server listens
	)
	// backend starts a server that responds with its name and the received line.
	backend := func(name string) netip.AddrPort {
		GinkgoHelper()
		return lab.Backend(func(c net.Conn) {
			question, _ := io.ReadAll(c)
			fmt.Fprintf(c, "%s: %s", name, question)
		})
	}
	service := func(namespace, name, vip string, endpoints ...netip.AddrPort) config.Service {
		port := config.ServicePort{
			ID: config.PortID{Namespace: namespace, Service: name, Family: config.IPv4}, Protocol: config.TCP, Policy: config.DefaultPolicy(),
			VIPs: []config.VIP{{Kind: config.ClusterIP, Addr: netip.MustParseAddr(vip), Port: 80}},
		}
		for _, e := range endpoints {
			port.Endpoints = append(port.Endpoints, config.Endpoint{Addr: e, Ready: true})
		}
		port.Cluster, port.Internal, port.External = port.Endpoints, port.Endpoints, port.Endpoints
		return config.Service{Name: types.NamespacedName{Namespace: namespace, Name: name}, Ports: []config.ServicePort{port}}
	}
	ask := func(address string) (string, error) {
		c, err := dialer.Dial("tcp", address)
		if err != nil {
			return "", err
		}
		defer c.Close()
		if err := c.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
			return "", err
		}
		if _, err := io.WriteString(c, "who?"); err != nil {
			return "", err
		}
		half, ok := c.(interface{ CloseWrite() error })
		if !ok {
			return "", errors.New("no CloseWrite")
		}
		if err := half.CloseWrite(); err != nil {
			return "", err
		}
		answer, err := io.ReadAll(c)
		return string(answer), err
	}

	BeforeEach(func() {
		goroutines := gleak.Goroutines()
		log := logrus.New()
		log.SetOutput(GinkgoWriter)
		log.SetLevel(logrus.DebugLevel)
		pt, err := none.Mode.New(context.Background(), portal.Options{})
		Expect(err).NotTo(HaveOccurred())
		o := proxy.Defaults()
		o.Portal, o.Log, o.Trace = pt, log, trace.NewLog(1000)
		p = proxy.New(o)
		events = p.Trace.Reader(true)
		s, err := Listen("127.0.0.1:0", "cluster.local", p, log)
		Expect(err).NotTo(HaveOccurred())
		ctx, cancel := context.WithCancel(context.Background())
		go s.Serve(ctx)
		at = s.Addr().String()
		socks, err := xproxy.SOCKS5("tcp", at, nil, tcpDialer{})
		Expect(err).NotTo(HaveOccurred())
		dialer = socks
		DeferCleanup(func() {
			cancel()
			p.Stop()
			short, over := context.WithTimeout(context.Background(), 50*time.Millisecond)
			defer over()
			p.Drain(short)
			s.Close()
			Eventually(gleak.Goroutines).ShouldNot(gleak.HaveLeaked(goroutines))
		})
	})

	It("connects to a Service by each of its names and by its cluster IP", func() {
		p.Apply([]config.Service{service("default", "web", "10.96.0.10", backend("web")), service("shop", "web", "10.96.0.11", backend("shop"))})
		for _, host := range []string{"web", "web.default", "web.default.svc", "web.default.svc.cluster.local", "web.default.svc.cluster.local.", "10.96.0.10"} {
			Expect(ask(host+":80")).To(Equal("web: who?"), host)
		}
		Expect(ask("web.shop:80")).To(Equal("shop: who?"))
	})

	It("prefers a Service's IPv4 cluster IP, unless only the IPv6 one has endpoints", func() {
		var dual []config.Service
		for i, name := range []string{"both", "four", "six"} {
			var four, six []netip.AddrPort
			if name != "six" {
				four = append(four, backend("IPv4"))
			}
			if name != "four" {
				six = append(six, backend("IPv6"))
			}
			s := service("default", name, fmt.Sprint("10.96.0.", i+1), four...)
			port := service("default", name, fmt.Sprint("fd96::", i+1), six...).Ports[0]
			port.ID.Family = config.IPv6
			s.Ports = append(s.Ports, port)
			dual = append(dual, s)
		}
		p.Apply(dual)
		Expect(ask("both:80")).To(Equal("IPv4: who?"))
		Expect(ask("four:80")).To(Equal("IPv4: who?"))
		Expect(ask("six:80")).To(Equal("IPv6: who?"))
	})

	It("makes requests for names of Services wait until the initial sync is applied, but no others", func() {
		answers := make(chan string, 1)
		go func() {
			answer, err := ask("web:80")
			answers <- fmt.Sprint(answer, err)
		}()
		Consistently(answers).WithTimeout(300 * time.Millisecond).ShouldNot(Receive())
		Expect(ask(backend("API server").String())).To(Equal("API server: who?"), "usher's own connection")
		p.Apply([]config.Service{service("default", "web", "10.96.0.10", backend("web"))})
		Eventually(answers).WithTimeout(30 * time.Second).Should(Receive(Equal("web: who?<nil>")))
	})

	It("retries attempts and traces connections with the client's address", func() {
		p.Apply([]config.Service{service("default", "web", "10.96.0.10", lab.Refusing(), backend("web"))})
		Expect(ask("web:80")).To(Equal("web: who?"))
		Expect(ask("web:80")).To(Equal("web: who?"))
		Eventually(p.Connections).Should(BeZero())
		buf := make([]trace.Event, 100)
		n, _, err := events.Next(context.Background(), buf)
		Expect(err).NotTo(HaveOccurred())
		var traceText strings.Builder
		for _, e := range buf[:n] {
			fmt.Fprintln(&traceText, e)
		}
		Expect(traceText.String()).To(MatchRegexp(`accepted 127\.0\.0\.1:\d+ → 10\.96\.0\.10:80`))
		Expect(traceText.String()).To(MatchRegexp(`attempt 1 → .*connection refused`))
		Expect(traceText.String()).To(MatchRegexp(`closed after .*client-closed, 4 bytes to .*, 9 bytes to the client`))
	})

	It("uses a client's IPv4 address if it listens on all addresses", func() {
		all, err := Listen("0.0.0.0:0", "cluster.local", p, logrus.New())
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(all.Close)
		go all.Serve(GinkgoT().Context())
		socks, err := xproxy.SOCKS5("tcp", fmt.Sprint("127.0.0.1:", all.Addr().Port()), nil, tcpDialer{})
		Expect(err).NotTo(HaveOccurred())
		dialer = socks
		p.Apply([]config.Service{service("default", "web", "10.96.0.10", backend("web"))})
		Expect(ask("web:80")).To(Equal("web: who?"))
		soon, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		Eventually(func() string {
			buf := make([]trace.Event, 1)
			_, _, _ = events.Next(soon, buf) // fails when the time is over
			return fmt.Sprint(buf[0])
		}).Should(ContainSubstring("accepted 127.0.0.1:"))
	})

	It("reports why a Service cannot be reached", func() {
		p.Apply([]config.Service{service("default", "empty", "10.96.0.12")})
		for host, want := range map[string]string{
			"empty:80": "connection refused", "10.96.0.12:80": "connection refused", "empty:81": "connection refused",
			"nobody.default.svc:80": "host unreachable", "web-0.web.default.svc.cluster.local:80": "host unreachable",
		} {
			_, err := ask(host)
			Expect(err).To(MatchError(ContainSubstring(want)), host)
		}
	})

	It("connects directly to other hosts", func() {
		p.Apply([]config.Service{service("default", "web", "10.96.0.10", backend("web"))})
		other := backend("other")
		Expect(ask(other.String())).To(Equal("other: who?"))
		Expect(ask(fmt.Sprintf("localhost:%d", other.Port()))).To(Equal("other: who?"))
		_, err := ask(lab.Refusing().String())
		Expect(err).To(MatchError(ContainSubstring("connection refused")))
	})

	It("resets the client if every attempt fails", func() {
		o := lab.Refusing()
		p.Apply([]config.Service{service("default", "web", "10.96.0.10", o)})
		c, err := dialer.Dial("tcp", "web:80")
		Expect(err).NotTo(HaveOccurred())
		defer c.Close()
		Expect(c.SetDeadline(time.Now().Add(10 * time.Second))).To(Succeed())
		_, err = c.Read(make([]byte, 1))
		Expect(err).To(MatchError(ContainSubstring("connection reset by peer")))
	})

	It("forwards data that a client sends before the reply", func() {
		p.Apply([]config.Service{service("default", "web", "10.96.0.10", backend("web"))})
		c, err := net.Dial("tcp", at)
		Expect(err).NotTo(HaveOccurred())
		defer c.Close()
		_, err = c.Write([]byte("\x05\x01\x00" + "\x05\x01\x00\x03\x03web\x00\x50" + "who?"))
		Expect(err).NotTo(HaveOccurred())
		Expect(c.(*net.TCPConn).CloseWrite()).To(Succeed())
		Expect(c.SetDeadline(time.Now().Add(5 * time.Second))).To(Succeed())
		answer, err := io.ReadAll(c)
		Expect(err).NotTo(HaveOccurred())
		Expect(string(answer)).To(HaveSuffix("web: who?"))
	})

	Describe("as an HTTP proxy", func() {
		var web *http.Client
		// webServer starts a server that responds with its name and a description of the request.
		webServer := func(name string) netip.AddrPort {
			GinkgoHelper()
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				fmt.Fprintf(w, "%s: %s %s %s %q %q", name, r.Method, r.Host, r.RequestURI, r.Header["X-Forwarded-For"], body)
			}))
			DeferCleanup(server.Close)
			return server.Listener.Addr().(*net.TCPAddr).AddrPort()
		}
		get := func(url string) (int, string) {
			GinkgoHelper()
			response, err := web.Get(url)
			Expect(err).NotTo(HaveOccurred())
			defer response.Body.Close()
			body, err := io.ReadAll(response.Body)
			Expect(err).NotTo(HaveOccurred())
			return response.StatusCode, string(body)
		}
		BeforeEach(func() {
			transport := &http.Transport{Proxy: http.ProxyURL(&url.URL{Scheme: "http", Host: at})}
			web = &http.Client{Transport: transport, Timeout: 10 * time.Second}
			DeferCleanup(transport.CloseIdleConnections)
			dialer = connectDialer(at)
		})

		It("tunnels to a Service by name and cluster IP, and to other hosts", func() {
			p.Apply([]config.Service{service("default", "web", "10.96.0.10", backend("web")), service("shop", "web", "fd00:96::11", backend("shop"))})
			for _, host := range []string{"web", "web.default.svc", "web.default.svc.cluster.local", "10.96.0.10"} {
				Expect(ask(host+":80")).To(Equal("web: who?"), host)
			}
			Expect(ask("[fd00:96::11]:80")).To(Equal("shop: who?"))
			other := backend("other")
			Expect(ask(other.String())).To(Equal("other: who?"))
		})

		It("makes a connection for each plain request and forwards it unchanged", func() {
			p.Apply([]config.Service{service("default", "web", "10.96.0.10", lab.Refusing(), webServer("a"), webServer("b"))})
			seen := map[string]int{}
			for range 4 {
				status, answer := get("http://web/x?y;z=1")
				Expect(status).To(Equal(200))
				seen[answer]++
			}
			Expect(seen).To(Equal(map[string]int{`a: GET web /x?y;z=1 [] ""`: 2, `b: GET web /x?y;z=1 [] ""`: 2}))
			request, err := http.NewRequest(http.MethodPost, "http://10.96.0.10:80/", strings.NewReader("all of it"))
			Expect(err).NotTo(HaveOccurred())
			request.Header.Set("X-Forwarded-For", "192.0.2.1")
			response, err := web.Do(request)
			Expect(err).NotTo(HaveOccurred())
			defer response.Body.Close()
			Expect(io.ReadAll(response.Body)).To(ContainSubstring(`: POST 10.96.0.10:80 / ["192.0.2.1"] "all of it"`))
			status, answer := get("http://" + webServer("other").String() + "/")
			Expect([]any{status, answer}).To(ConsistOf(200, HavePrefix("other: GET ")))
		})

		It("allows responses that take longer than the request timeout", func() {
			slow := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.WriteString(w, "first, ")
				w.(http.Flusher).Flush()
				time.Sleep(requestTime + 500*time.Millisecond)
				_, _ = io.WriteString(w, "and last")
			}))
			DeferCleanup(slow.Close)
			web.Timeout = 3 * requestTime
			status, answer := get(slow.URL)
			Expect(status).To(Equal(200))
			Expect(answer).To(Equal("first, and last"))
		})

		It("traces the client's address and the end of the connection", func() {
			p.Apply([]config.Service{service("default", "web", "10.96.0.10", webServer("a"))})
			client, err := net.Dial("tcp", at)
			Expect(err).NotTo(HaveOccurred())
			defer client.Close()
			fmt.Fprint(client, "GET http://web/ HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n")
			Expect(io.ReadAll(client)).To(ContainSubstring("a: GET web /"))
			Eventually(func() []trace.Event { return p.Trace.Ended(10, func(*trace.Event) bool { return true }) }).Should(ConsistOf(
				HaveField("Subject.Client", client.LocalAddr().(*net.TCPAddr).AddrPort())))
			Expect(p.Trace.Ended(1, func(*trace.Event) bool { return true })[0].End.Outcome.Fault()).To(Equal(outcome.FaultNone))
		})

		It("reports why a host cannot be reached", func() {
			broken := lab.Backend(func(c net.Conn) {
				_, _ = c.Read(make([]byte, 4096)) // the client has written; its read reports the reset
				_ = c.(*net.TCPConn).SetLinger(0)
			})
			p.Apply([]config.Service{service("default", "empty", "10.96.0.12"), service("default", "broken", "10.96.0.13", broken)})
			for host, want := range map[string]string{
				"empty":                 "503 usher: HOST: the Service does not have this port, or no endpoints for it",
				"empty:81":              "503 usher: HOST: the Service does not have this port, or no endpoints for it",
				"nobody.default.svc":    "502 usher: HOST: the Service does not exist",
				lab.Refusing().String(): "502 usher: HOST: connection refused",
				"broken":                "502 usher: HOST: connection reset by peer; for a Service: every attempt failed, or its endpoint reset the connection",
				fmt.Sprint("localhost:", lab.Refusing().Port()): "502 usher: HOST: connection refused",
			} {
				status, answer := get("http://" + host + "/")
				Expect(fmt.Sprint(status, " ", answer)).To(HavePrefix(strings.ReplaceAll(want, "HOST", host)))
			}
			_, err := ask("nobody.default.svc:443")
			Expect(err).To(MatchError("502 Bad Gateway: usher: nobody.default.svc:443: the Service does not exist\n"))
			_, err = ask("empty:80")
			Expect(err).To(MatchError(HavePrefix("503 Service Unavailable: ")))
		})

		DescribeTable("rejects invalid proxy requests", func(request, want string) {
			c, err := net.Dial("tcp", at)
			Expect(err).NotTo(HaveOccurred())
			defer c.Close()
			Expect(c.SetDeadline(time.Now().Add(5 * time.Second))).To(Succeed())
			fmt.Fprintf(c, "%s HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n", request)
			answer, err := io.ReadAll(c)
			Expect(err).NotTo(HaveOccurred())
			Expect(string(answer)).To(And(HavePrefix("HTTP/1.1 400 "), ContainSubstring(want)))
		},
			Entry("a path without a host", "GET /", "This is a proxy"),
			Entry("another scheme", "GET ftp://web/", "This is a proxy"),
			Entry("a tunnel without a port", "CONNECT web", "missing port"),
			Entry("a tunnel to an invalid port", "CONNECT web:99999", "invalid port: must be 0 to 65535"),
		)
	})

	DescribeTable("rejects other commands", func(command byte) {
		c, err := net.Dial("tcp", at)
		Expect(err).NotTo(HaveOccurred())
		defer c.Close()
		_, err = c.Write([]byte{5, 1, 0, 5, command, 0, 1, 127, 0, 0, 1, 0, 80})
		Expect(err).NotTo(HaveOccurred())
		Expect(c.SetDeadline(time.Now().Add(5 * time.Second))).To(Succeed())
		answer, err := io.ReadAll(c)
		Expect(err).NotTo(HaveOccurred())
		Expect(answer[:4]).To(Equal([]byte{5, 0, 5, 7}), "command not supported")
	},
		Entry("BIND", byte(2)),
		Entry("UDP ASSOCIATE", byte(3)),
	)
})

// tcpDialer returns connections that can be half-closed.
type tcpDialer struct{}

func (tcpDialer) Dial(network, address string) (net.Conn, error) { return net.Dial(network, address) }

// connectDialer uses the HTTP CONNECT method of a proxy at this address.
type connectDialer string

func (at connectDialer) Dial(network, address string) (net.Conn, error) {
	c, err := net.Dial(network, string(at))
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(c, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", address, address)
	response, err := http.ReadResponse(bufio.NewReader(c), &http.Request{Method: http.MethodConnect})
	switch {
	case err != nil:
	case response.StatusCode != http.StatusOK:
		why, _ := io.ReadAll(response.Body)
		err = fmt.Errorf("%s: %s", response.Status, why)
	default:
		return c, nil
	}
	c.Close()
	return nil, err
}
