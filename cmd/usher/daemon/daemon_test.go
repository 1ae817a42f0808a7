package daemon

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gbytes"
	"github.com/onsi/gomega/gleak"
	"github.com/sirupsen/logrus"

	"github.com/usherproxy/usher/cmd/kubectl-usher/laptop"
	"github.com/usherproxy/usher/config/manifest"
	"github.com/usherproxy/usher/proxy/accesslog"
	"github.com/usherproxy/usher/proxy/dns"
	"github.com/usherproxy/usher/proxy/outcome"
	"github.com/usherproxy/usher/proxy/trace"
	"github.com/usherproxy/usher/test/lab"
)

// patience is the timeout of specs for events that normally happen at once.
const patience = 20 * time.Second

// vip is the cluster IP and port of the Service that the daemons serve.
const vip = "10.96.0.10:80"

// manifests returns a folder with a Service whose endpoint echoes until the client closes.
func manifests() string {
	GinkgoHelper()
	echo := lab.Backend(func(c net.Conn) { _, _ = io.Copy(c, c) })
	dir := GinkgoT().TempDir()
	text := fmt.Sprintf(`
apiVersion: v1
kind: Service
metadata: {name: web, namespace: default}
spec: {clusterIP: 10.96.0.10, ports: [{port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: default, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{port: %d, protocol: TCP}]
endpoints: [{addresses: [%q]}]
`, echo.Port(), echo.Addr())
	Expect(os.WriteFile(filepath.Join(dir, "web.yaml"), []byte(text), 0o600)).To(Succeed())
	return dir
}

// listen listens on a port that no spec has used: the kernel soon selects a released port again.
func listen() net.Listener {
	GinkgoHelper()
	for {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		Expect(err).NotTo(HaveOccurred())
		if _, had := hadAddresses[l.Addr().String()]; !had {
			hadAddresses[l.Addr().String()] = struct{}{}
			return l
		}
		l.Close()
	}
}

var hadAddresses = map[string]struct{}{}

// free returns an address without a listener.
func free() string {
	GinkgoHelper()
	l := listen()
	defer l.Close()
	return l.Addr().String()
}

// taken returns an address with listeners for TCP and UDP.
func taken() string {
	GinkgoHelper()
	l := listen()
	DeferCleanup(l.Close)
	packets, err := net.ListenPacket("udp", l.Addr().String())
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(packets.Close)
	return l.Addr().String()
}

// socksAt and namesAt are the servers of 'kubectl usher connect'.
func socksAt(address string) Server {
	GinkgoHelper()
	s, err := laptop.NewSOCKS(address, "")
	Expect(err).NotTo(HaveOccurred())
	return s
}

func namesAt(address string) Names {
	GinkgoHelper()
	n, err := laptop.NewNames(netip.MustParseAddrPort(address), dns.Options{}, nil)
	Expect(err).NotTo(HaveOccurred())
	return n
}

// withoutPortal returns a Config that serves manifests on loopback, and /healthz.
func withoutPortal() Config {
	GinkgoHelper()
	c := Defaults()
	c.Mode = "none"
	c.Manifests = []string{manifests()}
	c.HealthzAddress = free()
	return c
}

// kubeconfigOf returns a kubeconfig for the API server at a URL.
func kubeconfigOf(url string) (path string) {
	GinkgoHelper()
	config, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "Config", "current-context": "c",
		"contexts": []any{map[string]any{"name": "c", "context": map[string]any{"cluster": "c"}}},
		"clusters": []any{map[string]any{"name": "c", "cluster": map[string]any{"server": url}}}})
	Expect(err).NotTo(HaveOccurred())
	path = filepath.Join(GinkgoT().TempDir(), "kubeconfig")
	Expect(os.WriteFile(path, config, 0o600)).To(Succeed())
	return path
}

// running is a running daemon.
type running struct {
	*Daemon
	said    *gbytes.Buffer // its log
	signals chan os.Signal
	ready   chan Ready
	ended   chan error
	cancel  func() // cancels its context
}

