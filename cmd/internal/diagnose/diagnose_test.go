package diagnose

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/charmbracelet/x/ansi"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/proxy/admin/api"
	"github.com/usherproxy/usher/proxy/admin/client"
	"github.com/usherproxy/usher/proxy/dns"
	"github.com/usherproxy/usher/proxy/outcome"
)

func TestDiagnose(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "cmd/internal/diagnose")
}

// answering returns a client of a server with this handler.
func answering(handler http.HandlerFunc) *client.Client {
	GinkgoHelper()
	server := httptest.NewServer(handler)
	DeferCleanup(server.Close)
	c, err := client.New(server.Listener.Addr().String())
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(c.Close)
	return c
}

var _ = Describe("a bundle", func() {
	DescribeTable("omits secrets", func(text, secret string) {
		out := string(withoutSecrets([]byte("before " + text + " behind\nnext")))
		Expect(out).NotTo(ContainSubstring(secret))
		Expect(out).To(And(HavePrefix("before "), ContainSubstring(leftOut), HaveSuffix("next")))
	},
		Entry(nil, `Authorization: Bearer s3cr3t-x`, "s3cr3t"),
		Entry(nil, `{"authorization":"Basic czNjcjN0"}`, "czNjcjN0"),
		Entry(nil, `{"token":"s3cr3t"}`, "s3cr3t"),
		Entry(nil, `{\"bearerToken\":\"s3cr3t\"}`, "s3cr3t"),
		Entry(nil, `--some-password=s3cr3t`, "s3cr3t"),
		Entry(nil, `DB_PASSWORD: 's3 cr3t'`, "cr3t"),
		Entry(nil, `--password "s3\"cr3t"`, "cr3t"),
		Entry(nil, `client-secret=s3cr3t,`, "s3cr3t"),
		Entry(nil, `https://user:s3cr3t@api.example/`, "s3cr3t"),
		Entry(nil, `eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJ4In0.c2ln`, "eyJzdWIi"),
		Entry(nil, `token=abc,s3cr3t;ghi`, "s3cr3t"),
		Entry(nil, `password=a's3cr3t`, "s3cr3t"),
		Entry(nil, `password='a''s3cr3t'`, "s3cr3t"),
		Entry(nil, `password="a"s3cr3t`, "s3cr3t"),
		Entry(nil, `PASSWORD = hunter s3cr3t`, "s3cr3t"),
		Entry(nil, "password: |\n  s3cr3t\n\n  s3cr3t", "s3cr3t"),
		Entry(nil, "password:\n  s3cr3t", "s3cr3t"),
		Entry(nil, "{\n  \"tokens\": [\n    \"s3cr3t\"\n  ]\n}", "s3cr3t"),
		Entry(nil, `https://s3cr3t@api.example/`, "s3cr3t"),
		Entry(nil, `https://user:a@s3cr3t@api.example/`, "s3cr3t"),
		Entry(nil, `client-key-data: LS0tcr3t`, "LS0t"),
		Entry(nil, `Authorization: s3cr3t`, "s3cr3t"),
		Entry(nil, `Authorization: Digest username="x", response="s3cr3t"`, "s3cr3t"),
		Entry(nil, `{"headers":{"Authorization":["s3cr3t"]}}`, "s3cr3t"),
		Entry(nil, `"password":"s3cr3t`, "s3cr3t"),
		Entry(nil, `{\"password\":\"s3\\\"cr3t\"}`, "cr3t"),
		Entry(nil, `"{\"password\":\"s3\\\"cr3t\"}"`, "cr3t"),
		Entry(nil, `"{\"password\":\"s3cr3t"`, "cr3t"),
		Entry(nil, `GET /?a=b&token=s3cr3t HTTP/1.1`, "s3cr3t"),
		Entry(nil, `{"password": 12345678}`, "12345678"),
		Entry(nil, "-----BEGIN RSA PRIVATE KEY-----\nMIIs3cr3t\n-----END RSA PRIVATE KEY-----", "s3cr3t"),
	)

	DescribeTable("keeps the text around a secret", func(text, kept string) {
		Expect(string(withoutSecrets([]byte(text)))).To(Equal(kept))
	},
		Entry(nil, `{"token":"s3cr3t","a":1}`, `{"token":(left out),"a":1}`),
		Entry(nil, `{"token":"s3cr3t\\","a":1}`, `{"token":(left out),"a":1}`),
		Entry(nil, `{"tokens":null,"a":1}`, `{"tokens":(left out),"a":1}`),
		Entry(nil, `{"msg":"password=a b","a":1}`, `{"msg":"password=(left out)","a":1}`),
		Entry(nil, `{\"token\":\"s3\\\"cr3t\",\"a\":1}`, `{\"token\":(left out),\"a\":1}`),
		Entry(nil, `token=abc&password=def&a=1 b`, `token=(left out)&password=(left out)&a=1 b`),
		Entry(nil, `usher run --token abc --portal none`, `usher run --token (left out) --portal none`),
		Entry(nil, "password: |\n  a\n\n  b\n\nuser: c", "password: (left out)\n\nuser: c"),
		Entry(nil, "- token: a\n  user: c", "- token: (left out)\n  user: c"),
		Entry(nil, "http://me@10.0.0.1:80/", "http://(left out)@10.0.0.1:80/"),
	)

	It("keeps text that is not a secret", func() {
		for _, text := range []string{
			`usher_service_connections_total{namespace="default"} 7`, "10.96.0.10:80 default/web:http", `"kubeconfig": "/etc/kubeconfig"`, "http://10.0.0.1:80/", "http://10.0.0.1:80/?to=a@b",
			"default/token-issuer 10.96.0.3:80", `{"service":"default/token-issuer:http","vip":"10.96.0.3:80"}`, "Service default/token-issuer: spec.ports[0].port: 70000 is not in 1-65535", readme,
		} {
			Expect(string(withoutSecrets([]byte(text)))).To(Equal(text))
		}
	})

	It("includes the response and the status of an unhealthy instance", func() {
		c := answering(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			if r.URL.Path == "/healthz" {
				w.WriteHeader(http.StatusServiceUnavailable)
			}
			fmt.Fprintln(w, `{"lastUpdated":"2026-01-01T00:00:00Z"}`)
		})
		texts := map[string]string{}
		for _, p := range (&Bundle{Client: c}).parts(GinkgoT().Context()) {
			if p.name == "healthz.json" || p.name == "configz.json" {
				texts[p.name] = string(p.text(GinkgoT().Context()))
			}
		}
		Expect(texts).To(Equal(map[string]string{
			"healthz.json": `{"lastUpdated":"2026-01-01T00:00:00Z"}` + "\nHTTP status 503 Service Unavailable\n",
			"configz.json": `{"lastUpdated":"2026-01-01T00:00:00Z"}` + "\n",
		}))
	})

	It("has a file of its own for each Service", func() {
		b := Bundle{Found: Result{details: []api.ServiceDetail{{Service: api.Service{Namespace: "a", Name: "b-c"}}, {Service: api.Service{Namespace: "a-b", Name: "c"}}}}}
		names := map[string]int{}
		for _, p := range b.parts(GinkgoT().Context()) {
			names[p.name]++
		}
		Expect(names).To(And(HaveEach(1), HaveKey("api/services/a/b-c.json"), HaveKey("api/services/a-b/c.json")))
	})

	It("does not overwrite a file", func() {
		path := filepath.Join(GinkgoT().TempDir(), "usher.tgz")
		Expect(os.WriteFile(path, nil, 0o600)).To(Succeed())
		Expect((&Bundle{}).Create(GinkgoT().Context(), path)).To(MatchError(path + " already exists; name another file, or remove it"))
	})

	It("contains no part of a secret where a long log was truncated", func() {
		path := filepath.Join(GinkgoT().TempDir(), "usher.log")
		Expect(os.WriteFile(path, []byte("token="+strings.Repeat("s3cr3t", maxLog/6)+"\nlast line\n"), 0o600)).To(Succeed())
		Expect(tail(path)).To(BeEquivalentTo("last line\n"))
	})
})

