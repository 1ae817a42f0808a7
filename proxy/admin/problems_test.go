package admin_test

import (
	"fmt"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/proxy"
	"github.com/usherproxy/usher/proxy/admin"
	"github.com/usherproxy/usher/proxy/admin/api"
	"github.com/usherproxy/usher/test/lab"
)

var _ = Describe("the list of problems", func() {
	var n *node
	BeforeEach(func() { n = newNode() })
	status := func() (s api.Status) {
		GinkgoHelper()
		Expect(n.get("/status", &s)).To(Equal(200))
		return s
	}

	It("is empty at first", func() {
		n.proxy.Apply([]config.Service{service("web", "10.96.0.1", answering())})
		s := status()
		Expect(s.Problems).To(BeEmpty())
		Expect(s.Attention).To(Equal("no problems"))
	})

	It("covers Services, rejected objects and usher itself", func() {
		since := time.Now().Add(-time.Hour)
		n.health.APIServer = func() admin.APIServerStatus {
			return admin.APIServerStatus{Since: since, Reason: "unreachable", Error: "connection refused", Remedy: "look", Skew: -time.Hour}
		}
		taken := service("taken", "10.96.0.1", answering())
		n.proxy.Apply([]config.Service{service("empty", "10.96.0.3"), service("flaky", "10.96.0.2", lab.Refusing(), answering()), service("web", "10.96.0.1", answering())})
		n.proxy.Apply([]config.Service{taken})
		n.client("flaky")
		name := types.NamespacedName{Namespace: "default", Name: "wrong"}
		n.reports.Set("a.yaml", since, []config.Report{{Object: "Service default/wrong", Service: name, Reason: "ManifestRejected", Message: "a.yaml, document 1: spec.ports[0].port", Remedy: "usher check a.yaml"}})
		n.reports.Set("b.yaml", since, []config.Report{{Object: "b.yaml", Reason: "ManifestRejected", Message: "b.yaml, line 3: syntax"}})

		s := status()
		said := map[string]string{}
		for _, p := range s.Problems {
			said[p.Object+" "+p.Reason] = p.Message
			Expect(p.Since).NotTo(BeZero())
		}
		Expect(said).To(HaveKeyWithValue("usher APIServerFailed", "the API server sends no changes; serving the last known state (unreachable): connection refused"))
		Expect(said).To(HaveKeyWithValue("Service default/taken AddressConflict", ContainSubstring("is not served")))
		Expect(said).To(HaveKeyWithValue("Service default/empty no-endpoints", "none of 0 endpoints is usable"))
		Expect(said).To(HaveKeyWithValue("Service default/flaky degraded", MatchRegexp(`^1 of 2 endpoints: .* \(default/flaky-0\) quarantined, connection refused$`)))
		Expect(said).To(HaveKey("Service default/wrong ManifestRejected"))
		Expect(said).To(HaveKey("b.yaml ManifestRejected"))
		Expect(said).To(HaveKeyWithValue("usher ClockSkew", "the clocks of the API server and this node differ by 1h0m0s"))
		Expect(said).To(HaveLen(7))
		Expect(s.Problems[1].Since).To(BeTemporally("~", since, time.Second))
		Expect(s.Attention).To(HavePrefix("4 Services need attention: default/taken, default/wrong, default/empty and 1 more; the clocks of the API server"))

		var list api.ServiceList
		n.get("/services?state=rejected", &list)
		Expect(list.Total).To(Equal(1))
		Expect(list.Items[0].Name).To(Equal("wrong"))
		Expect(list.Items[0].Problems).To(Equal([]api.Problem{{Reason: "ManifestRejected", Message: "a.yaml, document 1: spec.ports[0].port"}}))
		n.get("/services", &list)
		Expect(list.Total).To(Equal(5))
		var detail api.ServiceDetail
		Expect(n.get("/services/default/wrong", &detail)).To(Equal(200))
		Expect(detail.State).To(Equal(api.ServiceRejected))
	})

	DescribeTable("says that no Service is served yet, until one is,", func(reason, text, message string) {
		n.health.APIServer = func() admin.APIServerStatus {
			return admin.APIServerStatus{Reason: reason, Error: text, Remedy: "look"}
		}
		Expect(status().Problems).To(ConsistOf(And(HaveField("Reason", "NotServing"), HaveField("Message", message))))
		n.proxy.Apply([]config.Service{service("web", "10.96.0.1", answering())})
		Expect(status().Problems).NotTo(ContainElement(HaveField("Reason", "NotServing")), "at once")
	},
		Entry("while the API server does not respond", "", "", "waiting for the initial list from the API server; no Service is served yet"),
		Entry("because the API server refuses", "forbidden", "list services: 403", "the API server sends no Services; none is served (forbidden): list services: 403"),
	)

	It("has one problem of the ports that have the same", func() {
		dns := service("dns", "10.96.0.1", answering())
		dns.Ports[0].Protocol = config.SCTP
		dns.Ports = append(dns.Ports, dns.Ports[0])
		dns.Ports[1].ID.Port, dns.Ports[1].VIPs = "more", []config.VIP{{Kind: config.ClusterIP, Addr: dns.Ports[0].VIPs[0].Addr, Port: 81}}
		n.proxy.Apply([]config.Service{dns})
		Expect(status().Problems).To(ConsistOf(HaveField("Message", "ports default/dns:main, default/dns:more are not served as configured: SCTP is not served: --sctp=off")))
	})

	It("is that clients are refused, if the portal cannot drop packets", func() {
		elsewhere := service("elsewhere", "10.96.0.3", answering())
		elsewhere.Ports[0].Internal, elsewhere.Ports[0].InternalLocal = nil, true
		n.proxy.Apply([]config.Service{elsewhere})
		Expect(status().Problems).To(ConsistOf(HaveField("Message", HaveSuffix("no usable endpoint is on this node: clients are refused"))))
	})

	It("has one problem of a Service whose EndpointSlice has another port name", func() {
		n.proxy.Apply([]config.Service{service("empty", "10.96.0.3")})
		name := types.NamespacedName{Namespace: "default", Name: "empty"}
		n.reports.Set("empty", time.Now(), []config.Report{{Object: "EndpointSlice default/empty-1", Service: name, Reason: "PortNameDiffers", Message: "ports[0].name", Served: true}})
		Expect(status().Problems).To(ConsistOf(And(HaveField("Object", "Service default/empty"), HaveField("Reason", "no-endpoints"),
			HaveField("Message", "none of 0 endpoints is usable; EndpointSlice default/empty-1: ports[0].name"))))
	})

	It("leaves out descriptors if what uses them is near its limit", func() {
		var s proxy.Stats
		s.Descriptors, s.DescriptorLimit = 95, 100
		a := admin.NewAPI(n.proxy, admin.APIOptions{Health: n.health})
		Expect(a.NodeProblems(&s)).To(ConsistOf(HaveField("Message", "95 of 100 descriptors are in use")))
		s.Open, s.Limit = 45, 50
		Expect(a.NodeProblems(&s)).To(ConsistOf(HaveField("Message", "45 of 50 connections are in use")))
	})

	It("has a bound", func() {
		var many []config.Service
		for i := range 300 {
			many = append(many, service(fmt.Sprintf("empty-%03d", i), fmt.Sprintf("10.96.1.%d", i%250+1)))
			many[i].Ports[0].VIPs[0].Port = uint16(1000 + i)
		}
		n.proxy.Apply(many)
		s := status()
		Expect(s.Problems).To(HaveLen(100))
		Expect(s.ProblemsOmitted).To(Equal(200))
		Expect(s.Attention).To(Equal("300 Services need attention: default/empty-000, default/empty-001, default/empty-002 and 297 more"))
	})
})
