package admin_test

import (
	"encoding/json"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/sirupsen/logrus"
	"k8s.io/apimachinery/pkg/types"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/portal/none"
	"github.com/usherproxy/usher/proxy"
	"github.com/usherproxy/usher/proxy/admin"
	"github.com/usherproxy/usher/proxy/trace"
)

func TestAdmin(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "admin")
}

func get(h http.Handler, path string) (int, string) {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	return w.Code, w.Body.String()
}

var _ = Describe("health", func() {
	var status proxy.SyncStatus
	var h *admin.Health
	var handler http.Handler
	BeforeEach(func() {
		status = proxy.SyncStatus{LastQueued: time.Now(), LastApplied: time.Now()}
		h = &admin.Health{Sync: func() proxy.SyncStatus { return status }, Timeout: time.Minute}
		handler = admin.HealthHandler(h)
	})
	codes := func() [2]int {
		healthz, _ := get(handler, "/healthz")
		livez, _ := get(handler, "/livez")
		return [2]int{healthz, livez}
	}

	It("is 200 while the last requested change is applied", func() {
		Expect(codes()).To(Equal([2]int{200, 200}))
	})
	It("is 200 while a change is pending for less than the timeout", func() {
		status.Pending = time.Now().Add(-59 * time.Second)
		Expect(codes()).To(Equal([2]int{200, 200}))
		status.Pending = time.Now().Add(-61 * time.Second)
		Expect(codes()).To(Equal([2]int{503, 503}))
		Expect(h.Serving()).To(BeFalse())
	})
	It("is alive but not healthy before the initial sync", func() {
		status = proxy.SyncStatus{}
		Expect(codes()).To(Equal([2]int{503, 200}))
	})
	It("is alive but not healthy on a node that is being deleted", func() {
		h.SetLeaving(true)
		Expect(codes()).To(Equal([2]int{503, 200}))
		Expect(h.Serving()).To(BeTrue(), "this is the state of the proxy, not of the node")
		h.SetLeaving(false)
		Expect(codes()).To(Equal([2]int{200, 200}))
	})
	It("reports the health of each IP family, as kube-proxy does", func() {
		n := newNode()
		answer := func(path string) string {
			GinkgoHelper()
			_, body := get(admin.HealthHandler(n.health), path)
			return body
		}
		Expect(answer("/healthz")).To(And(MatchRegexp(`"healthy": *false`), Not(ContainSubstring("status"))))
		Expect(answer("/livez")).To(MatchRegexp(`"healthy": *true`))
		n.proxy.Apply(nil)
		n.health.SetLeaving(true)
		var body struct {
			Healthy, NodeEligible bool
			LastUpdated           time.Time
			Status                map[string]struct {
				LastUpdated time.Time
				Healthy     bool
			}
		}
		Expect(json.Unmarshal([]byte(answer("/healthz")), &body)).To(Succeed())
		Expect(body.Healthy).To(BeTrue(), "this is the state of the proxy, not of the node")
		Expect(body.NodeEligible).To(BeFalse())
		Expect(body.Status).To(HaveLen(2))
		for _, family := range []string{"IPv4", "IPv6"} {
			Expect(body.Status[family].Healthy).To(BeTrue())
			Expect(body.Status[family].LastUpdated).To(BeTemporally("==", body.LastUpdated))
		}
	})
	It("reports times and the state of the API server in JSON", func() {
		since := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
		h.APIServer = func() admin.APIServerStatus {
			return admin.APIServerStatus{Connected: false, Since: since, Reason: "unreachable", Error: "dial tcp 192.0.2.1:6443: connection refused", Remedy: "look"}
		}
		code, body := get(handler, "/healthz")
		Expect(code).To(Equal(200), "usher serves the last known state")
		var answer map[string]any
		Expect(json.Unmarshal([]byte(body), &answer)).To(Succeed())
		Expect(answer).To(HaveKeyWithValue("nodeEligible", true))
		Expect(answer).To(HaveKey("lastUpdated"))
		Expect(answer).To(HaveKey("currentTime"))
		Expect(answer).To(HaveKeyWithValue("apiServer", map[string]any{"connected": false, "since": "2026-01-01T00:00:00Z", "error": "unreachable"}), "the public response omits the details")
	})
})