var _ = Describe("a result", func() {
	finding := func(s Severity, object string) Found {
		return Found{Finding: Finding{Severity: s, Object: object, Wrong: strings.Repeat("much is wrong ", 20), Known: strings.Repeat("x", 100), Remedy: "usher trace"}}
	}

	It("has one heading per object, and no line wider than the terminal", func() {
		r := Result{Findings: []Found{finding(Failing, "Service default/a"), finding(Failing, "Service default/a"), finding(Warning, "usher")}}
		lines := r.Lines(80)
		heads := 0
		for _, l := range lines {
			Expect(ansi.StringWidth(l)).To(BeNumerically("<=", 80), l)
			if l != "" && !strings.HasPrefix(l, " ") {
				heads++
			}
		}
		Expect(heads).To(Equal(2))
		Expect(r.Wrong()).To(BeTrue())
	})

	It("lists the checks if there are no findings, or only notes", func() {
		r := Result{Looked: []string{"limits"}, Services: 3}
		Expect(r.Lines(80)).To(Equal([]string{"Nothing found. Checks of 3 Services:", "  - limits"}))
		r.Findings = []Found{finding(Note, "node")}
		Expect(r.Wrong()).To(BeFalse())
		Expect(r.Lines(80)).To(ContainElement("Nothing else found. Checks of 3 Services:"))
	})
})

