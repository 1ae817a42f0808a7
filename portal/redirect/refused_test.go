package redirect

import (
	"errors"
	"net/netip"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/types"

	"github.com/usherproxy/usher/portal"
	. "github.com/usherproxy/usher/test/portaltest"
)

var errRefusedForTest = errors.New("refused")

// HaveExactKeys matches the targets in the result of a bisection.
func HaveExactKeys(want map[portal.Target]bool) types.GomegaMatcher {
	return WithTransform(func(got map[portal.Target]error) []portal.Target { return portal.SortedTargets(got) }, Equal(portal.SortedTargets(want)))
}

var _ = Describe("the search for rules that the kernel refuses", func() {
	rules := ManyRules(1000)
	refusing := func(bad map[portal.Target]bool, tries *int) func([]portal.Rule) error {
		return func(part []portal.Rule) error {
			*tries++
			for _, r := range part {
				if bad[r.Target] {
					return errRefusedForTest
				}
			}
			return nil
		}
	}
	It("finds one of 1,000 rules in at most 21 tries", func() {
		tries := 0
		bad := map[portal.Target]bool{rules[617].Target: true}
		Expect(bisect(rules, refusing(bad, &tries))).To(HaveExactKeys(bad))
		Expect(tries).To(BeNumerically("<=", 21))
	})
	It("finds several rules in at most 80 tries", func() {
		tries := 0
		bad := map[portal.Target]bool{rules[0].Target: true, rules[1].Target: true, rules[999].Target: true, rules[500].Target: true}
		Expect(bisect(rules, refusing(bad, &tries))).To(HaveExactKeys(bad))
		Expect(tries).To(BeNumerically("<=", 80))
	})
	It("finds none in one try if none is refused", func() {
		tries := 0
		Expect(bisect(rules, refusing(nil, &tries))).To(BeEmpty())
		Expect(tries).To(Equal(1))
	})
	It("stops without a result after an undecided try", func() {
		tries := 0
		try := refusing(map[portal.Target]bool{rules[0].Target: true}, &tries)
		bad, err := bisect(rules, func(part []portal.Rule) error {
			if err := try(part); err == nil || tries < 5 {
				return err
			}
			return undecided{errors.New("another program holds the lock")}
		})
		Expect(err).To(MatchError("another program holds the lock"))
		Expect(bad).To(BeEmpty())
		Expect(tries).To(Equal(5))
	})
	It("divides rules that are too many to try together, and blames none of them", func() {
		tries := 0
		bad := map[portal.Target]bool{rules[617].Target: true}
		try := refusing(bad, &tries)
		Expect(bisect(rules, func(part []portal.Rule) error {
			if len(part) > 300 {
				return ErrTooMany
			}
			return try(part)
		})).To(HaveExactKeys(bad))
	})
	It("returns rules that are refused only together", func() {
		together := func(part []portal.Rule) error {
			if len(part) >= 4 {
				return errRefusedForTest
			}
			return nil
		}
		Expect(bisect(rules[:4], together)).To(HaveLen(4))
	})
})

var _ = Describe("a refused rule", func() {
	It("is tried again after 10 s, then after twice as long, and after 10 s again if it had been accepted meanwhile", func() {
		now := time.Now()
		r := newRefusals(func() time.Time { return now })
		rules := ManyRules(2)
		refuse := func(rule portal.Rule) { r.add(rules, map[portal.Target]error{rule.Target: errRefusedForTest}) }
		retriedAfter := func(wait time.Duration) {
			GinkgoHelper()
			now = now.Add(wait - time.Second)
			Expect(r.retry()).To(BeFalse())
			now = now.Add(time.Second)
			Expect(r.retry()).To(BeTrue())
		}
		refuse(rules[0])
		retriedAfter(10 * time.Second)
		refuse(rules[0])
		now = now.Add(15 * time.Second)
		refuse(rules[1]) // does not postpone the retry of the other
		now = now.Add(6 * time.Second)
		refuse(rules[1]) // nor does a change before the check that retries it
		Expect(r.retry()).To(BeTrue())
		refuse(rules[0])
		retriedAfter(40 * time.Second)
		now = now.Add(time.Hour)
		refuse(rules[1])
		retriedAfter(10 * time.Second)
	})

	It("of SCTP without a redirect address is tried again in the same intervals", func() {
		now := time.Now()
		r := newRefusals(func() time.Time { return now })
		target := portal.Target{Protocol: portal.SCTP, Addr: netip.MustParseAddr("10.96.0.1"), Port: 80}
		rules := map[portal.Target]portal.Rule{target: {Target: target, LocalPort: 1000}}
		for _, wait := range []time.Duration{10 * time.Second, 20 * time.Second} {
			r.addSCTP(rules, "none")
			now = now.Add(wait - time.Second)
			r.addSCTP(rules, "none")
			Expect(r.retry()).To(BeFalse())
			now = now.Add(time.Second)
			Expect(r.retry()).To(BeTrue())
		}
	})
})
