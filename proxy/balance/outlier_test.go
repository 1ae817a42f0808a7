package balance

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
)

func TestEndpointThatResetMostRecentConnectionsIsSuspicious(t *testing.T) {
	g := NewWithT(t)
	s := newSubject()
	now := time.Unix(1000, 0)
	end := func(how string) bool {
		for _, c := range how {
			s.Report(Report{Kind: map[rune]Kind{'x': Broken, '.': Closed}[c], Now: now}, Policy{})
		}
		return s.Outlier()
	}
	g.Expect(s.Outlier()).To(BeFalse())
	g.Expect(end("xxx")).To(BeFalse(), "three are too few")
	g.Expect(end("x")).To(BeTrue())
	g.Expect(end("...")).To(BeTrue(), "four of seven")
	g.Expect(end(".")).To(BeFalse(), "half of the connections")
	g.Expect(end("x")).To(BeTrue(), "five of nine")
	g.Expect(end("..............")).To(BeFalse(), "only the last 16 connections count")
	g.Expect(end("xxxxxxxx")).To(BeFalse(), "half of the connections")
	g.Expect(end("x")).To(BeTrue())
	g.Expect(end("................")).To(BeFalse())
	g.Expect(s.Failed.Load()).To(BeEquivalentTo(14))
	g.Expect(s.FailedRecently(now.Add(time.Minute))).To(BeEquivalentTo(14))
	g.Expect(s.FailedRecently(now.Add(10 * time.Minute))).To(BeZero())
}