var _ = Describe("a port whose endpoints are all ready", func() {
	It("is reported if none of them is used", func() {
		ready := api.Endpoint{Address: "10.0.0.1:80", Ready: true, Serving: true, UsedFor: []string{"node"}}
		none := ready
		none.UsedFor, none.NotUsed = nil, "its weight is 0: it gets no new connections"
		find := func(e api.Endpoint) []Finding {
			return endpoints(GinkgoT().Context(), &subject{services: []api.ServiceDetail{{Details: []api.ServicePort{{PortSummary: api.PortSummary{VIP: "10.96.0.10:80", Protocol: "TCP"}, Endpoints: []api.Endpoint{e}}}}}})
		}
		Expect(find(ready)).To(BeEmpty())
		Expect(find(none)).To(ConsistOf(And(HaveField("Severity", Failing), HaveField("Wrong", "no usable endpoint for 10.96.0.10:80/TCP: clients are refused"),
			HaveField("Known", "0 of 1 are used; 10.0.0.1:80 is not used: its weight is 0: it gets no new connections"))))
	})
})

var _ = Describe("a problem of several ports", func() {
	details := func(ports ...api.ServicePort) []api.ServiceDetail {
		return []api.ServiceDetail{{Service: api.Service{Namespace: "default", Name: "web"}, Details: ports}}
	}

	It("is one finding of the Service", func() {
		var ports []api.ServicePort
		for _, vip := range []string{"10.96.0.10:80", "10.96.0.10:81", "[fd00::1]:80", "[fd00::1]:81"} {
			ports = append(ports, api.ServicePort{PortSummary: api.PortSummary{VIP: vip, Protocol: "TCP"}})
		}
		s := &subject{services: details(ports...)}
		Expect(endpoints(GinkgoT().Context(), s)).To(ConsistOf(HaveField("Wrong", "no endpoints for 10.96.0.10:80/TCP, 10.96.0.10:81/TCP, [fd00::1]:80/TCP and 1 more: clients are refused")))
		for i := range ports {
			ports[i].Problem = &api.Problem{Reason: "ListenFailed", Message: "out of ports"}
		}
		Expect(served(GinkgoT().Context(), s)).To(ConsistOf(HaveField("Wrong", "port 10.96.0.10:80/TCP, 10.96.0.10:81/TCP, [fd00::1]:80/TCP and 1 more is not served: out of ports")))
	})

	It("of several Services is one finding only if its cause is the node", func() {
		of := func(object, name string) namedFinding {
			return namedFinding{Finding{Object: object, Wrong: "cannot send to %s"}, name}
		}
		all := []namedFinding{of("Service a", "10.0.0.1"), of("Service b", "10.0.0.2"), of("Service b", "10.0.0.3")}
		Expect(grouped(all, true)).To(Equal([]Finding{{Object: "node", Wrong: "cannot send to 10.0.0.1, 10.0.0.2, 10.0.0.3"}}))
		Expect(grouped(all, false)).To(Equal([]Finding{{Object: "Service a", Wrong: "cannot send to 10.0.0.1"}, {Object: "Service b", Wrong: "cannot send to 10.0.0.2, 10.0.0.3"}}))
	})
})

var _ = Describe("a portal rule", func() {
	It("is one of at most three that are reported, with the number of all", func() {
		missing := make([]api.PortalRule, 500)
		for i := range missing {
			missing[i] = api.PortalRule{VIP: fmt.Sprintf("10.96.0.10:%d", i), State: "missing"}
		}
		s := &subject{client: answering(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(api.Portals{Rules: missing})
		})}
		Expect(portalRules(GinkgoT().Context(), s)).To(And(HaveLen(3), HaveEach(HaveField("Known", "compared with the kernel's rules: 500 missing, 0 different"))))
	})

	It("is not reported as missing if the kernel rejected it, since that is reported", func() {
		s := &subject{client: answering(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(api.Portals{Rules: []api.PortalRule{{VIP: "10.96.0.10:80", Protocol: "TCP", State: "missing"}, {VIP: "10.96.0.10", State: "missing"}, {VIP: "10.96.0.10:81", Protocol: "TCP", State: "missing"}}})
		}), services: []api.ServiceDetail{{Details: []api.ServicePort{{PortSummary: api.PortSummary{Protocol: "TCP", Problem: &api.Problem{Reason: "PortalFailed"}}, VIPs: []api.VIP{{Address: "10.96.0.10:80"}}}}}}}
		Expect(portalRules(GinkgoT().Context(), s)).To(ConsistOf(HaveField("Wrong", HavePrefix("the portal rule for 10.96.0.10:81"))))
		s.status.Problems = []api.StatusProblem{{Object: "usher", Reason: "PortalFailed"}}
		Expect(portalRules(GinkgoT().Context(), s)).To(BeEmpty())
	})
})

