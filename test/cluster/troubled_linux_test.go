package cluster

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/usherproxy/usher/test/cluster/control"
	"github.com/usherproxy/usher/test/lab"
)

// lag is the delay of a slow or stale API server. It is longer than usher's first retry intervals and shorter than any
// timeout.
const lag = 5 * time.Second

// troubles are the faults of an API server that still answers.
var troubles = []struct {
	name  string
	fault control.Fault
	// says matches usher's log during the fault; "" if usher cannot detect it.
	says string
	// arrive reports whether changes still arrive during the fault, only later.
	arrive bool
}{
	{name: "errors", says: "the API server returned 50[03]", fault: func(w http.ResponseWriter, r *http.Request, _ http.Handler) {
		code := http.StatusInternalServerError
		if time.Now().Second()%2 == 0 {
			code = http.StatusServiceUnavailable
		}
		http.Error(w, "out of order", code)
	}},
	{name: "410 Gone for each watch", fault: func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
		if r.URL.Query().Get("watch") == "" {
			pass.ServeHTTP(w, r)
			return
		}
		refuse(w, metav1.Status{Code: http.StatusGone, Reason: metav1.StatusReasonExpired, Message: "too old resource version: 1 (2)"})
	}},
	{name: "too many requests", fault: func(w http.ResponseWriter, r *http.Request, _ http.Handler) {
		w.Header().Set("Retry-After", "1")
		refuse(w, metav1.Status{Code: http.StatusTooManyRequests, Reason: metav1.StatusReasonTooManyRequests, Message: "try again later"})
	}},
	{name: "slow answers", arrive: true, fault: func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
		select {
		case <-r.Context().Done():
		case <-time.After(lag):
			pass.ServeHTTP(w, r)
		}
	}},
	{name: "stale state: changes arrive late, and newer resource versions are unknown", arrive: true, fault: func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
		if version := r.URL.Query().Get("resourceVersion"); version != "" && version != "0" && (r.URL.Query().Get("watch") == "" || r.URL.Query().Has("sendInitialEvents")) {
			refuse(w, metav1.Status{Code: http.StatusGatewayTimeout, Reason: metav1.StatusReasonTimeout, Message: "Too large resource version",
				Details: &metav1.StatusDetails{RetryAfterSeconds: 1, Causes: []metav1.StatusCause{{Type: metav1.CauseTypeResourceVersionTooLarge, Message: "Too large resource version"}}}})
			return
		}
		pass.ServeHTTP(late{w}, r)
	}},
}

// refuse writes an error as the API server does.
func refuse(w http.ResponseWriter, s metav1.Status) {
	s.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
	s.Status = metav1.StatusFailure
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(int(s.Code))
	_ = json.NewEncoder(w).Encode(s) // the client may have closed the connection
}

// late delays each part of a response.
type late struct{ http.ResponseWriter }

func (l late) Write(b []byte) (int, error) {
	time.Sleep(lag)
	return l.ResponseWriter.Write(b)
}

func (l late) Unwrap() http.ResponseWriter { return l.ResponseWriter }

var _ = Describe("an API server with a fault", func() {
	// Each fault has its own node. All faults run concurrently.
	It("leaves all Services served, gets few requests, and delivers changes afterwards", func() {
		c := newCluster()
		one, two := netip.AddrPortFrom(lab.Pod(1), 8080), netip.AddrPortFrom(lab.Pod(2), 8080)
		kept, deleted := c.service("kept", noSelector), c.service("deleted", noSelector)
		for _, name := range []string{"kept", "deleted"} {
			c.write(c.slice(name, name, endpoint(lab.Pod(1))))
		}
		type troubled struct {
			*cluster
			gateway *control.Gateway
			usher   *usher
			load    *load
		}
		var all []troubled
		for range troubles {
			n := &cluster{Lab: lab.New(), api: c.api, namespace: c.namespace}
			n.pod, n.node, n.outside = n.Pods.NewDialer(8), n.Node.NewDialer(2), n.Outside.NewDialer(2)
			serve(n.Pods, one)
			serve(n.Pods, two)
			gateway := plane.NewGateway(n.Node)
			u := n.usher("--kubeconfig=" + leastRole(gateway.Server()))
			for _, svc := range []*corev1.Service{kept, deleted} {
				Eventually(answers(n.pod, vip(svc))).WithTimeout(soon).Should(Equal(one))
			}
			all = append(all, troubled{n, gateway, u, startLoad(n.pod, vip(kept), 10)})
		}
		health := func(n troubled, path string) (answer, error) {
			return get(n.outside, "http://"+lab.NodeOut4+":"+healthzPort+path)
		}

		began := time.Now()
		for i, n := range all {
			n.gateway.Spoil(troubles[i].fault)
		}
		c.write(c.slice("kept", "kept", endpoint(lab.Pod(2))))
		c.deleteService("deleted")
		created := c.service("created", noSelector)
		c.write(c.slice("created", "created", endpoint(lab.Pod(1))))
		right := func(n troubled) {
			GinkgoHelper()
			Eventually(answers(n.pod, vip(created))).WithTimeout(recovery).Should(Equal(one))
			Eventually(answers(n.pod, vip(kept))).WithTimeout(recovery).Should(Equal(two))
			Eventually(failure(n.pod, vip(deleted))).WithTimeout(recovery).Should(HaveOccurred())
		}
		for i, n := range all {
			By(troubles[i].name)
			if troubles[i].arrive {
				right(n)
			}
			if says := troubles[i].says; says != "" {
				Eventually(func() (answer, error) { return health(n, "/healthz") }).WithTimeout(soon).Should(
					And(code(200), HaveField("Body", MatchRegexp(`(?s)"connected": *false.*"error": *"server-error"`)))) // not the error's text: the endpoint is public
				Eventually(func() string { return string(n.usher.Err.Contents()) }).WithTimeout(soon).Should(
					MatchRegexp("No updates from the API server; serving last known state.*" + says))
				Expect(get(n.node, adminURL+"/metrics")).To(HaveField("Body", MatchRegexp(`rest_client_requests_total\{code="50[03]"`)))
			}
			Expect(health(n, "/livez")).To(code(200))
		}
		time.Sleep(time.Until(began.Add(20 * time.Second))) // in this time a client without backoff sends thousands of requests
		for i, n := range all {
			asked := n.gateway.Requests()
			after := time.Since(began)
			AddReportEntry(fmt.Sprintf("%s: %d requests in %s", troubles[i].name, asked, after.Round(time.Second)))
			Expect(asked).To(BeNumerically("<", 3*after.Seconds()), "few requests during the fault: "+troubles[i].name)
			n.gateway.Spoil(nil)
		}
		for i, n := range all {
			By("afterwards: " + troubles[i].name)
			right(n)
			Eventually(func() (answer, error) { return health(n, "/healthz") }).WithTimeout(recovery).Should(
				And(code(200), HaveField("Body", MatchRegexp(`"connected": *true`))))
			Expect(n.load.stop()).To(BeEmpty(), "connections during the fault: %s", troubles[i].name)
			Expect(n.gateway.Requests()).To(BeNumerically("<", 40), "requests after the fault: %s", troubles[i].name)
		}
	})
})
