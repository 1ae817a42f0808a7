package top

import (
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/usherproxy/usher/proxy/admin/api"
)

var _ = Describe("rates", func() {
	begin := time.Date(2026, 11, 21, 13, 5, 0, 0, time.UTC)
	answerOf := func(instance string, after time.Duration, accepted, retries int64) answer {
		totals := api.Totals{Accepted: accepted, Retries: retries, BytesToClient: accepted * 100}
		return answer{at: begin.Add(after), status: api.Status{Instance: instance, Totals: totals},
			services: []api.Service{{Namespace: "default", Name: "web", Totals: totals}}}
	}

	It("are the changes per second between two responses", func() {
		r := rates{}.next(answerOf("a", 0, 100, 7), time.Second)
		Expect(r.all).To(BeZero(), "one response gives no rate")
		r = r.next(answerOf("a", 2*time.Second, 110, 8), time.Second)
		want := rate{accepted: 5, retries: 0.5, bytes: 500}
		Expect(r.all).To(Equal(want))
		Expect(r.services["default/web"]).To(Equal(want))
	})

	It("stay unchanged for responses in quick succession", func() {
		r := rates{}.next(answerOf("a", 0, 100, 0), time.Second).next(answerOf("a", 2*time.Second, 110, 0), time.Second)
		Expect(r.next(answerOf("a", 2*time.Second+time.Millisecond, 111, 0), time.Second).all.accepted).To(Equal(5.0))
	})

	It("restart from 0 with another process", func() {
		r := rates{}.next(answerOf("a", 0, 100, 0), time.Second)
		Expect(r.next(answerOf("b", 2*time.Second, 500, 0), time.Second).all).To(BeZero())
	})
})