var _ = Describe("a finding with a known cause", func() {
	It("is the cause, if slices lack a port", func() {
		web := api.Service{Namespace: "default", Name: "web", Problems: []api.Problem{{Reason: "PartNotServed", Message: `ports: "http": no port is named "main", so that port of Service default/web has no endpoints`}}}
		web.Problems = append(web.Problems, web.Problems[0]) // of the slice of the other family
		port := func(name, vip string) api.ServicePort {
			return api.ServicePort{PortSummary: api.PortSummary{Name: name, VIP: vip, Protocol: "TCP"}}
		}
		s := &subject{services: []api.ServiceDetail{{Service: web, Details: []api.ServicePort{port("main", "10.96.0.10:80"), port("other", "10.96.0.10:81")}}}}
		Expect(objects(GinkgoT().Context(), s)).To(ConsistOf(And(HaveField("Severity", Failing), HaveField("Known", "PartNotServed: clients of that port are refused"))))
		Expect(endpoints(GinkgoT().Context(), s)).To(ConsistOf(HaveField("Wrong", HavePrefix("no endpoints for 10.96.0.10:81/TCP:"))))
	})

	It("is the difference of clocks, if usher reports that", func() {
		Expect(clock(GinkgoT().Context(), &subject{status: api.Status{Problems: []api.StatusProblem{{Object: "usher", Reason: "ClockSkew"}}}})).To(BeEmpty())
	})

	It("is the source ranges of a client that is denied, for all VIPs, and no other cause", func() {
		denied := true
		s := &subject{Options: Options{Client: "192.0.2.7"}, client: answering(func(w http.ResponseWriter, _ *http.Request) {
			e := api.Explanation{Verdict: api.WouldFail, Text: []string{"The service port has a problem: port in use."}}
			if denied {
				e = api.Explanation{Verdict: api.WouldDrop, Text: []string{"The client 192.0.2.7 is not in loadBalancerSourceRanges: the portal drops its packets."}}
			}
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(e)
		}), services: []api.ServiceDetail{{Details: []api.ServicePort{{VIPs: []api.VIP{{Kind: "LoadBalancerIP", Address: "203.0.113.1:80"}, {Kind: "ExternalIP", Address: "203.0.113.2:80"}}}}}}}
		Expect(clientLetIn(GinkgoT().Context(), s)).To(ConsistOf(HaveField("Wrong",
			"192.0.2.7 would not be served at 203.0.113.1:80 (LoadBalancerIP), 203.0.113.2:80 (ExternalIP): The client 192.0.2.7 is not in loadBalancerSourceRanges: the portal drops its packets.")))
		denied = false
		Expect(clientLetIn(GinkgoT().Context(), s)).To(BeEmpty())
	})
})

var _ = Describe("usher's last crash", func() {
	It("is a note with its time, if a keeper has restarted usher", func() {
		at := time.Date(2026, 1, 2, 3, 12, 5, 0, time.UTC)
		s := &subject{status: api.Status{Restarts: &api.Restarts{Count: 2, Last: "signal: killed", Time: at}}}
		Expect(usherItself(GinkgoT().Context(), s)).To(ConsistOf(And(HaveField("Severity", Note),
			HaveField("Wrong", "usher ended unexpectedly at "+at.Local().Format(time.DateTime)+" (signal: killed), and its keeper restarted it"),
			HaveField("Known", "2 restarts since the keeper started"))))
		s.status.Restarts = nil
		Expect(usherItself(GinkgoT().Context(), s)).To(BeEmpty())
	})
})

var _ = Describe("the time of a problem", func() {
	It("is local, as all other times are", func() {
		since := time.Date(2026, 1, 2, 3, 4, 5, 0, time.FixedZone("elsewhere", 7*3600+60))
		s := &subject{status: api.Status{Problems: []api.StatusProblem{{Object: "usher", Reason: "NearLimit", Since: since}, {Object: "a.yaml", Reason: "ManifestRejected", Since: since}}}}
		local := "since " + since.Local().Format(time.DateTime)
		Expect(append(usherItself(GinkgoT().Context(), s), objects(GinkgoT().Context(), s)...)).To(And(HaveLen(2), HaveEach(HaveField("Known", HaveSuffix(local)))))
	})
})

var _ = Describe("a check", func() {
	DescribeTable("that is not possible is reported", func(find func(context.Context, *subject) []Finding, what string) {
		s := &subject{client: answering(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) })}
		s.askFailed(GinkgoT().Context())
		Expect(find(GinkgoT().Context(), s)).To(ConsistOf(And(HaveField("Severity", Note), HaveField("Wrong", "cannot check "+what))))
	},
		Entry(nil, past, "past connections"),
		Entry(nil, denied, "whether clients were denied"),
		Entry(nil, quarantine, "which endpoints were in quarantine before"),
		Entry(nil, source, "whether endpoints see client addresses"),
	)

	It("that had no time to test an endpoint says so, and reports nothing about the endpoint", func() {
		ctx, cancel := context.WithTimeout(GinkgoT().Context(), 0)
		defer cancel()
		s := &subject{services: []api.ServiceDetail{{Details: []api.ServicePort{{PortSummary: api.PortSummary{Protocol: "TCP"}, Endpoints: []api.Endpoint{{Address: "127.0.0.1:1", State: api.EndpointOutlier}}}}}}}
		Expect(reach(ctx, s)).To(ConsistOf(HaveField("Wrong", "cannot check whether all failing endpoints can be reached")))
	})
})

