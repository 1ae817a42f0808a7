package balance

import (
	"net/netip"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/usherproxy/usher/config"
)

// A scheduler that prefers some endpoints to others looks at all that can be used.
func TestTheEndpointThatASchedulerPrefers(t *testing.T) {
	g := NewWithT(t)
	fewest := &Scheduler{
		reason: "fewest connections",
		first:  RoundRobin.first,
		better: func(e, best *Endpoint) bool { return e.Active.Load() < best.Active.Load() },
	}
	var list []config.Endpoint
	for n := range 4 {
		list = append(list, config.Endpoint{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, 0, byte(n)}), 80)})
	}
	pool := Pool{Scheduler: fewest}
	pool.Update(config.ServicePort{Endpoints: list, Cluster: list})
	for n, active := range []int64{5, 1, 2, 1} {
		pool.All[n].Active.Store(active)
	}
	now := time.Now()
	pick := func(tried ...netip.AddrPort) (*Endpoint, Reason) {
		c, ok := pool.Cluster.Pick(now, tried)
		g.Expect(ok).To(BeTrue())
		return c.Endpoint, c.Reason
	}
	first, why := pick()
	g.Expect(first).To(Or(BeIdenticalTo(pool.All[1]), BeIdenticalTo(pool.All[3])))
	g.Expect(why).To(Equal(fewest.reason))
	pool.All[1].Fail(now, now, nil, Quarantine{First: time.Minute, Max: time.Minute})
	for range 5 {
		e, _ := pick()
		g.Expect(e).To(BeIdenticalTo(pool.All[3]))
		e, _ = pick(list[3].Addr)
		g.Expect(e).To(BeIdenticalTo(pool.All[2]))
	}
	e, why := pick(list[0].Addr, list[2].Addr, list[3].Addr)
	g.Expect(e).To(BeIdenticalTo(pool.All[1]), "better than nobody")
	g.Expect(why).To(Equal(OnlyOne))
}
