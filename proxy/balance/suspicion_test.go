package balance

import (
	"errors"
	"testing"
	"time"

	. "github.com/onsi/gomega"
)

func TestAnEndpointIsSuspiciousThatBrokeMostOfItsLastConnections(t *testing.T) {
	g := NewWithT(t)
	var s State
	now := time.Unix(1000, 0)
	end := func(how string) bool {
		for _, c := range how {
			s.Ended(c == 'x', now)
		}
		return s.Suspicious()
	}
	g.Expect(s.Suspicious()).To(BeFalse())
	g.Expect(end("xxx")).To(BeFalse(), "three are too few")
	g.Expect(end("x")).To(BeTrue())
	g.Expect(end("...")).To(BeTrue(), "four of seven")
	g.Expect(end(".")).To(BeFalse(), "half")
	g.Expect(end("x")).To(BeTrue(), "five of nine")
	g.Expect(end("..............")).To(BeFalse(), "only the last sixteen count")
	g.Expect(end("xxxxxxxx")).To(BeFalse(), "half")
	g.Expect(end("x")).To(BeTrue())
	g.Expect(end("................")).To(BeFalse())
	g.Expect(s.Failed.Load()).To(BeEquivalentTo(14))
	g.Expect(s.FailedLately(now.Add(time.Minute))).To(BeEquivalentTo(14))
	g.Expect(s.FailedLately(now.Add(10 * time.Minute))).To(BeZero())
}

func TestASuspiciousEndpointIsPassedOverForLongerEachTimeAndGetsAFewConnectionsInBetween(t *testing.T) {
	g := NewWithT(t)
	now := time.Unix(1000, 0)
	q := Quarantine{First: time.Second, Max: time.Minute, Probed: true}
	e := &Endpoint{State: new(State), pool: new(Pool)}
	end := func(n int, broken bool) {
		for range n {
			e.Succeed(now)
			e.Ended(broken, now)
			e.Distrust(now, q)
		}
	}
	quarantined := func() bool {
		_, is := e.Quarantined(now)
		return is
	}
	for _, length := range []time.Duration{1, 2, 4, 8} {
		end(3, true)
		g.Expect(quarantined()).To(BeFalse(), "three are too few")
		end(1, true)
		period, is := e.Quarantined(now)
		g.Expect(is).To(BeTrue())
		g.Expect(period.Until).To(Equal(now.Add(length * time.Second)))
		g.Expect(period.Cause).To(MatchError("it broke 4 of its last 4 connections"))
		end(10, true)
		g.Expect(quarantined()).To(BeTrue(), "whoever is connected to it for want of another")
		period, _ = e.Quarantined(now)
		g.Expect(period.Until).To(Equal(now.Add(length*time.Second)), "and no longer for those")
		now = period.Until
		_, news := e.Probed(now, nil, false, q)
		g.Expect(news).To(BeTrue())
		g.Expect(quarantined()).To(BeFalse())
		g.Expect(e.Suspicious()).To(BeFalse())
	}
	end(16, false)
	end(17, true) // nine of its last sixteen at the first of them that counts
	period, _ := e.Quarantined(now)
	g.Expect(period.Until).To(Equal(now.Add(time.Second)), "it was well in between")
	g.Expect(period.Cause).To(MatchError("it broke 9 of its last 16 connections"))

	now, q.Probed = now.Add(time.Hour), false
	_, _ = e.Probed(now, nil, false, q)
	end(4, true)
	g.Expect(quarantined()).To(BeTrue())
	now = now.Add(2 * time.Second)
	g.Expect(e.stand(now, true)).To(Equal(probing))
	g.Expect(e.State.Succeed(now)).To(BeTrue(), "where nobody probes, a client has found out")
	g.Expect(e.stand(now, true)).To(Equal(healthy))

	e.Distrust(now, q)
	g.Expect(quarantined()).To(BeFalse(), "it has to break some again")
	q.First = 0
	end(20, true)
	g.Expect(quarantined()).To(BeFalse(), "quarantine is switched off")
	g.Expect(e.State.Fail(now, now, errors.New("connection refused"), Quarantine{First: time.Second})).To(BeNumerically(">", 0))
	e.Succeed(now)
	g.Expect(e.stand(now, true)).To(Equal(healthy))
}