var _ = Describe("a failed test of an endpoint", func() {
	It("is evidence of its quarantine, if it is in quarantine", func() {
		found := func(check, wrong, known, remedy string) Found {
			return Found{Finding: Finding{Check: check, Object: "Service default/web", Wrong: wrong, Known: known, Remedy: remedy}}
		}
		other := found("reach", "10.0.0.1:8 does not answer", "no answer", "")
		all := inQuarantine([]Found{found("quarantine", "10.0.0.1:80 is in quarantine: no answer", "2 failures", "usher trace"), other, found("reach", "10.0.0.1:80 does not answer", "tested", "ip route")})
		Expect(all).To(Equal([]Found{found("quarantine", "10.0.0.1:80 is in quarantine: no answer", "2 failures; tested", "ip route"), other}))
	})
})

var _ = Describe("the check for slow endpoints", func() {
	It("reports an endpoint whose clients wait, and a Service with some waiting clients", func() {
		latency := func(connect, first float64) *api.Latency {
			return &api.Latency{Clients: 20, ConnectP50Ms: 1, ConnectP99Ms: connect, FirstByteP50Ms: first, FirstByteP99Ms: first}
		}
		s := &subject{services: []api.ServiceDetail{{Service: api.Service{Namespace: "default", Name: "web"}, Details: []api.ServicePort{
			{PortSummary: api.PortSummary{VIP: "10.96.0.10:80"}, Latency: latency(1, 10), Endpoints: []api.Endpoint{{Address: "10.0.0.1:80", Latency: latency(1, 300)}, {Address: "10.0.0.2:80", Latency: latency(1, 1)}, {}}},
			{PortSummary: api.PortSummary{VIP: "10.96.0.10:81"}, Latency: latency(250, 10)},
			{PortSummary: api.PortSummary{VIP: "10.96.0.10:82"}, Latency: latency(1, 10)},
			{PortSummary: api.PortSummary{VIP: "10.96.0.10:83"}, Latency: &api.Latency{Clients: 19, ConnectP99Ms: 250}},
		}}}}
		all := slow(GinkgoT().Context(), s)
		Expect(all).To(HaveLen(2))
		Expect(all[0].Wrong).To(Equal("10.0.0.1:80 is slow"))
		Expect(all[1].Wrong).To(Equal("some clients of 10.96.0.10:81 wait long for a connection"))
		Expect(all[1].Known).To(ContainSubstring("p99 connect time was about 250"))
	})

	It("reports an endpoint that is slow for some clients if no other endpoint is", func() {
		latency := func(p99 float64) *api.Latency {
			return &api.Latency{Clients: 100, FirstByteP50Ms: 2, FirstByteP99Ms: p99}
		}
		found := func(p99, other float64) []Finding {
			return slow(GinkgoT().Context(), &subject{services: []api.ServiceDetail{{Service: api.Service{Namespace: "default", Name: "web"}, Details: []api.ServicePort{{
				PortSummary: api.PortSummary{VIP: "10.96.0.10:80"}, Latency: latency(p99), Endpoints: []api.Endpoint{{Address: "10.0.0.1:80", Latency: latency(p99)}, {Address: "10.0.0.2:80", Latency: latency(other)}}}}}}})
		}
		Expect(found(400, 100)).To(ConsistOf(And(HaveField("Severity", Warning), HaveField("Wrong", "10.0.0.1:80 is slow for some of its clients"),
			HaveField("Known", "in the last 5 to 10 minutes, its p99 time to first byte was about 400 ms, p50 2.00 ms; p99 of the other endpoints at most 100 ms"))))
		Expect(found(400, 101)).To(BeEmpty(), "the other one is slow, too")
		Expect(found(199, 1)).To(BeEmpty(), "below the threshold")
	})

	It("reports nothing that a quarantine explains", func() {
		l := &api.Latency{Clients: 20, ConnectP99Ms: 250, FirstByteP50Ms: 300}
		s := &subject{services: []api.ServiceDetail{{Details: []api.ServicePort{{Latency: l, Endpoints: []api.Endpoint{{Latency: l, Quarantine: &api.Quarantine{}}}}}}}}
		Expect(slow(GinkgoT().Context(), s)).To(BeEmpty())
		s.services[0].Details[0].Endpoints[0].Quarantine = nil
		Expect(slow(GinkgoT().Context(), s)).To(HaveLen(1))
	})

	It("reports an unresponsive endpoint", func() {
		of := func(state api.EndpointState) *subject {
			return &subject{services: []api.ServiceDetail{{Service: api.Service{Namespace: "default", Name: "web"}, Details: []api.ServicePort{{
				PortSummary: api.PortSummary{VIP: "10.96.0.10:80"}, Latency: &api.Latency{Clients: 5, FirstByteP99Ms: 10},
				Endpoints: []api.Endpoint{{Address: "10.0.0.1:80", State: state, BytesToClient: 100, Latency: &api.Latency{Clients: 5, ConnectP50Ms: 1, ConnectP99Ms: 1}}},
			}}}}}
		}
		all := slow(GinkgoT().Context(), of(api.EndpointUnresponsive))
		Expect(all).To(HaveLen(1))
		Expect(all[0].Wrong).To(Equal("10.0.0.1:80 accepts connections but never responds"))
		Expect(all[0].Known).To(ContainSubstring("had 5 clients and sent no byte"))
		Expect(slow(GinkgoT().Context(), of(api.EndpointReady))).To(BeEmpty())

		some := of(api.EndpointUnresponsive)
		e := &some.services[0].Details[0].Endpoints[0]
		e.Latency.Clients, e.Latency.FirstByteP99Ms, e.NoResponseRecently = 100, 10, 50
		Expect(slow(GinkgoT().Context(), some)).To(ConsistOf(And(HaveField("Severity", Warning), HaveField("Wrong", HavePrefix("10.0.0.1:80 leaves far more clients without a response")),
			HaveField("Known", ContainSubstring("50 of 100 connections closed without having received a byte")))))
	})
})

