package admin_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"sync"
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
	"github.com/usherproxy/usher/proxy/admin/api"
	"github.com/usherproxy/usher/proxy/outcome"
	"github.com/usherproxy/usher/proxy/stream"
	"github.com/usherproxy/usher/proxy/trace"
	"github.com/usherproxy/usher/test/lab"
)

// node is a real proxy with the portal none, and its API on a real server.
type node struct {
	proxy   *proxy.Proxy
	metrics *admin.Metrics
	reports config.Reports
	health  *admin.Health
	url     string
	addr    string
}

func newNode(change ...func(*proxy.Options)) *node {
	GinkgoHelper()
	pt, err := none.Mode.New(context.Background(), portal.Options{})
	Expect(err).NotTo(HaveOccurred())
	log := logrus.New()
	log.SetOutput(GinkgoWriter)
	o := proxy.Defaults()
	o.Portal, o.Log, o.Trace, o.SCTP = pt, log, trace.NewLog(1000), stream.SCTPOff
	o.FirstTurn = nil                     // starts with the first endpoint, as the specs expect
	o.Quarantine.First = 10 * time.Second // longer than any spec
	o.Schedule = []time.Duration{100 * time.Millisecond, 100 * time.Millisecond}
	for _, f := range change {
		f(&o)
	}
	n := &node{proxy: proxy.New(o)}
	h := &admin.Health{Sync: n.proxy.SyncStatus, Timeout: time.Minute}
	n.health = h
	a := admin.NewAPI(n.proxy, admin.APIOptions{Version: "v1", Reports: n.reports.All, Health: h})
	n.metrics = admin.NewMetrics(a, nil)
	server, err := admin.Serve("127.0.0.1:0", admin.Guard("127.0.0.1:0", admin.Handler(a, n.metrics.Registry, nil)), admin.MaxAdminClients)
	Expect(err).NotTo(HaveOccurred())
	n.addr, n.url = server.Addr, "http://"+server.Addr
	DeferCleanup(func() {
		server.Close()
		n.proxy.Stop()
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		n.proxy.Drain(ctx)
	})
	return n
}

// get requests a path below /api/v1 and decodes the response.
func (n *node) get(path string, into any) int {
	GinkgoHelper()
	res, err := http.Get(n.url + api.Prefix + path)
	Expect(err).NotTo(HaveOccurred())
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	Expect(err).NotTo(HaveOccurred())
	Expect(json.Unmarshal(body, into)).To(Succeed(), "%s", body)
	return res.StatusCode
}

// fails requests a path that must fail, and returns the error message.
func (n *node) fails(path string) string {
	GinkgoHelper()
	var e api.Error
	code := n.get(path, &e)
	Expect(e.Code).To(Equal(code))
	return fmt.Sprintf("%d %s", code, e.Message)
}

// client connects to a Service, and returns the connection and the response.
func (n *node) client(service string) (net.Conn, string) {
	GinkgoHelper()
	for _, s := range n.proxy.Status() {
		if s.Port.ID.Service == service && len(s.Listeners) > 0 {
			c, err := net.Dial("tcp", s.Listeners[0].String())
			Expect(err).NotTo(HaveOccurred())
			DeferCleanup(func() { c.Close() })
			buf := make([]byte, 16)
			got, _ := c.Read(buf)
			return c, string(buf[:got])
		}
	}
	Fail("no listener for Service " + service)
	return nil, ""
}

// answering starts an endpoint that sends hello and waits until the client closes.
func answering() netip.AddrPort {
	GinkgoHelper()
	return lab.Backend(func(c net.Conn) {
		fmt.Fprint(c, "hello")
		_, _ = io.Copy(io.Discard, c)
	})
}

// service returns a Service with one port. Its endpoints are Pods of this node.
func service(name, vip string, endpoints ...netip.AddrPort) config.Service {
	port := config.ServicePort{
		ID:       config.PortID{Namespace: "default", Service: name, Port: "main", Family: config.IPv4},
		Protocol: config.TCP,
		Policy:   config.DefaultPolicy(),
		VIPs:     []config.VIP{{Kind: config.ClusterIP, Addr: netip.MustParseAddr(vip), Port: 80}},
	}
	for i, e := range endpoints {
		port.Endpoints = append(port.Endpoints, config.Endpoint{Addr: e, Pod: fmt.Sprintf("default/%s-%d", name, i), Ready: true, Serving: true})
	}
	port.Cluster, port.Internal, port.External = port.Endpoints, port.Endpoints, port.Endpoints
	return config.Service{Name: types.NamespacedName{Namespace: "default", Name: name}, Ports: []config.ServicePort{port}}
}