// begin starts a daemon, and stops it when the spec ends.
func begin(c Config) *running {
	GinkgoHelper()
	r := &running{said: gbytes.NewBuffer(), signals: make(chan os.Signal, 2), ready: make(chan Ready, 1), ended: make(chan error, 1)}
	log := logrus.New()
	log.SetOutput(io.MultiWriter(r.said, GinkgoWriter))
	c.Log = log
	c.OnReady = func(now Ready) { r.ready <- now }
	var err error
	r.Daemon, err = New(c)
	Expect(err).NotTo(HaveOccurred())
	ctx, cancel := context.WithCancel(context.Background())
	r.cancel = cancel
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.ended <- r.Run(ctx, r.signals)
	}()
	DeferCleanup(func() {
		cancel()
		for stop := time.After(patience); ; {
			select {
			case r.signals <- syscall.SIGTERM: // so that the daemon does not wait for connections
			case <-done:
				return
			case <-stop:
				Fail("the daemon does not end")
			}
		}
	})
	return r
}

// serve starts a daemon, and returns once it serves.
func serve(c Config) (r *running, now Ready) {
	GinkgoHelper()
	r = begin(c)
	Eventually(r.ready).WithTimeout(patience).Should(Receive(&now))
	return r, now
}

// healthz returns the status code of /healthz, or 0 if there is no response.
func healthz(address string) int {
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}
	res, err := client.Get("http://" + address + "/healthz")
	if err != nil {
		return 0
	}
	res.Body.Close()
	return res.StatusCode
}

// connect returns a connection to a Service that has carried data.
func connect(to string) net.Conn {
	GinkgoHelper()
	c, err := net.DialTimeout("tcp", to, patience)
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func() { c.Close() })
	Expect(say(c)).To(Succeed())
	return c
}

// say sends a line over c, and waits for the echo.
func say(c net.Conn) error {
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	if _, err := io.WriteString(c, "hello\n"); err != nil {
		return err
	}
	_, err := io.ReadFull(c, make([]byte, len("hello\n")))
	return err
}

// listener returns the Service's address without a portal.
func listener(now Ready) string { return now.Proxy.Status()[0].Listeners[0].String() }

