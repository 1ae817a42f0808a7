package load

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
)

func TestQuantileErrorIsBelowOnePercent(t *testing.T) {
	g := NewWithT(t)
	for _, d := range []time.Duration{0, 1, 127, 128, 129, 1000, 12_345, time.Millisecond, 123 * time.Millisecond, time.Hour} {
		var l latencies
		l.add(d)
		g.Expect(float64(l.quantile(0.5))).To(BeNumerically("~", float64(d), 0.01*float64(d)+1), d.String())
	}
}

func TestPercentileNeedsTenSamplesAboveIt(t *testing.T) {
	g := NewWithT(t)
	var l latencies
	for range 999 {
		l.add(time.Millisecond)
	}
	g.Expect(l.percentile(0.99)).To(BeZero())
	l.add(time.Millisecond)
	g.Expect(l.percentile(0.99)).To(BeNumerically("~", time.Millisecond, 10*time.Microsecond))
	g.Expect(l.percentile(0.999)).To(BeZero())
}

func TestQuantilesAfterMerge(t *testing.T) {
	g := NewWithT(t)
	var a, b latencies
	for i := range 1000 {
		a.add(time.Duration(i+1) * time.Microsecond)
		b.add(time.Duration(i+1001) * time.Microsecond)
	}
	a.merge(&b)
	g.Expect(a.quantile(0.5)).To(BeNumerically("~", time.Millisecond, 10*time.Microsecond))
	g.Expect(a.quantile(0.99)).To(BeNumerically("~", 1980*time.Microsecond, 20*time.Microsecond))
	g.Expect((&latencies{}).quantile(0.5)).To(BeZero())
}