var _ = Describe("the API of a proxy", func() {
	var n *node
	BeforeEach(func() { n = newNode() })

	It("serves every documented route", func() {
		n.proxy.Apply([]config.Service{service("web", "10.96.0.1", answering())})
		n.client("web")
		fill := strings.NewReplacer("{namespace}", "default", "{name}", "web", "{id}", "1")
		for _, r := range api.Routes {
			path := fill.Replace(r.Path)
			for _, p := range r.Params {
				if p.Required && p.In == "query" {
					path += "?" + p.Name + "=web"
				}
			}
			if r.Stream {
				path += "?follow=false"
			}
			res, err := http.Get(n.url + api.Prefix + path)
			Expect(err).NotTo(HaveOccurred())
			res.Body.Close()
			Expect(res.StatusCode).To(Equal(200), path)
		}
		var described map[string]any
		Expect(n.get("/openapi.json", &described)).To(Equal(200))
		Expect(described["paths"]).To(HaveLen(len(api.Routes)))
	})

	It("says why each endpoint is not used", func() {
		web := service("web", "10.96.0.1")
		port := &web.Ports[0]
		add := func(host string, e config.Endpoint) config.Endpoint {
			e.Addr = netip.MustParseAddrPort(host + ":80")
			port.Endpoints = append(port.Endpoints, e)
			return e
		}
		here := add("10.1.0.1", config.Endpoint{Ready: true, Serving: true})
		there := add("10.1.0.2", config.Endpoint{Ready: true, Serving: true})
		add("10.1.0.3", config.Endpoint{})
		add("10.1.0.4", config.Endpoint{Serving: true, Terminating: true})
		add("10.1.0.5", config.Endpoint{Terminating: true})
		add("10.1.0.6", config.Endpoint{Ready: true, Serving: true})
		port.Cluster, port.Internal, port.ExternalLocal = []config.Endpoint{here, there}, []config.Endpoint{here, there}, true
		port.External = []config.Endpoint{here}
		n.proxy.Apply([]config.Service{web})
		var detail api.ServiceDetail
		n.get("/services/default/web", &detail)
		why := map[string]string{}
		for _, e := range detail.Details[0].Endpoints {
			why[e.Address] = e.NotUsed
		}
		Expect(why).To(Equal(map[string]string{
			"10.1.0.1:80": "",
			"10.1.0.2:80": "for external: it is on another node, and the policy is Local",
			"10.1.0.3:80": "it is not ready",
			"10.1.0.4:80": "its Pod is terminating and others are ready",
			"10.1.0.5:80": "its Pod is terminating and no longer serves",
			"10.1.0.6:80": "the EndpointSlice's hints reserve it for other nodes or zones",
		}))
	})

	Describe("a Service with an endpoint that refuses connections", func() {
		var bad, good netip.AddrPort
		BeforeEach(func() {
			bad, good = lab.Refusing(), answering()
			n.proxy.Apply([]config.Service{service("web", "10.96.0.1", bad, good)})
			_, hello := n.client("web")
			Expect(hello).To(Equal("hello"))
		})

		It("is degraded; its details show the quarantined endpoint, the time left and the cause", func() {
			var list api.ServiceList
			n.get("/services", &list)
			Expect(list.Total).To(Equal(1))
			Expect(list.Items[0].State).To(Equal(api.ServiceDegraded))
			Expect(list.Items[0].Endpoints).To(Equal(api.EndpointCounts{Total: 2, Ready: 1, Quarantined: 1}))

			var port api.ServicePort
			Eventually(func() api.Totals { // the client may have read bytes that are counted a moment later
				var detail api.ServiceDetail
				n.get("/services/default/web", &detail)
				port = detail.Details[0]
				return port.Totals
			}).Should(Equal(api.Totals{Active: 1, Accepted: 1, Established: 1, Attempts: 2, AttemptsFailed: 1, Retries: 1, BytesToClient: 5}))
			Expect(port.VIPs).To(Equal([]api.VIP{{Kind: "ClusterIP", Address: "10.96.0.1:80"}}))
			Expect(port.Policies).To(Equal(api.Policies{Internal: "Cluster", External: "Cluster"}))
			at := map[string]api.Endpoint{}
			for _, e := range port.Endpoints {
				at[e.Address] = e
			}
			q := at[bad.String()].Quarantine
			Expect(q).NotTo(BeNil())
			Expect(q.Cause).To(Equal("connection refused"))
			Expect(q.SecondsLeft).To(BeNumerically("~", 10, 5))
			Expect(q.Probed).To(BeTrue())
			Expect(at[bad.String()].UsedFor).To(Equal([]string{"internal", "external", "node"}))
			Expect(at[good.String()].State).To(Equal(api.EndpointReady))
			Expect(at[good.String()].Active).To(BeEquivalentTo(1))
		})

		It("has a connection with both attempts while it is open and after it has ended", func() {
			var list api.ConnectionList
			n.get("/connections?client=127.0.0.0/8&retried=true", &list)
			Expect(list.Items).To(HaveLen(1))
			c := list.Items[0]
			Expect(c.State).To(Equal(api.Established))
			Expect(c.Endpoint).To(Equal(good.String()))
			Expect(c.Pod).To(Equal("default/web-1"))
			Expect(c.Attempts).To(HaveLen(2))
			Expect(c.Attempts[0].Endpoint + " " + c.Attempts[0].Result).To(Equal(bad.String() + " refused"))
			Expect(c.Attempts[1].Endpoint + " " + c.Attempts[1].Result).To(Equal(good.String() + " connected"))
			Expect(c.Attempts[1].StartMs).To(BeNumerically(">=", c.Attempts[0].StartMs+c.Attempts[0].DurationMs-1e-9), "except for rounding")

			n.proxy.Stop()
			ctx, cancel := context.WithCancel(context.Background())
			cancel()
			n.proxy.Drain(ctx)
			var ended api.Connection
			Expect(n.get(fmt.Sprintf("/connections/%d", c.ID), &ended)).To(Equal(200))
			Expect(ended.State).To(Equal(api.Ended))
			Expect(ended.End).To(Equal(outcome.Drained.String()))
			Expect(ended.BytesToClient).To(BeEquivalentTo(5))
			Expect(ended.Attempts).To(Equal(c.Attempts))
			n.get("/connections", &list)
			Expect(list.Items).To(BeEmpty())
			n.get("/connections?end=drained", &list)
			Expect(list.Items).To(HaveLen(1))
			n.get("/connections?state=all&endpoint=default/web-0", &list)
			Expect(list.Items).To(HaveLen(1), "it was tried")
			n.get("/connections?state=all&endpoint=default/other", &list)
			Expect(list.Items).To(BeEmpty())
		})

		It("has connection steps and the quarantine in one event stream", func() {
			s := n.subscribe("follow=false", "")
			Expect(s.kinds()).To(Equal([]string{"service-added", "accepted", "attempt", "endpoint-quarantined", "attempt", "established"}))
			Expect(s.events[0].Count).To(Equal(2))
			Expect(s.events[2].Result).To(Equal("refused"))
			Expect(s.events[2].Source).To(Equal("node-itself"))
			Expect(n.subscribe("follow=false&outcome=retry", "").kinds()).To(Equal([]string{"attempt", "attempt"}))
			Expect(n.subscribe("follow=false&kind=changes&service=default/web", "").kinds()).To(Equal([]string{"service-added", "endpoint-quarantined"}))
			Expect(n.subscribe("follow=false&endpoint="+good.String(), "").kinds()).To(Equal([]string{"attempt", "established"}))
			Expect(n.subscribe("follow=false&client=10.0.0.1", "").kinds()).To(BeEmpty())
			Expect(n.subscribe("follow=false&service=default/other", "").kinds()).To(BeEmpty())
			Expect(n.subscribe("follow=false", s.events[3].ID).kinds()).To(Equal([]string{"attempt", "established"}), "Last-Event-ID")
		})

		It("is explained with the order of endpoints, without advancing the rotation", func() {
			ask := func() (x api.Explanation) {
				n.get("/explain?service=default/web&client=192.0.2.2", &x)
				return x
			}
			x := ask()
			Expect(x.Verdict).To(Equal(api.WouldTry))
			Expect(x.Order).To(HaveLen(2))
			Expect(x.Order[0].Endpoint).To(Equal(good.String()))
			Expect(x.Order[1].Endpoint).To(Equal(bad.String()))
			Expect(x.Order[1].Reason).To(Equal("only one left"))
			Expect(x.Order[1].Text).To(ContainSubstring("in quarantine until a probe succeeds, next in "))
			Expect(x.ScheduleMs).To(Equal([]float64{100, 100}))
			again := ask()
			again.Order[1], x.Order[1] = api.Candidate{}, api.Candidate{} // they depend on the time
			again.Text, x.Text = nil, nil
			Expect(again).To(Equal(x))
		})
	})

	It("shows the probe settings and the failures of probes", func() {
		bad, good := lab.Refusing(), answering()
		svc := service("web", "10.96.0.1", bad, good)
		svc.Ports[0].Probe = config.Probe{Check: config.Check{Kind: config.CheckTCP}, Interval: 50 * time.Millisecond, Timeout: 10 * time.Second, Rise: 1, Fall: 2}
		n.proxy.Apply([]config.Service{svc})
		var detail api.ServiceDetail
		Eventually(func() api.ServiceState {
			n.get("/services/default/web", &detail)
			return detail.State
		}).WithTimeout(10 * time.Second).Should(Equal(api.ServiceDegraded))
		Expect(detail.Ports[0].Settings).To(Equal(map[string]string{"probe": "tcp", "probe-interval": "50ms", "probe-timeout": "10s", "probe-rise": "1", "probe-fall": "2",
			"scheduler": "rr", "queue-timeout": "30s", "half-closed-timeout": "10m", "udp-idle-timeout": "2m", "access-log": "true"}))
		for _, e := range detail.Details[0].Endpoints {
			if e.Address == good.String() {
				Expect(e.State).To(Equal(api.EndpointReady))
				continue
			}
			Expect(e.Quarantine.Probed).To(BeTrue())
			Expect(e.Quarantine.Failures).To(BeNumerically(">=", 2))
			Expect(e.Quarantine.Cause).To(MatchRegexp(`^\d+ probes failed: connection refused$`))
		}
		var x api.Explanation
		n.get("/explain?service=web", &x)
		Expect(x.Text).To(ContainElement("Endpoints are probed every 50 ms, by tcp: after 2 that fail in a row one is in quarantine, until 1 in a row succeed."))
		Expect(x.Order[1].Endpoint).To(Equal(bad.String()))
		Expect(x.Order[1].Text).To(MatchRegexp(`^in quarantine until its probes succeed, next (now|in \S+ \S+) \(\d+ probes failed: connection refused\)`))
	})

	It("shows the source address that an endpoint sees, and why", func() {
		n.proxy.Apply([]config.Service{service("web", "10.96.0.1", answering())})
		n.client("web")
		var services api.ServiceList
		n.get("/services", &services)
		Expect(services.Items[0].Ports[0].Sees).To(Equal(api.Sees{Source: "node-portal", SourceText: "this node's address, because only the iptables and nftables portals can route replies back"}))
		var connections api.ConnectionList
		n.get("/connections", &connections)
		Expect(connections.Items[0].Attempts[0].Sees).To(Equal(api.Sees{Source: "node-itself", SourceText: "this node's address, because the client is a process of this node"}))
		var x api.Explanation
		n.get("/explain?service=web", &x)
		Expect(x.Order[0].Source).To(Equal("node-portal"), "for an unspecified client")
		n.get("/explain?service=web&client=127.0.0.1", &x)
		Expect(x.Order[0].Source).To(Equal("node-itself"))
		Expect(x.Text).To(ContainElement(HaveSuffix(". It sees this node's address, because the client is a process of this node.")))
		for _, family := range n.gather() {
			if family.GetName() == "usher_endpoint_source_address_total" {
				Expect(family.Metric).To(HaveLen(portal.SourceAddressCount - 1))
				for _, m := range family.Metric {
					Expect(m.Counter.GetValue() == 1).To(Equal(m.Label[0].GetValue() == "node-itself"), m.String())
				}
			}
		}
	})

	DescribeTable("plans the settings and the source address of a Service as it serves them", func(own, all bool) {
		n := newNode(func(o *proxy.Options) { o.NodeAddress = all })
		svc := service("web", "10.96.0.1")
		svc.Ports[0].SlowStart, svc.Ports[0].AccessLog, svc.Ports[0].NodeAddress = time.Minute, false, own // there is no log
		n.proxy.Apply([]config.Service{svc})
		var detail api.ServiceDetail
		n.get("/services/default/web", &detail)
		var status api.Status
		n.get("/status", &status)
		planned, served := admin.Planned(svc.Ports[0], status.Settings), detail.Details[0]
		Expect(planned.Settings).To(HaveKeyWithValue("slow-start", "1m"))
		Expect(planned.Settings).To(Equal(served.Settings))
		Expect(planned.Source == "node-configured").To(Equal(served.Source == "node-configured"))
	},
		Entry("without an annotation", false, false), Entry("with an annotation", true, false), Entry("with --client-address=node", false, true),
	)

	It("predicts the endpoint that the next connection gets", func() {
		a, b, c := answering(), answering(), answering()
		n.proxy.Apply([]config.Service{service("web", "10.96.0.1", a, b, c)})
		for range 5 {
			var x api.Explanation
			n.get("/explain?service=web", &x)
			n.client("web")
			var list api.ConnectionList
			n.get("/connections?limit=1", &list)
			Expect(list.Items[0].Endpoint).To(Equal(x.Order[0].Endpoint))
		}
	})

	It("gives no schedule for UDP", func() {
		dns := service("dns", "10.96.0.1", answering())
		dns.Ports[0].Protocol = config.UDP
		n.proxy.Apply([]config.Service{dns})
		var x api.Explanation
		n.get("/explain?service=dns", &x)
		Expect(x.Verdict).To(Equal(api.WouldTry))
		Expect(x.ScheduleMs).To(And(BeEmpty(), Not(BeNil())))
	})

	It("explains the VIPs that are served, if another one is in conflict", func() {
		web := service("web", "10.96.0.1", answering())
		n.proxy.Apply([]config.Service{web})
		other := service("other", "10.96.0.2", answering())
		other.Ports[0].VIPs = append(other.Ports[0].VIPs, config.VIP{Kind: config.ExternalIP, Addr: web.Ports[0].VIPs[0].Addr, Port: web.Ports[0].VIPs[0].Port})
		n.proxy.Apply([]config.Service{other})
		var works, conflicts api.Explanation
		n.get("/explain?service=other&vip=10.96.0.2", &works)
		n.get("/explain?service=other&vip=10.96.0.1", &conflicts)
		Expect(works.Verdict).To(Equal(api.WouldTry))
		Expect(works.Order).To(HaveLen(1))
		Expect(conflicts.Verdict).To(Equal(api.WouldFail))
	})

	It("explains affinity, policies, source ranges and missing endpoints", func() {
		sticky := service("sticky", "10.96.0.1", answering(), answering())
		sticky.Ports[0].AffinityTimeout = time.Hour
		limited := service("limited", "10.96.0.2", answering())
		limited.Ports[0].VIPs[0].Sources = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}
		elsewhere := service("elsewhere", "10.96.0.3", answering())
		elsewhere.Ports[0].Internal, elsewhere.Ports[0].InternalLocal = nil, true
		leaving := service("leaving", "10.96.0.4", answering(), answering())
		leaving.Ports[0].Endpoints[1].Ready, leaving.Ports[0].Endpoints[1].Terminating = false, true
		leaving.Ports[0].Cluster = leaving.Ports[0].Endpoints[:1]
		leaving.Ports[0].Internal, leaving.Ports[0].External = leaving.Ports[0].Cluster, leaving.Ports[0].Cluster
		behind := service("behind", "10.96.0.6", answering())
		behind.Ports[0].ProxyProtocol = config.ProxyV1
		behind.Ports[0].VIPs[0].Sources = limited.Ports[0].VIPs[0].Sources
		behind.Ports[0].VIPs[0].Balancers = &config.Balancers{Networks: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}
		n.proxy.Apply([]config.Service{sticky, limited, elsewhere, leaving, behind, service("empty", "10.96.0.5")})
		var away api.ServiceList
		Expect(n.get("/services?name=elsewhere", &away)).To(Equal(200))
		Expect(away.Items[0].State).To(Equal(api.ServiceNoLocalEndpoints))
		Expect(away.Items[0].Ports[0].Dropped).To(Equal([]api.Dropped{{Clients: "internal", Text: "internalTrafficPolicy is Local, and no usable endpoint is on this node"}}))
		explain := func(query string) (x api.Explanation) {
			GinkgoHelper()
			Expect(n.get("/explain?service="+query, &x)).To(Equal(200))
			return x
		}
		n.client("sticky")
		var entries api.AffinityList
		n.get("/affinity?client=127.0.0.1", &entries)
		Expect(entries.Items).To(HaveLen(1))
		Expect(entries.Items[0].SecondsLeft).To(BeNumerically("~", 3600, 10))
		x := explain("sticky&client=127.0.0.1")
		Expect(x.Order[0].Endpoint).To(Equal(entries.Items[0].Endpoint))
		Expect(x.Order[0].Reason).To(Equal("affinity"))
		Expect(x.Affinity.Pod).To(Equal(entries.Items[0].Pod))
		Expect(explain("sticky&client=127.0.0.9").Affinity).To(BeNil())

		Expect(explain("limited&client=198.51.100.1").Verdict).To(Equal(api.WouldRefuse))
		Expect(explain("limited&client=192.0.2.7").Verdict).To(Equal(api.WouldTry))
		x = explain("behind&client=10.0.0.1")
		Expect(x.Verdict).To(Equal(api.WouldTry))
		Expect(x.Text).To(ContainElements(ContainSubstring("10.0.0.1 is a load balancer"), ContainSubstring("PROXY protocol v1")))
		var list api.ServiceList
		n.get("/services?q=behind", &list)
		Expect(list.Items[0].Ports[0].ProxyProtocol).To(HaveValue(Equal(api.ProxyProtocol{ToEndpoints: "v1", From: []string{"10.0.0.0/8"}})))
		x = explain("elsewhere")
		Expect(x.Verdict).To(Equal(api.WouldReject))
		Expect(x.Policy).To(ContainSubstring("internalTrafficPolicy Local"))
		Expect(x.NotTried[0].Reason).To(Equal("policy-local"))
		Expect(x.Text).To(ContainElement("The policy is Local and no usable endpoint is on this node: the client is refused."))
		Expect(x.ScheduleMs).To(HaveLen(2))
		x = explain("leaving")
		Expect(x.NotTried).To(HaveLen(1))
		Expect(x.NotTried[0].Reason).To(Equal("terminating"))
		Expect(explain("empty").Verdict).To(Equal(api.WouldReject))
		for service, text := range map[string]string{"empty": "no usable endpoint, or opening the listener failed", "elsewhere": "no usable endpoint is on this node"} {
			var detail api.ServiceDetail
			n.get("/services/default/"+service, &detail)
			Expect(detail.Details[0].Rules).To(ConsistOf(HaveField("Text", MatchRegexp("^usher does not listen on .*: "+text+"$"))))
		}
		Expect(n.fails("/explain?service=web")).To(Equal("404 service: no Service default/web is served"))
		Expect(n.fails("/explain?service=empty&port=x")).To(Equal(`400 port: Service default/empty has no port "x"; it has main`))
		Expect(n.fails("/explain?service=empty&client=2001:db8::1")).To(MatchRegexp(`^400 client: Service default/empty has no VIP of the IP family of 2001:db8::1; it has 10\.\S+:80$`))
		Expect(n.fails("/explain?service=empty&vip=1.2.3.4")).To(MatchRegexp(`^400 vip: Service default/empty has no VIP 1.2.3.4; it has 10\.\S+:80$`))
		Expect(n.fails("/explain?service=empty&vip=[2001:db8::1]:80")).To(ContainSubstring("has no VIP [2001:db8::1]:80; it has 10."))
		Expect(n.fails("/explain?service=empty&vip=2001:db8::1")).To(ContainSubstring("has no VIP 2001:db8::1; it has 10."))
	})

	It("filters and sorts connections by result, and returns how far back they reach", func() {
		n := newNode(func(o *proxy.Options) {
			o.Trace.Keep(100)
			o.Slow = time.Nanosecond // all connections are slow
		})
		n.proxy.Apply([]config.Service{service("web", "10.96.0.1", lab.Refusing(), answering()), service("down", "10.96.0.2", lab.Refusing())})
		n.client("web") // stays open
		gone, _ := n.client("web")
		gone.Close()
		n.client("down")
		Eventually(func() int64 { return n.proxy.Connections() }).Should(BeEquivalentTo(1))
		find := func(query string) (found []string) {
			var list api.ConnectionList
			Expect(n.get("/connections?"+query, &list)).To(Equal(200), query)
			for _, c := range list.Items {
				found = append(found, fmt.Sprint(c.ID, " ", strings.Join(c.Outcomes, ",")))
			}
			Expect(list.Reaches != nil).To(Equal(query != "state=open"), query)
			return found
		}
		Expect(find("state=open")).To(Equal([]string{"1 retried,slow"}))
		Expect(find("outcome=failed,retried")).To(HaveLen(2), "the second one was not retried")
		Expect(find("outcome=failed")).To(Equal([]string{"3 retried,slow,failed"}))
		Expect(find("outcome=ok")).To(BeEmpty())
		Expect(find("slowerThan=1ns&service=default/web")).To(HaveLen(2))
		Expect(find("slowerThan=1h")).To(BeEmpty())
		Expect(find("last=1h")).To(HaveLen(2), "one is open")
		Expect(find("last=1ns")).To(BeEmpty())
		Expect(find("end=attempts-failed")).To(HaveLen(1))
		for _, by := range []string{"attempts", "duration", "connect", "first-byte"} {
			Expect(find("state=all&limit=1&sort=" + by)).To(HaveLen(1))
		}
		Expect(find("state=all&sort=duration&continue=@2")).To(HaveLen(1))
		Expect(find("state=all&sort=newest&continue=2")).To(Equal([]string{"1 retried,slow"}))
	})

	It("lists each connection once, even if it ends during the request", func() {
		n.proxy.Apply([]config.Service{service("web", "10.96.0.1", answering())})
		var clients []net.Conn
		for range 200 {
			c, _ := n.client("web")
			clients = append(clients, c)
		}
		go func() {
			for _, c := range clients {
				c.Close()
				time.Sleep(time.Millisecond)
			}
		}()
		for n.proxy.Connections() > 0 {
			var list api.ConnectionList
			Expect(n.get("/connections?state=all&limit=500", &list)).To(Equal(200))
			seen := map[uint64]bool{}
			for _, c := range list.Items {
				seen[c.ID] = true
			}
			Expect([]int{list.Total, len(list.Items), len(seen)}).To(Equal([]int{200, 200, 200}))
		}
	})

	It("shows latencies by Service, port and endpoint, and ends of connections by Service and port", func() {
		n.proxy.Apply([]config.Service{service("web", "10.96.0.1", answering(), lab.Refusing()), service("idle", "10.96.0.2", answering())})
		c, _ := n.client("web")
		c.Close()
		Eventually(n.proxy.Connections).Should(BeZero())
		var web, idle api.ServiceDetail
		n.get("/services/default/web", &web)
		n.get("/services/default/idle", &idle)
		Expect(idle.Latency).To(BeNil())
		Expect(idle.Ends).To(BeNil())
		Expect(web.Ends).To(Equal(map[string]int64{"client-closed": 1}))
		Expect(web.Details[0].Ends).To(Equal(web.Ends))
		l := web.Latency
		Expect(l.ConnectP50Ms).To(BeNumerically(">", 0))
		Expect(l.FirstByteP99Ms).To(BeNumerically(">=", l.FirstByteP50Ms))
		Expect(web.Details[0].Latency).To(Equal(l))
		for _, e := range web.Details[0].Endpoints {
			if e.Connected == 0 {
				Expect(e.Latency).To(BeNil())
			} else {
				Expect(e.Latency.Clients).To(Equal(l.Clients))
				Expect(e.Latency.ConnectP99Ms).To(And(BeNumerically(">", 0), BeNumerically("<=", l.ConnectP99Ms)), "without earlier attempts")
				Expect(e.Latency.FirstByteP99Ms).To(And(BeNumerically(">", 0), BeNumerically("<=", l.FirstByteP99Ms)))
			}
		}
		var list api.ConnectionList
		n.get("/connections?state=ended", &list)
		Expect(list.Items[0].FirstByteMs).To(BeNumerically(">=", list.Items[0].ConnectMs))
		Expect(list.Items[0].FirstByteMs).To(BeNumerically("<=", list.Items[0].DurationMs))
	})

	It("pages, filters and sorts Services", func() {
		var all []config.Service
		at := answering()
		for i := range 25 {
			all = append(all, service(fmt.Sprintf("s%02d", i), fmt.Sprintf("10.96.1.%d", i), at))
		}
		// "a-b" sorts after "a" as a name, but before "a/".
		for _, namespace := range []string{"a-b", "a"} {
			s := service("x", "10.96.2."+fmt.Sprint(len(namespace)), at)
			s.Name.Namespace, s.Ports[0].ID.Namespace = namespace, namespace
			all = append(all, s)
		}
		n.proxy.Apply(all)
		n.client("s07")
		var names []string
		for token, more := "", true; more; {
			var list api.ServiceList
			n.get("/services?limit=4&continue="+url.QueryEscape(token), &list)
			Expect(list.Total).To(Equal(27))
			for _, s := range list.Items {
				names = append(names, s.Namespace+"/"+s.Name)
			}
			token, more = list.Continue, list.Continue != ""
		}
		Expect(names).To(HaveLen(27))
		Expect(names[:3]).To(Equal([]string{"a/x", "a-b/x", "default/s00"}))

		one := func(query string) []string {
			var list api.ServiceList
			n.get("/services?"+query, &list)
			var names []string
			for _, s := range list.Items {
				names = append(names, s.Name)
			}
			return names
		}
		Expect(one("q=S1")).To(HaveLen(10))
		Expect(one("q=10.96.1.24")).To(Equal([]string{"s24"}))
		Expect(one("namespace=a")).To(Equal([]string{"x"}))
		Expect(one("service=default/s03&service=default/s05")).To(Equal([]string{"s03", "s05"}))
		Expect(one("sort=active&limit=1")).To(Equal([]string{"s07"}))
		Expect(one("state=down")).To(BeEmpty())
		Expect(one("protocol=UDP")).To(BeEmpty())
	})

	It("names the invalid parameter and the allowed values", func() {
		Expect(n.fails("/services?sort=x")).To(Equal(`400 sort: invalid value "x": must be one of name, active, connections, failed, retries, bytes`))
		Expect(n.fails("/services?limit=0")).To(Equal(`400 limit: invalid value "0": must be a number from 1 to 1000`))
		Expect(n.fails("/services?limi=1")).To(HavePrefix(`400 unknown parameter "limi": must be one of namespace, name`))
		Expect(n.fails("/connections?client=x")).To(Equal(`400 client: invalid value "x": must be an address, an address and port, or a network such as 10.1.0.0/16`))
		Expect(n.fails("/connections?end=x")).To(HavePrefix(`400 end: invalid value "x": must be one of client-closed, endpoint-closed, `))
		Expect(n.fails("/connections?outcome=ok,x")).To(Equal(`400 outcome: invalid value "x": must be one of ok, retried, slow, failed, no-response`))
		Expect(n.fails("/connections?sort=x")).To(Equal(`400 sort: invalid value "x": must be one of newest, attempts, duration, connect, first-byte, bytes`))
		Expect(n.fails("/connections?last=0s")).To(Equal(`400 last: invalid value "0s": must be a time above 0, such as 200ms or 10m`))
		Expect(n.fails("/events?slowerThan=x")).To(Equal(`400 slowerThan: invalid value "x": must be a time above 0, such as 200ms or 10m`))
		Expect(n.fails("/connections?service=a/b")).To(Equal("404 no Service a/b is served, and usher has no record of its connections"))
		Expect(n.fails("/events?kind=x")).To(HavePrefix(`400 kind: invalid value "x": must be one of steps, changes, accepted`))
		Expect(n.fails("/explain")).To(HavePrefix(`400 missing parameter service`))
		Expect(n.fails("/connections/7")).To(HavePrefix("404 connection 7 not found"))
		Expect(n.fails("/services/a/b")).To(Equal("404 no Service a/b is served"))
		Expect(n.fails("/nothing")).To(HavePrefix("404 there is no /api/v1/nothing"))
	})
})