var _ = Describe("health check node ports", func() {
	var h *admin.HealthChecks
	var serving bool
	var problems []error
	name := types.NamespacedName{Namespace: "default", Name: "web"}
	service := func(port uint16, ready ...bool) config.Service {
		p := config.ServicePort{ExternalLocal: true}
		for i, r := range ready {
			p.External = append(p.External, config.Endpoint{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), 80), Ready: r, Serving: true})
		}
		// Two ports of one Service: endpoints count once.
		return config.Service{Name: name, HealthCheckNodePort: port, Ports: []config.ServicePort{p, p}}
	}
	// free returns a port that no process uses and that lies outside the default ephemeral port range.
	free := func() uint16 {
		GinkgoHelper()
		for range 1000 {
			port := uint16(10000 + rand.IntN(10000))
			if l, err := net.Listen("tcp", ":"+strconv.Itoa(int(port))); err == nil {
				l.Close()
				return port
			}
		}
		Fail("there is no free port from 10000 to 19999")
		return 0
	}
	ask := func(port uint16) (int, string, string) {
		GinkgoHelper()
		client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		res, err := client.Get("http://127.0.0.1:" + strconv.Itoa(int(port)) + "/")
		Expect(err).NotTo(HaveOccurred())
		defer res.Body.Close()
		body, err := io.ReadAll(res.Body)
		Expect(err).NotTo(HaveOccurred())
		return res.StatusCode, res.Header.Get("X-Load-Balancing-Endpoint-Weight"), strings.TrimSpace(string(body))
	}
	BeforeEach(func() {
		serving, problems = true, nil
		log := logrus.New()
		log.SetOutput(GinkgoWriter)
		h = &admin.HealthChecks{Serving: func() bool { return serving }, Log: log,
			OnProblem: func(_ types.NamespacedName, err error) { problems = append(problems, err) }}
		DeferCleanup(h.Close)
	})

	It("answer only in the configured networks, also after these change", func() {
		port := free()
		h.SetNetworks([]netip.Prefix{netip.MustParsePrefix("::/128")})
		h.Apply([]config.Service{service(port, true)})
		Expect(net.Dial("tcp", "127.0.0.1:"+strconv.Itoa(int(port)))).Error().To(HaveOccurred())
		h.SetNetworks([]netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")})
		code, _, _ := ask(port)
		Expect(code).To(Equal(200))
		h.SetNetworks([]netip.Prefix{netip.MustParsePrefix("::/128")})
		Expect(net.Dial("tcp", "127.0.0.1:"+strconv.Itoa(int(port)))).Error().To(HaveOccurred())
	})

	It("answer 200 with the number of ready endpoints on this node, 503 without any", func() {
		port := free()
		h.Apply([]config.Service{service(port, true, true, false)})
		code, weight, body := ask(port)
		Expect(code).To(Equal(200))
		Expect(weight).To(Equal("2"))
		Expect(body).To(Equal(`{"service":{"namespace":"default","name":"web"},"localEndpoints":2,"serviceProxyHealthy":true}`))

		h.Apply([]config.Service{service(port, false)})
		code, weight, body = ask(port)
		Expect(code).To(Equal(503))
		Expect(weight).To(Equal("0"))
		Expect(body).To(ContainSubstring(`"localEndpoints":0`))
	})

	It("count the endpoints of the IP family by which they are asked, as kube-proxy does", func() {
		port := free()
		svc := service(port, true)
		six := config.ServicePort{ExternalLocal: true}
		for _, addr := range []string{"[fd00::1]:80", "[fd00::2]:80"} {
			six.External = append(six.External, config.Endpoint{Addr: netip.MustParseAddrPort(addr), Ready: true})
		}
		svc.Ports = append(svc.Ports, six)
		h.Apply([]config.Service{svc})
		weight := func(host string) string {
			GinkgoHelper()
			res, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Get("http://" + net.JoinHostPort(host, strconv.Itoa(int(port))))
			Expect(err).NotTo(HaveOccurred())
			res.Body.Close()
			return res.Header.Get("X-Load-Balancing-Endpoint-Weight")
		}
		Expect(weight("127.0.0.1")).To(Equal("1"))
		Expect(weight("::1")).To(Equal("2"))
	})

	It("answer 503 while the proxy is unhealthy", func() {
		port := free()
		h.Apply([]config.Service{service(port, true)})
		serving = false
		code, _, body := ask(port)
		Expect(code).To(Equal(503))
		Expect(body).To(ContainSubstring(`"serviceProxyHealthy":false`))
	})

	It("follow changes of the Service's port and close when it is removed", func() {
		first, second := free(), free()
		for second == first {
			second = free()
		}
		h.Apply([]config.Service{service(first, true)})
		h.Apply([]config.Service{service(second, true)})
		Expect(net.Dial("tcp", "127.0.0.1:"+strconv.Itoa(int(first)))).Error().To(HaveOccurred())
		code, _, _ := ask(second)
		Expect(code).To(Equal(200))
		h.Apply([]config.Service{{Name: name}})
		Expect(net.Dial("tcp", "127.0.0.1:"+strconv.Itoa(int(second)))).Error().To(HaveOccurred())
	})

	It("are reported once and retried if another process uses their port", func() {
		l, err := net.Listen("tcp", ":0")
		Expect(err).NotTo(HaveOccurred())
		port := uint16(l.Addr().(*net.TCPAddr).Port)
		h.Apply([]config.Service{service(port, true)})
		h.Retry()
		Expect(problems).To(HaveLen(1))
		Expect(problems[0]).To(MatchError(ContainSubstring("address already in use")))
		l.Close()
		h.Retry()
		Expect(problems).To(HaveLen(2))
		Expect(problems[1]).To(Succeed())
		code, _, _ := ask(port)
		Expect(code).To(Equal(200))
	})
})