var _ = Describe("a Service for TFTP", func() {
	It("is reported because TFTP servers answer from another port", func() {
		port := func(vip, protocol string) *subject {
			return &subject{services: []api.ServiceDetail{{Service: api.Service{Namespace: "default", Name: "boot"}, Details: []api.ServicePort{{PortSummary: api.PortSummary{VIP: vip, Protocol: protocol}}}}}}
		}
		Expect(served(GinkgoT().Context(), port("10.96.0.69:69", "UDP"))).To(ConsistOf(And(HaveField("Object", "Service default/boot"),
			HaveField("Severity", Warning), HaveField("Known", ContainSubstring("answers from another port")))))
		Expect(served(GinkgoT().Context(), port("10.96.0.69:69", "TCP"))).To(BeEmpty())
		Expect(served(GinkgoT().Context(), port("10.96.0.69:169", "UDP"))).To(BeEmpty())
	})
})

var _ = Describe("an endpoint that was quarantined repeatedly", func() {
	DescribeTable("is reported as unstable", func(times int, since time.Duration, want ...Severity) {
		now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.Local)
		s := &subject{status: api.Status{Now: now}, client: answering(func(w http.ResponseWriter, r *http.Request) {
			Expect(r.URL.RawQuery).To(Equal("follow=false&history=true&kind=endpoint-quarantined"))
			for n := times; n > 0; n-- {
				text, _ := json.Marshal(api.Event{Kind: api.KindEndpointQuarantined, Service: "default/web", Endpoint: "10.0.0.1:80", Time: now.Add(-since - time.Duration(n-1)*time.Minute)})
				fmt.Fprintf(w, "event: change\ndata: %s\n\n", text)
			}
		}), services: []api.ServiceDetail{{Service: api.Service{Namespace: "default", Name: "web"}, Details: []api.ServicePort{{Endpoints: []api.Endpoint{{Address: "10.0.0.1:80"}, {Address: "10.0.0.2:80"}}}}}}}
		var got []Severity
		for _, f := range quarantine(GinkgoT().Context(), s) {
			got = append(got, f.Severity)
			Expect(f.Wrong).To(Equal("10.0.0.1:80 is unstable"))
			Expect(f.Known).To(HavePrefix(fmt.Sprintf("in quarantine 3 times since %s, last at %s, ", now.Add(-since-2*time.Minute).Format(time.DateTime), now.Add(-since).Format(time.DateTime))))
		}
		Expect(got).To(ConsistOf(want))
	},
		Entry("with a warning if it was recent", 3, time.Minute, Warning),
		Entry("with a note if it was long ago", 3, time.Hour, Note),
		Entry("only after more than 2 times, as 2 may be a rollout", 2, time.Minute),
	)
})

