package balance

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	. "github.com/onsi/gomega"
)

func TestSilenceTowardsOneClientAloneIsNoFailure(t *testing.T) {
	g := NewWithT(t)
	q := Quarantine{First: time.Second, Max: time.Minute, Probed: true}
	silent, one, other := errors.New("no answer"), netip.MustParseAddr("10.1.0.2"), netip.MustParseAddr("10.1.0.3")
	var s State
	now := time.Unix(1000, 0)
	for range 3 { // however often: it is never longer
		g.Expect(s.Doubt(one, now, silent, q)).To(BeTrue())
		period, quarantined := s.Quarantined(now)
		g.Expect(quarantined).To(BeTrue())
		g.Expect(period).To(Equal(Period{Until: now.Add(q.First), Failures: 1, Cause: silent, Doubt: true}))
		now = now.Add(2 * q.First)
		_, quarantined = s.Quarantined(now)
		g.Expect(quarantined).To(BeFalse())
	}
	g.Expect(s.Doubt(other, now, silent, q)).To(BeFalse(), "two clients")
	g.Expect(s.Fail(now, now, silent, q)).To(BeNumerically(">", 0))
	period, _ := s.Quarantined(now)
	g.Expect(period.Doubt).To(BeFalse())
	s.Succeed(now)
	g.Expect(s.Doubt(other, now, silent, q)).To(BeTrue(), "one, since it answered")
	g.Expect(s.Failed.Load()).To(BeEquivalentTo(5))
}
