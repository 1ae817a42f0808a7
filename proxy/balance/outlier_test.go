package balance

import (
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/usherproxy/usher/proxy/latency"
)

// outlier returns an endpoint, and a function that makes its connections end, each some time after the last: x stands
// for one that it broke. The function returns whether it is an Outlier then.
func outlier(apart time.Duration) (s *subject, end func(how string) bool) {
	s = newSubject()
	now := time.Unix(1000, 0)
	return s, func(how string) bool {
		for _, c := range how {
			now = now.Add(apart)
			s.Report(Report{Kind: Connected, Now: now}, Policy{})
			s.Times().Connect.Observe(latency.Seconds, now, 0)
			s.Report(Report{Kind: map[rune]Kind{'x': Broken, '.': Closed}[c], Now: now}, Policy{})
		}
		return s.Outlier(now)
	}
}

func TestEndpointThatResetMostOfItsLastConnectionsIsOutlier(t *testing.T) {
	g := NewWithT(t)
	s, end := outlier(4 * time.Minute)
	g.Expect(end("")).To(BeFalse())
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
}

func TestEndpointThatResetFewOfItsRecentConnectionsIsOutlier(t *testing.T) {
	g := NewWithT(t)
	_, end := outlier(time.Second / 10)
	fifty := strings.Repeat(".", 49) + "x"
	g.Expect(end(fifty+fifty+fifty)).To(BeFalse(), "three are too few")
	g.Expect(end(fifty)).To(BeTrue(), "four of 200")
	g.Expect(end(strings.Repeat(".", 100))).To(BeFalse(), "four of 300")
	g.Expect(end("xxx")).To(BeTrue(), "seven of 303")

	_, end = outlier(time.Second / 10)
	g.Expect(end("x.x.x.x.")).To(BeTrue(), "half of the connections")
	g.Expect(end(strings.Repeat(".", 16))).To(BeTrue(), "none of the last 17")
	g.Expect(end(".")).To(BeFalse(), "none of the last 18: more than 10 times the usual number")

	s, end := outlier(time.Second)
	g.Expect(end(strings.Repeat("x....", 20))).To(BeTrue())
	now := time.Unix(1100, 0)
	g.Expect(s.FailedRecently(now)).To(BeEquivalentTo(20))
	g.Expect([]any{s.FailedRecently(now.Add(10 * time.Minute)), s.Outlier(now.Add(10 * time.Minute))}).To(Equal([]any{int64(0), false}))
}
