package admin_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/sirupsen/logrus"
	"k8s.io/apimachinery/pkg/types"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/proxy"
	"github.com/usherproxy/usher/proxy/admin"
)

var _ = Describe("a health port", func() {
	// prompt is shorter than each timeout for slow clients, and far longer than a response usually takes.
	const prompt = 3 * time.Second
	var at string
	var opened []net.Conn // by connect
	BeforeEach(func() {
		h := &admin.Health{Sync: func() proxy.SyncStatus { return proxy.SyncStatus{LastApplied: time.Now()} }, Timeout: time.Minute}
		s, err := admin.Serve("127.0.0.1:0", admin.HealthHandler(h), admin.MaxClients)
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(s.Close)
		at = s.Addr
	})
	// connect makes n connections from source to at, and writes says on each.
	connect := func(n int, source, at, says string) (conns []net.Conn) {
		GinkgoHelper()
		for range n {
			c, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(source)}}).Dial("tcp", at)
			Expect(err).NotTo(HaveOccurred())
			DeferCleanup(func() { c.Close() })
			_, _ = io.WriteString(c, says) // it may be closed already
			conns = append(conns, c)
		}
		opened = append(opened, conns...)
		return conns
	}
	// promptly calls f, which connects. If f fails late, as on a busy machine, the server may have closed connections
	// for being slow: promptly then calls it again, without the former connections.
	promptly := func(f func()) {
		GinkgoHelper()
		for tries := 1; ; tries++ {
			opened = nil
			began := time.Now()
			err := InterceptGomegaFailure(f)
			if err == nil || time.Since(began) < prompt || tries == 5 {
				Expect(err).NotTo(HaveOccurred())
				return
			}
			for _, c := range opened {
				c.Close()
			}
		}
	}
	probe := func(at string) {
		GinkgoHelper()
		client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: prompt}
		res, err := client.Get("http://" + at + "/livez")
		Expect(err).NotTo(HaveOccurred())
		defer res.Body.Close()
		Expect(res.StatusCode).To(Equal(200))
	}
	isOpen := func(c net.Conn) bool {
		Expect(c.SetReadDeadline(time.Now().Add(10 * time.Millisecond))).To(Succeed())
		_, err := io.Copy(io.Discard, c)
		timeout, ok := err.(net.Error)
		return ok && timeout.Timeout()
	}

	It("answers a probe while 64 clients are idle", func() {
		promptly(func() {
			connect(64, "127.0.0.1", at, "GET /livez HTTP/1.1\r\nHost: node\r\n\r\n")
			probe(at)
			connect(64, "127.0.0.1", at, "")
			probe(at)
		})
	})
	It("answers a probe while 1,000 clients have sent only two bytes", func() {
		needFiles(1200)
		promptly(func() {
			for _, c := range connect(1000, "127.0.0.1", at, "G") {
				_, _ = io.WriteString(c, "E")
			}
			probe(at)
		})
	})
	It("keeps a client while another source has more connections", func() {
		promptly(func() {
			one := connect(1, "127.0.0.2", at, "GET /li")[0]
			connect(200, "127.0.0.1", at, "")
			probe(at)
			Expect(io.WriteString(one, "vez HTTP/1.1\r\nHost: node\r\n\r\n")).Error().NotTo(HaveOccurred())
			Expect(io.ReadAll(one)).To(HavePrefix("HTTP/1.1 200 OK"))
		})
	})
	It("keeps a client while another source fills the server with incomplete requests", func() {
		promptly(func() {
			connect(admin.MaxClients, "127.0.0.1", at, "POST /livez HTTP/1.1\r\nHost: node\r\nContent-Length: 10\r\n\r\n")
			one := connect(1, "127.0.0.2", at, "GET /li")[0]
			connect(20, "127.0.0.1", at, "")
			Expect(io.WriteString(one, "vez HTTP/1.1\r\nHost: node\r\n\r\n")).Error().NotTo(HaveOccurred())
			Expect(io.ReadAll(one)).To(HavePrefix("HTTP/1.1 200 OK"))
		})
	})
	It("answers despite idle clients, and shares one limit with all health check node ports", func() {
		log := logrus.New()
		log.SetOutput(GinkgoWriter)
		h := &admin.HealthChecks{Serving: func() bool { return true }, Log: log}
		DeferCleanup(h.Close)
		var ports []string
		for i := range 3 {
			l, err := net.Listen("tcp", ":0")
			Expect(err).NotTo(HaveOccurred())
			port := uint16(l.Addr().(*net.TCPAddr).Port)
			l.Close()
			ready := []config.Endpoint{{Addr: netip.MustParseAddrPort("10.0.0.1:80"), Ready: true}}
			h.Apply([]config.Service{{
				Name:                types.NamespacedName{Namespace: "default", Name: fmt.Sprint("web-", i)},
				HealthCheckNodePort: port,
				Ports:               []config.ServicePort{{ExternalLocal: true, External: ready}},
			}})
			ports = append(ports, "127.0.0.1:"+strconv.Itoa(int(port)))
		}
		open := func() (n int) {
			for _, c := range opened {
				if isOpen(c) {
					n++
				}
			}
			return n
		}
		promptly(func() {
			for _, at := range ports {
				connect(64, "127.0.0.1", at, "")
			}
			for _, at := range ports {
				probe(at)
			}
			// The server notices closed connections a moment later, but earlier than it closes one for being slow.
			Eventually(open).WithTimeout(prompt).Should(And(BeNumerically(">", 0), BeNumerically("<=", admin.MaxClients)))
		})
	})
})

var _ = Describe("a server at its connection limit", func() {
	It("closes idle connections, but none with a response in progress", func() {
		goOn := make(chan struct{})
		s, err := admin.Serve("127.0.0.1:0", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, "some ")
			_ = http.NewResponseController(w).Flush()
			<-goOn
			_, _ = io.WriteString(w, "more")
		}), 8)
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(s.Close)
		res, err := http.Get("http://" + s.Addr)
		Expect(err).NotTo(HaveOccurred())
		defer res.Body.Close()
		for range 20 {
			c, err := net.Dial("tcp", s.Addr)
			Expect(err).NotTo(HaveOccurred())
			DeferCleanup(c.Close)
		}
		// The server has accepted the last connection, so it accepted the others before.
		last, err := http.Get("http://" + s.Addr)
		Expect(err).NotTo(HaveOccurred())
		defer last.Body.Close()
		close(goOn)
		Expect(io.ReadAll(res.Body)).To(BeEquivalentTo("some more"))
	})
})