var _ = Describe("an endpoint that has failed", func() {
	const address = "10.0.0.1:80"
	found := func(e api.Endpoint) (now, before []Finding) {
		GinkgoHelper()
		e.Address = address
		s := &subject{client: answering(func(w http.ResponseWriter, _ *http.Request) {
			item := api.Connection{Service: "default/web", Endpoint: address, Accepted: time.Date(2026, 1, 2, 3, 4, 5, 0, time.Local), End: outcome.EndpointReset.String(), Outcomes: []string{"failed"}}
			_ = json.NewEncoder(w).Encode(api.ConnectionList{Items: []api.Connection{item, item}})
		}), services: []api.ServiceDetail{{Service: api.Service{Namespace: "default", Name: "web"}, Details: []api.ServicePort{{Endpoints: []api.Endpoint{e}}}}}}
		return breaks(GinkgoT().Context(), s), past(GinkgoT().Context(), s)
	}

	It("is reported as a note with the times if the failures are old", func() {
		now, before := found(api.Endpoint{Connected: 100, Failed: 50, Latency: &api.Latency{Clients: 90}})
		Expect(now).To(BeEmpty())
		Expect(before).To(HaveLen(1))
		Expect(before[0]).To(And(HaveField("Severity", Note), HaveField("Wrong", "2 connections failed: endpoint-reset, endpoint "+address), HaveField("Known", ContainSubstring("2026-01-02 03:04:05"))))
	})

	DescribeTable("is reported as a warning if it fails now", func(e api.Endpoint) {
		now, before := found(e)
		Expect(before).To(BeEmpty(), "it is reported once")
		Expect(now).To(HaveLen(1))
		Expect(now[0]).To(And(HaveField("Severity", Warning), HaveField("Wrong", HavePrefix(address)), HaveField("Known", ContainSubstring("in the last 5 to 10 minutes"))))
	},
		Entry(nil, api.Endpoint{Connected: 1e6, Failed: 2, FailedRecently: 2, Latency: &api.Latency{Clients: 98}}),
		Entry("without any successful connection", api.Endpoint{Connected: 1e6, Failed: 2, FailedRecently: 2}),
		Entry("with too few connections for a failure rate", api.Endpoint{State: api.EndpointOutlier, Connected: 9, Failed: 9}),
	)

	It("is not reported as failing now if failures are rare", func() {
		for _, e := range []api.Endpoint{{FailedRecently: 1}, {FailedRecently: 2, Latency: &api.Latency{Clients: 99}}} {
			now, before := found(e)
			Expect(now).To(BeEmpty())
			Expect(before).To(HaveLen(1))
		}
	})
})

var _ = Describe("a past failure", func() {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.Local)
	attempt := api.Attempt{Endpoint: "10.0.0.1:80", Result: "refused", Error: "connection refused"}
	find := func(c api.Connection, port api.ServicePort) []Finding {
		c.Service = "default/web"
		s := &subject{status: api.Status{Now: now}, client: answering(func(w http.ResponseWriter, _ *http.Request) {
			_ = json.NewEncoder(w).Encode(api.ConnectionList{Items: []api.Connection{c}})
		}), services: []api.ServiceDetail{{Service: api.Service{Namespace: "default", Name: "web"}, Details: []api.ServicePort{port}}}}
		return past(GinkgoT().Context(), s)
	}
	long := api.Latency{Clients: 20, FirstByteP50Ms: 300}

	DescribeTable("is not reported if an endpoint with this problem is reported", func(c api.Connection, e api.Endpoint) {
		e.Address = "10.0.0.1:80"
		c.Accepted = now.Add(-time.Hour)
		Expect(find(c, api.ServicePort{Latency: &long, Endpoints: []api.Endpoint{e}})).To(BeEmpty())
		Expect(find(c, api.ServicePort{Endpoints: []api.Endpoint{{Address: "10.0.0.1:80", UsedFor: []string{"node"}}}})).To(HaveLen(1))
	},
		Entry("of all attempts", api.Connection{End: "attempts-failed", Outcomes: []string{"failed"}, Attempts: []api.Attempt{attempt}}, api.Endpoint{Quarantine: &api.Quarantine{}}),
		Entry("as unresponsive", api.Connection{Endpoint: "10.0.0.1:80", Outcomes: []string{"slow"}}, api.Endpoint{State: api.EndpointUnresponsive}),
		Entry("as slow", api.Connection{Endpoint: "10.0.0.1:80", Outcomes: []string{"slow"}}, api.Endpoint{Latency: &long}),
	)

	DescribeTable("is resolved only after a time without another", func(c api.Connection, over bool) {
		all := find(c, api.ServicePort{})
		Expect(all).To(HaveLen(1))
		all[0].Check = cmp.Or(all[0].Check, "past")
		Expect(isOver(all[0])).To(Equal(over))
	},
		Entry(nil, api.Connection{Accepted: now.Add(-11 * time.Minute), Endpoint: "10.0.0.1:80", End: "endpoint-reset", Outcomes: []string{"failed"}}, true),
		Entry(nil, api.Connection{Accepted: now.Add(-2 * time.Second), Endpoint: "10.0.0.1:80", End: "endpoint-reset", Outcomes: []string{"failed"}}, false),
		Entry("since the connection ended", api.Connection{Accepted: now.Add(-time.Hour), DurationMs: 3.599e6, Endpoint: "10.0.0.1:80", End: "endpoint-reset", Outcomes: []string{"failed"}}, false),
	)

	It("has a heading even if there is no other finding", func() {
		r := Result{Findings: []Found{{Finding: Finding{Severity: Note, Object: "Service default/web"}, Over: true}}}
		Expect(r.Lines(80)[0]).To(Equal("Resolved:"))
	})
})

