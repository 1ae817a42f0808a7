package diagnose

import (
	"encoding/json"
	"net/http"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/usherproxy/usher/proxy/admin/api"
)

var _ = Describe("the findings", func() {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.Local)
	connection := func(service, client, end string) api.Connection {
		return api.Connection{Service: service, Client: client, End: end, Outcomes: []string{"failed"}, Accepted: at}
	}

	It("are ordered by the number of connections affected now, with resolved ones last", func() {
		failed := []api.Connection{
			connection("default/closed", "[2001:db8::7]:1", "source-denied"), connection("default/closed", "192.0.2.7:1", "source-denied"),
			connection("default/closed", "192.0.2.7:2", "source-denied"), connection("default/gone", "192.0.2.8:1", "no-endpoint"),
		}
		web := api.ServiceDetail{Service: api.Service{Namespace: "default", Name: "web", State: api.ServiceDegraded}, Details: []api.ServicePort{{PortSummary: api.PortSummary{VIP: "10.96.0.10:80"}, Endpoints: []api.Endpoint{
			{Address: "10.0.0.1:80", State: api.EndpointUnresponsive, Ready: true, UsedFor: []string{"node"}, NoResponseRecently: 2, Since: at, Latency: &api.Latency{Clients: 30}},
			{Address: "10.0.0.10:80", State: api.EndpointReady, Ready: true, UsedFor: []string{"node"}, FailedRecently: 4, Latency: &api.Latency{Clients: 100, FirstByteP99Ms: 1}},
			{Address: "10.0.0.2:80", State: api.EndpointReady, Ready: true, UsedFor: []string{"node"}, Latency: &api.Latency{Clients: 100, FirstByteP99Ms: 1}},
		}}}}
		gone := api.ServiceDetail{Service: api.Service{Namespace: "default", Name: "gone"}, Details: []api.ServicePort{{PortSummary: api.PortSummary{VIP: "10.96.0.11:80", Protocol: "TCP"}}}}
		broke := api.Connection{Service: "default/web", Endpoint: "10.0.0.2:80", End: "endpoint-reset", Outcomes: []string{"failed"}, Accepted: at}
		c := answering(func(w http.ResponseWriter, r *http.Request) {
			var answer any = map[string]any{}
			switch q := r.URL.Query(); r.URL.Path {
			case "/api/v1/status":
				answer = api.Status{Now: at.Add(time.Hour)}
			case "/api/v1/services":
				answer = api.ServiceList{Items: []api.Service{web.Service, gone.Service}}
			case "/api/v1/services/default/web":
				answer = web
			case "/api/v1/services/default/gone":
				answer = gone
			case "/api/v1/connections":
				Expect(q.Get("state")).To(Equal("ended"))
				list := failed
				if q.Get("last") == "" {
					list = append([]api.Connection{broke}, failed...)
				}
				answer = api.ConnectionList{Items: list}
			}
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(answer)
		})
		r, err := Run(GinkgoT().Context(), c, Options{Remote: true})
		Expect(err).NotTo(HaveOccurred())
		type row struct {
			Check    string
			Affected int64
			Over     bool
		}
		var all []row
		for _, f := range r.Findings {
			if f.Object != "usher" {
				all = append(all, row{f.Check, f.Failures, f.Over})
			}
		}
		Expect(all).To(Equal([]row{{"slow", 30, false}, {"breaks", 4, false}, {"denied", 3, false}, {"endpoints", 1, false}, {"past", 0, true}}))
		Expect(r.Findings[2].Wrong).To(Equal("3 connections from 2001:db8::7, 192.0.2.7 denied: not in loadBalancerSourceRanges"))
		Expect(r.Lines(80)).To(ContainElements("Resolved:", "    impact:    30 failures in the last 5 to 10 minutes, in this state since", "               2026-01-02 03:04:05"))
		Expect(r.Findings[1].Since).To(BeZero())
	})

	It("have no remedy that needs a cluster if Services come from files", func() {
		for _, remedy := range []string{noEndpoints(place{name: "default/web"}), remedyFor("no answer", "default/web"), "see why the readiness probe fails: kubectl describe pod", "usher get endpoints; then the Pod's log"} {
			Expect(withoutCluster(Finding{Object: "Service default/web", Remedy: remedy})).NotTo(Or(ContainSubstring("kubectl"), ContainSubstring("Pod"), ContainSubstring("selector")), remedy)
		}
		Expect(withoutCluster(Finding{Object: "Service default/web", Remedy: noEndpoints(place{name: "default/web"})})).To(HavePrefix("do the manifests have an EndpointSlice with the label kubernetes.io/service-name: web?"))
		Expect(withoutCluster(Finding{Remedy: "usher get portals -A"})).To(Equal("usher get portals -A"))
	})

	It("come first if usher itself fails, although the number of failures is unknown, and last if it only has a warning", func() {
		failing, warning := Found{Finding: Finding{Severity: Failing, Object: "usher"}}, Found{Finding: Finding{Severity: Warning, Object: "usher"}}
		of := Found{Finding: Finding{Severity: Warning, Object: "Service default/web"}, Failures: 30}
		failing.Failures, _ = (&subject{}).impact(failing.Finding, nil)
		Expect(json.Marshal(failing)).NotTo(ContainSubstring("failures"))
		r := Result{Findings: []Found{warning, of, failing}}
		r.sort()
		Expect(r.Findings).To(Equal([]Found{failing, of, warning}))
	})
})