var _ = Describe("a daemon", func() {
	It("serves its Services, and reports when it is ready", func() {
		c := withoutPortal()
		c.AdminAddress = "127.0.0.1:0"
		_, now := serve(c)
		Expect(now.Services).To(HaveLen(1))
		connect(listener(now))
		Expect(healthz(c.HealthzAddress)).To(Equal(http.StatusOK))
		Expect(healthz(now.AdminAddress)).To(Equal(http.StatusOK))
	})

	It("can read its Services without serving them", func() {
		c := Defaults()
		c.Log, c.Manifests = logrus.New(), []string{manifests()}
		services, err := c.Services(GinkgoT().Context())
		Expect(err).NotTo(HaveOccurred())
		Expect(services).To(HaveExactElements(HaveField("Name.Name", "web")))
	})

	It("exits with an error if its source fails", func() {
		c := withoutPortal()
		c.Manifests = []string{"/no/such/file"}
		r := begin(c)
		Eventually(r.ended).WithTimeout(patience).Should(Receive(MatchError("cannot continue: manifest /no/such/file: no such file or directory")))
		Expect(healthz(c.HealthzAddress)).To(BeZero())
	})

	It("keeps trying to listen while the address of an HTTP server is in use", func() {
		l := listen()
		defer l.Close()
		c := withoutPortal()
		c.AdminAddress = l.Addr().String()
		r, now := serve(c)
		Expect(now.AdminAddress).To(BeEmpty())
		Expect(r.said).To(gbytes.Say(`Cannot listen; retrying" error=.* flag=--admin-address`))
		l.Close()
		Eventually(r.said).WithTimeout(patience).Should(gbytes.Say(`Listening after retries" flag=--admin-address`))
		Expect(healthz(c.AdminAddress)).To(Equal(http.StatusOK))
	})

	It("reports that the API server rejects its credentials, and logs this once", func() {
		var asked atomic.Int64
		api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			asked.Add(1)
			http.Error(w, "the secret of 192.0.2.1", http.StatusUnauthorized)
		}))
		DeferCleanup(api.Close)
		c := withoutPortal()
		c.Manifests, c.NodeName, c.Cluster.Kubeconfig, c.AdminAddress = nil, "worker-1", kubeconfigOf(api.URL), free()
		r := begin(c)
		answer := func(url string) (body string) {
			res, err := http.Get("http://" + url)
			if err != nil {
				return err.Error()
			}
			defer res.Body.Close()
			all, _ := io.ReadAll(res.Body)
			return res.Status + " " + string(all)
		}
		Eventually(answer).WithArguments(c.HealthzAddress + "/healthz").WithTimeout(patience).Should(And(HavePrefix("503"), MatchRegexp(`"connected": *false`), MatchRegexp(`"error": *"unauthorized"`)))
		Expect(answer(c.HealthzAddress+"/livez")).To(HavePrefix("200"), "a restart would not help")
		Expect(answer(c.HealthzAddress+"/healthz")).NotTo(Or(MatchRegexp(`\b401\b`), ContainSubstring("192.0.2.1")), "all users can read it")
		Eventually(answer).WithArguments(c.AdminAddress + "/api/v1/status").WithTimeout(patience).Should(And(ContainSubstring("NotServing"), ContainSubstring("services: the API server returned 401 Unauthorized"), ContainSubstring("renew the token")))
		Expect(answer(c.AdminAddress + "/metrics")).To(ContainSubstring(`usher_api_server_failing{reason="unauthorized"} 1`))
		Eventually(asked.Load).WithTimeout(patience).Should(BeNumerically(">", 12), "it retries")
		Eventually(r.said.Contents).WithTimeout(patience).Should(ContainSubstring("No updates from the API server; serving no Services yet"))
		Expect(strings.Count(string(r.said.Contents()), "No updates from the API server")).To(Equal(1))
		start := time.Now()
		_, err := c.Services(context.Background())
		Expect(err).To(MatchError(MatchRegexp("services: the API server returned 401 Unauthorized.*renew the token")))
		Expect(time.Since(start)).To(BeNumerically("<", readTimeout))
	})

	Describe("that is stopped", func() {
		It("exits although its standard input stays open", func() {
			c := withoutPortal()
			c.Manifests = []string{manifest.Stdin}
			input, typed := io.Pipe()
			DeferCleanup(typed.Close)
			c.Input = input
			r := begin(c)
			_, err := io.WriteString(typed, "apiVersion: v1\n") // the daemon is reading it
			Expect(err).NotTo(HaveOccurred())
			r.signals <- os.Interrupt
			Eventually(r.ended).WithTimeout(patience).Should(Receive(BeNil()))
		})

		It("returns 503 on /healthz, refuses new connections, and exits after open ones close", func() {
			c := withoutPortal()
			r, now := serve(c)
			to := listener(now)
			open := connect(to)
			r.signals <- syscall.SIGTERM
			Eventually(func() int { return healthz(c.HealthzAddress) }).WithTimeout(patience).Should(Equal(http.StatusServiceUnavailable))
			Eventually(func() error {
				late, err := net.Dial("tcp", to)
				if err == nil {
					late.Close() // accepted before the listener was closed
				}
				return err
			}).WithTimeout(patience).Should(MatchError(syscall.ECONNREFUSED))
			Expect(say(open)).To(Succeed())
			Expect(r.ended).NotTo(Receive())
			Expect(healthz(c.HealthzAddress)).To(Equal(http.StatusServiceUnavailable), "HTTP is served until it exits")
			open.Close()
			Eventually(r.ended).WithTimeout(patience).Should(Receive(BeNil()))
			Expect(healthz(c.HealthzAddress)).To(BeZero())
		})

		It("resets connections on a second signal", func() {
			r, now := serve(withoutPortal())
			open := connect(listener(now))
			r.signals <- syscall.SIGTERM
			r.signals <- syscall.SIGTERM
			Eventually(r.ended).WithTimeout(patience).Should(Receive(BeNil()))
			Expect(r.said).To(gbytes.Say("reset the connections that were still open"))
			Expect(say(open)).NotTo(Succeed())
		})

		It("resets connections after the drain timeout, and records their ends before it exits", func() {
			c := withoutPortal()
			c.DrainTimeout = 0
			path := filepath.Join(GinkgoT().TempDir(), "access.log")
			c.AccessLog.Path, c.AccessLog.Format = path, accesslog.Text
			var ends []trace.Event
			c.OnTrace = func(ctx context.Context, steps *trace.Reader) {
				buf := make([]trace.Event, 16)
				for {
					n, _, err := steps.Next(ctx, buf)
					if err != nil {
						return
					}
					for _, e := range buf[:n] {
						if e.Kind == trace.Closed {
							ends = append(ends, e)
						}
					}
				}
			}
			r, now := serve(c)
			connect(listener(now))
			r.signals <- syscall.SIGTERM
			Eventually(r.ended).WithTimeout(patience).Should(Receive(BeNil()))
			Expect(ends).To(HaveExactElements(HaveField("End.Outcome", outcome.Drained)))
			Expect(os.ReadFile(path)).To(ContainSubstring("drained"))
		})

		It("leaves no goroutine running and no address in use", func() {
			before := gleak.Goroutines()
			c := withoutPortal()
			addresses := []string{c.HealthzAddress, free(), free(), free()}
			c.AdminAddress, c.SOCKS, c.Names = addresses[1], socksAt(addresses[2]), namesAt(addresses[3])
			r, now := serve(c)
			connect(listener(now)).Close()
			r.signals <- syscall.SIGTERM
			Eventually(r.ended).WithTimeout(patience).Should(Receive(BeNil()))
			for _, address := range addresses {
				l, err := net.Listen("tcp", address)
				Expect(err).NotTo(HaveOccurred())
				l.Close()
			}
			Eventually(gleak.Goroutines).WithTimeout(patience).ShouldNot(gleak.HaveLeaked(before, echoes))
		})
	})

	Describe("with a part that fails to start", func() {
		DescribeTable("names the part in its error, and stops the parts already started",
			func(says string, change func(c *Config)) {
				before := gleak.Goroutines()
				c := withoutPortal()
				c.AdminAddress, c.HardFail = free(), true
				change(&c)
				r := begin(c)
				var err error
				Eventually(r.ended).WithTimeout(patience).Should(Receive(&err))
				Expect(err).To(MatchError(HavePrefix(says)))
				Expect(r.ready).NotTo(Receive())
				Expect(healthz(c.HealthzAddress)).To(BeZero())
				if !strings.Contains(says, "admin-address") {
					Expect(healthz(c.AdminAddress)).To(BeZero())
				}
				Eventually(gleak.Goroutines).WithTimeout(patience).ShouldNot(gleak.HaveLeaked(before, echoes))
			},
			Entry("the access log", "--access-log: open /no/such/folder/log", func(c *Config) { c.AccessLog.Path = "/no/such/folder/log" }),
			Entry("the admin server", "--admin-address: listen tcp", func(c *Config) { c.AdminAddress = taken() }),
			Entry("the SOCKS server", "--socks: listen tcp", func(c *Config) { c.SOCKS = socksAt(taken()) }),
			Entry("the DNS server", "--dns: listen udp", func(c *Config) { c.Names = namesAt(taken()) }),
		)
	})
})

// echoes matches the goroutines of the specs' own endpoints and clients.
var echoes = gleak.IgnoringInBacktrace("test/lab")
