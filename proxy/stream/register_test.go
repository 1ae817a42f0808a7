package stream

import (
	"net/netip"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/usherproxy/usher/proxy/budget"
	"github.com/usherproxy/usher/proxy/conn"
	"github.com/usherproxy/usher/proxy/frontend"
)

func TestInheritedConnectionThroughALoadBalancerIsCountedOnce(t *testing.T) {
	g := NewWithT(t)
	balancer := netip.MustParseAddrPort("192.0.2.9:1000")
	c := &Conn{}
	c.Front = &frontend.FrontEnd{Node: new(frontend.Node)}
	c.Record = &conn.Record{From: netip.MustParseAddrPort("198.51.100.1:2000"), Via: &balancer}
	r := &register{budget: budget.New(budget.Limits{})}
	g.Expect(r.add(c)).To(Succeed())
	g.Expect(r.clients.Add(balancer.Addr(), 0)).To(BeEquivalentTo(1))
	r.remove(c)
	g.Expect(r.clients.Add(balancer.Addr(), 0)).To(BeZero())
	g.Expect(r.clients.Add(c.From.Addr(), 0)).To(BeZero())
}