var _ = Describe("concurrent requests", func() {
	It("are limited: a further one gets 503, but not for portals and health", func() {
		n := newNode()
		begun, release := make(chan struct{}), make(chan struct{})
		a := admin.NewAPI(n.proxy, admin.APIOptions{Health: n.health, Reports: func() []config.Report {
			begun <- struct{}{}
			<-release
			return nil
		}})
		handler := admin.Handler(a, n.metrics.Registry, nil)
		get := func(path string) *httptest.ResponseRecorder {
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
			return w
		}
		var running sync.WaitGroup
		defer running.Wait()
		for range 4 {
			running.Go(func() {
				defer GinkgoRecover()
				Expect(get(api.Prefix + "/services").Code).To(Equal(http.StatusOK))
			})
			Eventually(begun).Should(Receive())
		}
		w := get(api.Prefix + "/connections")
		Expect(w.Code).To(Equal(http.StatusServiceUnavailable))
		Expect(w.Body.String()).To(ContainSubstring("too many concurrent requests (at most 4); try again"))
		Expect(get(api.Prefix + "/portals").Code).To(Equal(http.StatusOK))
		Expect(get("/livez").Code).To(Equal(http.StatusOK))
		close(release)
		running.Wait()
		Expect(get(api.Prefix + "/connections").Code).To(Equal(http.StatusOK))
	})
})

