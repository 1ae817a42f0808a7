package admin_test

import (
	"errors"
	"net/http"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/proxy/admin/api"
	"github.com/usherproxy/usher/proxy/balance"
	"github.com/usherproxy/usher/test/lab"
)

var _ = Describe("a state", func() {
	It("keeps its start time until it changes", func() {
		n := newNode()
		look := func() (detail api.ServiceDetail, status api.Status) {
			GinkgoHelper()
			Expect(n.get("/services/default/flaky", &detail)).To(Equal(http.StatusOK))
			Expect(n.get("/status", &status)).To(Equal(http.StatusOK))
			return detail, status
		}
		start := time.Now().Truncate(time.Millisecond)
		answers := answering()
		n.proxy.Apply([]config.Service{service("flaky", "10.96.0.2", lab.Refusing(), answers)})
		well, _ := look()
		Expect(well.State).To(Equal(api.ServiceOK))
		Expect(well.Since).To(BeTemporally(">=", start))

		time.Sleep(10 * time.Millisecond) // so that the failure is later than the request
		n.client("flaky")
		failed := time.Now()
		bad, _ := look()
		Expect(bad.State).To(Equal(api.ServiceDegraded))
		is := bad.Details[0].Endpoints[0]
		Expect(is.State).To(Equal(api.EndpointQuarantined))
		Expect(is.Since).To(And(BeTemporally(">", well.Since), BeTemporally("<=", failed)))
		Expect(bad.Since).To(Equal(is.Since), "the Service has been degraded since its endpoint failed")
		Expect(bad.Details[0].Endpoints[1].Since).To(Equal(well.Details[0].Endpoints[1].Since), "the state of this endpoint has not changed")
		Eventually(func() api.Status { _, status := look(); return status }).WithTimeout(30 * time.Second).
			Should(And(HaveField("Since", is.Since), HaveField("Problems", ConsistOf(HaveField("Since", is.Since)))))
		for _, f := range n.gather() {
			switch f.GetName() {
			case "usher_service_state_timestamp_seconds", "usher_endpoints_state_timestamp_seconds":
				Expect(f.Metric).To(HaveLen(1))
				Expect(f.Metric[0].GetGauge().GetValue()).To(BeNumerically("~", float64(is.Since.UnixMilli())/1000, 0.001), f.GetName())
			}
		}

		again, _ := look()
		Expect([]time.Time{again.Since, again.Details[0].Endpoints[0].Since}).To(Equal([]time.Time{is.Since, is.Since}))

		other := service("flaky", "10.96.0.2", answers)
		n.proxy.Apply([]config.Service{other})
		better, _ := look()
		Expect(better.State).To(Equal(api.ServiceOK))
		Expect(better.Since).To(BeTemporally(">", is.Since))
		Eventually(func() time.Time { _, status := look(); return status.Since }).WithTimeout(30*time.Second).Should(BeTemporally(">", is.Since), "usher's state changes with its last problem")
	})

	It("begins with the last endpoint's quarantine if all are in quarantine, and again with another quarantine", func() {
		n := newNode()
		n.proxy.Apply([]config.Service{service("web", "10.96.0.2", answering(), answering())})
		name := types.NamespacedName{Namespace: "default", Name: "web"}
		all, now := n.proxy.InspectService(name)[0].Endpoints, time.Now().Truncate(time.Millisecond)
		fail := func(e *balance.Endpoint, at time.Time) {
			e.Report(balance.Report{Kind: balance.ConnectFailed, Start: at, Now: at, Err: errors.New("refused")}, balance.Policy{First: 2 * time.Hour, Max: 2 * time.Hour})
		}
		fail(all[0], now.Add(-time.Hour))
		fail(all[1], now.Add(-time.Minute))
		var detail api.ServiceDetail
		n.get("/services/default/web", &detail)
		Expect(detail.State).To(Equal(api.ServiceDown))
		Expect(detail.Since).To(BeTemporally("==", now.Add(-time.Minute)))

		all[0].Report(balance.Report{Kind: balance.Connected, Now: now.Add(-time.Second)}, balance.Policy{})
		fail(all[0], now)
		n.get("/services/default/web", &detail)
		Expect(detail.Details[0].Endpoints[0].Since).To(BeTemporally("==", now))
	})
})
