package balance

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	. "github.com/onsi/gomega"
)

func TestNoAnswerToOnlyOneClientIsNotAFailure(t *testing.T) {
	g := NewWithT(t)
	p := Policy{First: time.Second, Max: time.Minute, UntilProbe: true}
	silent, one, other := errors.New("no answer"), netip.MustParseAddr("10.1.0.2"), netip.MustParseAddr("10.1.0.3")
	s := newSubject()
	now := time.Unix(1000, 0)
	blamed := func(client netip.Addr) bool {
		return s.Report(Report{Kind: ConnectFailed, Start: now, Now: now, Err: silent, Client: client}, p).Blamed
	}
	for range 3 { // repeats do not make it longer
		g.Expect(blamed(one)).To(BeFalse())
		h := s.Health(now)
		h.Since = time.Time{}
		g.Expect(h).To(Equal(Health{State: Down, By: ConnectFailed, Until: now.Add(p.First), Failures: 1, Err: silent}))
		now = now.Add(2 * p.First)
		g.Expect(s.Health(now).State).To(Equal(HalfOpen))
	}
	g.Expect(s.Health(now).Since).To(Equal(time.Unix(1000, 0)))
	g.Expect(s.news).To(BeEmpty())
	g.Expect(blamed(other)).To(BeTrue(), "failures of two clients")
	g.Expect(s.news).To(Equal([]string{"DOWN for 2s by no answer"}))
	g.Expect(s.health.Load().passive.client.IsValid()).To(BeFalse())
	s.Report(Report{Kind: Connected, Now: now}, p)
	g.Expect(blamed(other)).To(BeFalse(), "failures of one client since the endpoint answered")
	g.Expect(s.Failed.Load()).To(BeEquivalentTo(5))
}

func TestFailedChecksAreNewsAfterOneClientsFailure(t *testing.T) {
	g := NewWithT(t)
	s := newSubject()
	now := time.Unix(1000, 0)
	fail := func() {
		s.Report(Report{Kind: ConnectFailed, Start: now, Now: now, Err: errors.New("no answer"), Client: netip.MustParseAddr("10.1.0.2")}, Policy{First: time.Minute, Max: time.Minute, UntilProbe: true})
	}
	checks := Policy{First: time.Second, Rise: 1, Fall: 2}
	fail()
	g.Expect(s.Health(now).State).To(Equal(Down))
	g.Expect(s.news).To(BeEmpty())
	for range 3 {
		s.Report(Report{Kind: CheckFailed, Now: now, Err: errors.New("status 500")}, checks)
	}
	news := []string{"DOWN for 1s by 2 probes failed: status 500"}
	g.Expect(s.news).To(Equal(news))
	fail()
	s.Report(Report{Kind: CheckPassed, Now: now}, checks)
	g.Expect(s.news).To(Equal(append(news, "UP by checks")))
}