var _ = Describe("the admin handler", func() {
	var handler http.Handler
	BeforeEach(func() {
		pt, err := none.Mode.New(GinkgoT().Context(), portal.Options{})
		Expect(err).NotTo(HaveOccurred())
		o := proxy.Defaults()
		o.Portal, o.Log, o.Trace = pt, logrus.New(), trace.NewLog(10)
		p := proxy.New(o)
		h := &admin.Health{Sync: p.SyncStatus, Timeout: time.Minute}
		a := admin.NewAPI(p, admin.APIOptions{Version: "v1", Health: h})
		m := admin.NewMetrics(a, nil)
		p.OnSync = m.Synced
		m.Increment(GinkgoT().Context(), "200", "GET", "10.96.0.1:443")
		m.Observe(GinkgoT().Context(), "GET", url.URL{Host: "10.96.0.1:443"}, time.Millisecond)
		p.Apply(nil)
		get(admin.HealthHandler(h), "/healthz")
		handler = admin.Handler(a, m.Registry, map[string]string{"portal": "none"})
	})

	It("returns kube-proxy's name for the proxy mode", func() {
		_, body := get(handler, "/proxyMode")
		Expect(body).To(Equal("userspace"))
	})
	It("returns the configuration", func() {
		_, body := get(handler, "/configz")
		Expect(body).To(MatchJSON(`{"portal": "none"}`))
	})
	It("serves kube-proxy's metrics under their names, and usher's own", func() {
		code, body := get(handler, "/metrics")
		Expect(code).To(Equal(200))
		for _, line := range []string{
			`kubeproxy_sync_proxy_rules_duration_seconds_count{ip_family="IPv4"} 1`,
			`kubeproxy_sync_proxy_rules_duration_seconds_count{ip_family="IPv6"} 1`,
			`kubeproxy_sync_full_proxy_rules_duration_seconds_count{ip_family="IPv4"} 1`,
			`kubeproxy_sync_partial_proxy_rules_duration_seconds_count{ip_family="IPv4"} 0`,
			`kubeproxy_network_programming_duration_seconds_count{ip_family="IPv4"} 0`,
			`kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family="IPv4"} 1.`,
			`kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds{ip_family="IPv6"} 1.`,
			"kubeproxy_sync_proxy_rules_service_changes_pending 0",
			"kubeproxy_sync_proxy_rules_endpoint_changes_pending 0",
			`rest_client_requests_total{code="200",host="10.96.0.1:443",method="GET"} 1`,
			`rest_client_request_duration_seconds_count{host="10.96.0.1:443",verb="GET"} 1`,
			`kubeproxy_proxy_healthz_total{code="200"} 1`,
			`kubeproxy_proxy_livez_total{code="503"} 0`,
			`kubeproxy_sync_proxy_rules_no_local_endpoints_total{ip_family="IPv4",traffic_policy="external"} 0`,
			`usher_build_info{portal="none",version="v1"} 1`,
			`usher_attempts_total{result="no-answer"} 0`,
			"usher_connections_open 0",
			"go_goroutines ",
			"process_resident_memory_bytes ",
		} {
			Expect(body).To(ContainSubstring(line))
		}
	})
	It("returns the portals", func() {
		code, body := get(handler, "/api/v1/portals")
		Expect(code).To(Equal(200))
		var answer map[string]any
		Expect(json.Unmarshal([]byte(body), &answer)).To(Succeed())
		Expect(answer).To(HaveKeyWithValue("mode", "none"))
		Expect(answer).To(HaveKey("lastApplied"))
		Expect(answer).NotTo(HaveKey("lastCheck"), "no check has run yet")
		Expect(answer).To(HaveKeyWithValue("rules", BeEmpty()))
	})
	It("encodes portal rules with stable names and values", func() {
		vip := portal.Target{Protocol: portal.TCP, Addr: netip.MustParseAddr("10.96.0.10"), Port: 80}
		rule := portal.Rule{Target: vip, LocalPort: 4000, Comment: "default/web:http", Sources: portal.SourcesOf([]netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")})}
		Expect(json.Marshal(admin.NewPortalRule("nftables", rule))).To(MatchJSON(`{"mode": "nftables", "service": "default/web:http",
			"protocol": "TCP", "vip": "10.96.0.10:80", "action": "redirect", "localPort": 4000, "sources": ["192.0.2.0/24"]}`))
		address := portal.Rule{Target: portal.Target{Addr: netip.MustParseAddr("fd96::10")}}
		Expect(json.Marshal(admin.NewPortalRule("address", address))).To(MatchJSON(`{"mode": "address", "vip": "fd96::10", "action": "address"}`))
	})
	It("is read-only: it rejects POST, PUT and DELETE", func() {
		for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodDelete} {
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, httptest.NewRequest(method, "/metrics", nil))
			Expect(w.Code).To(Equal(http.StatusMethodNotAllowed))
		}
	})
})