// subscription is the data read from a stream that has ended.
type subscription struct {
	events   []api.Event
	missed   []uint64
	position string // the last ID
}

// subscribe reads events until the stream ends.
func (n *node) subscribe(query, last string) (s subscription) {
	GinkgoHelper()
	req, err := http.NewRequest(http.MethodGet, n.url+api.Prefix+"/events?"+query, nil)
	Expect(err).NotTo(HaveOccurred())
	if last != "" {
		req.Header.Set("Last-Event-ID", last)
	}
	res, err := http.DefaultClient.Do(req)
	Expect(err).NotTo(HaveOccurred())
	defer res.Body.Close()
	Expect(res.Header.Get("Content-Type")).To(Equal("text/event-stream"))
	lines := bufio.NewScanner(res.Body)
	name := ""
	for lines.Scan() {
		field, value, _ := strings.Cut(lines.Text(), ": ")
		switch {
		case field == "event":
			name = value
		case field == "id":
			s.position = value
		case field == "data" && name == api.StreamMissed:
			var m api.Missed
			Expect(json.Unmarshal([]byte(value), &m)).To(Succeed())
			s.missed = append(s.missed, m.Missed)
		case field == "data" && name != api.StreamHello:
			var e api.Event
			Expect(json.Unmarshal([]byte(value), &e)).To(Succeed())
			s.events = append(s.events, e)
		}
	}
	return s
}

func (s subscription) kinds() (list []string) {
	for _, e := range s.events {
		list = append(list, e.Kind)
	}
	return list
}