var _ = Describe("the kernel's connection tracking", func() {
	It("is reported when 90% of its entries are in use", func() {
		Expect(conntrackRoom(0, 0)).To(BeEmpty())
		Expect(conntrackRoom(899, 1000)).To(BeEmpty())
		Expect(conntrackRoom(900, 1000)).To(ConsistOf(And(HaveField("Severity", Failing), HaveField("Known", "900 of 1000 entries"))))
	})

	It("is reported if its settings do not meet the configured values", func() {
		is := map[string]float64{"nf_conntrack_max": 300, "nf_conntrack_tcp_timeout_close_wait": 60, "nf_conntrack_tcp_timeout_established": 86400}
		find := func(wanted map[string]int) []Finding {
			return conntrackSettings(wanted, func(name string) float64 { return is[name] })
		}
		Expect(find(nil)).To(BeEmpty())
		Expect(find(map[string]int{"nf_conntrack_max": 200, "nf_conntrack_tcp_timeout_established": 86400, "nf_conntrack_not_there": 1})).To(BeEmpty())
		Expect(find(map[string]int{"nf_conntrack_max": 400, "nf_conntrack_tcp_timeout_close_wait": 3600})).To(ConsistOf(And(HaveField("Severity", Warning),
			HaveField("Known", "nf_conntrack_max is 300, should be 400; nf_conntrack_tcp_timeout_close_wait is 60, should be 3600"))))
	})
})

var _ = Describe("a DNS server", func() {
	find := func(server, domain, vip string) []Finding {
		s := &subject{Options: Options{DNS: server, Domain: domain}, services: []api.ServiceDetail{{Service: api.Service{Namespace: "default", Name: "web"},
			Details: []api.ServicePort{{PortSummary: api.PortSummary{VIP: vip}, VIPs: []api.VIP{{Address: vip}}}}}}}
		return names(GinkgoT().Context(), s)
	}

	DescribeTable("is reported if it returns other addresses or no answer", func(ip, other, domain string) {
		server, err := dns.New(dns.Options{ResolvConf: "/none"})
		Expect(err).NotTo(HaveOccurred())
		server.Apply([]config.Service{{Name: types.NamespacedName{Namespace: "default", Name: "web"}, Discovery: &config.Discovery{ClusterIPs: []netip.Addr{netip.MustParseAddr(ip)}}}})
		l, err := net.Listen("tcp", "127.0.0.1:0")
		Expect(err).NotTo(HaveOccurred())
		pc, err := net.ListenPacket("udp", "127.0.0.1:0")
		Expect(err).NotTo(HaveOccurred())
		at := pc.LocalAddr().String()
		ctx, cancel := context.WithCancel(context.Background())
		serving := make(chan error)
		go func() { serving <- server.Serve(ctx, pc, l) }()

		Expect(find(at, domain, net.JoinHostPort(ip, "80"))).To(BeEmpty())
		Expect(find(at, domain, net.JoinHostPort(other, "80"))).To(ConsistOf(And(HaveField("Severity", Warning), HaveField("Known", "it returns "+ip+", usher serves "+other))))
		cancel()
		Expect(<-serving).To(Succeed())
		Expect(find(at, domain, net.JoinHostPort(ip, "80"))).To(ConsistOf(And(HaveField("Severity", Failing), HaveField("Wrong", at+" has no answer for web.default.svc.cluster.local."))))
	},
		Entry(nil, "10.96.0.10", "10.96.0.11", "cluster.local"),
		Entry(nil, "fd00:96::10", "fd00:96::11", "cluster.local"),
		Entry("with a domain in absolute form", "10.96.0.10", "10.96.0.11", "cluster.local."),
		Entry("with the default domain", "10.96.0.10", "10.96.0.11", ""),
	)
})

var _ = Describe("findings from several nodes", func() {
	It("are merged with their nodes, the worst and most widespread first", func() {
		finding := func(s Severity, wrong, known string) Found {
			return Found{Finding: Finding{Check: "quarantine", Severity: s, Object: "Service default/web", Wrong: wrong, Known: known, Remedy: "usher trace"}}
		}
		pod, node := finding(Warning, "10.0.0.1:80 is in quarantine", "2 failures"), finding(Warning, "10.0.0.2:80 is in quarantine", "1 failure")
		again := finding(Warning, "10.0.0.1:80 is in quarantine", "9 failures")
		sum := Together([]OnNode{
			{Node: "a", Result: Result{Findings: []Found{finding(Note, "a note", "")}, Services: 3, All: 9, Looked: []string{"limits"}}},
			{Node: "b", Result: Result{Findings: []Found{node, pod}, Services: 4, All: 9, Looked: []string{"limits"}}},
			{Node: "c", Result: Result{Findings: []Found{again}, Services: 2, All: 9, Looked: []string{"limits"}}},
		})
		Expect(sum.Findings).To(HaveLen(3))
		Expect(sum.Findings[0]).To(Equal(Found{Finding: pod.Finding, Nodes: []string{"b", "c"}}))
		Expect(sum.Findings[1].Nodes).To(Equal([]string{"b"}))
		Expect(sum.Services).To(Equal(4))
		Expect(sum.Wrong()).To(BeTrue())
		Expect(sum.Lines(80)).To(ContainElements("    on:        2 nodes: b, c", "    on:        node b"))
		Expect(Together(nil).Findings).NotTo(BeNil(), "a list in JSON")
	})
})
